// Package dns is the cluster's DNS server: Services and endpoints by the Kubernetes DNS
// specification 1.1.0, everything else forwarded to the host's resolvers.
//
// It answers from informers and goes on answering while the API server is away. It
// must not cache names of the cluster domain, nor write to the API.
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/miekg/dns"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

// Config configures a Server.
type Config struct {
	// Domain is the cluster domain, for example cluster.local.
	Domain string
	// Informers serve Services and EndpointSlices; the caller starts them.
	Informers informers.SharedInformerFactory
	// Upstreams are resolvers (address:port) for names outside the cluster domain, tried in
	// order; none: such names are refused with SERVFAIL.
	Upstreams []string
	Logger    *slog.Logger
}

// Server answers on the addresses given to Listen.
type Server struct {
	zone      zone
	synced    []cache.InformerSynced
	upstreams []string
	log       *slog.Logger
	pending   chan struct{} // bounds forwarded questions in flight
}

// ttl of cluster names in seconds: short, as clients cache.
const ttl = 5

// maxForwards bounds memory and sockets under a flood of outside names.
const maxForwards = 256

// New builds a Server.
func New(cfg Config) (*Server, error) {
	if cfg.Domain == "" {
		return nil, errors.New("cluster domain is empty")
	}
	v, synced, err := newInformerView(cfg.Informers)
	if err != nil {
		return nil, fmt.Errorf("index services for DNS: %w", err)
	}
	return &Server{
		zone:   zone{domain: strings.ToLower(fqdn(cfg.Domain)), view: v},
		synced: synced, upstreams: cfg.Upstreams, log: cfg.Logger,
		pending: make(chan struct{}, maxForwards),
	}, nil
}

// Ready tells whether the informers have the whole cluster.
func (s *Server) Ready() bool {
	for _, f := range s.synced {
		if !f() {
			return false
		}
	}
	return true
}

// Listener holds the sockets of one address.
type Listener struct {
	server *Server
	addr   netip.AddrPort
	udp    *net.UDPConn
	tcp    *net.TCPListener
}

// Listen opens UDP and TCP sockets at addr (port 0: a free one). Questions wait in them
// until Serve.
func (s *Server) Listen(addr netip.AddrPort) (*Listener, error) {
	udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil, fmt.Errorf("listen for DNS on udp %s: %w", addr, err)
	}
	bound := udp.LocalAddr().(*net.UDPAddr).AddrPort()
	addr = netip.AddrPortFrom(bound.Addr().Unmap(), bound.Port())
	tcp, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for DNS on tcp %s: %w", addr, err), udp.Close())
	}
	return &Listener{server: s, addr: addr, udp: udp, tcp: tcp}, nil
}

// Addr is the address listened on.
func (l *Listener) Addr() netip.AddrPort { return l.addr }

// Serve answers until ctx ends, then closes the sockets.
func (l *Listener) Serve(ctx context.Context) error {
	udp := &dns.Server{PacketConn: l.udp, Handler: l.server}
	tcp := &dns.Server{Listener: l.tcp, Handler: l.server}
	errs := make(chan error, 2)
	go func() { errs <- udp.ActivateAndServe() }()
	go func() { errs <- tcp.ActivateAndServe() }()
	running := 2
	var first error
	select {
	case <-ctx.Done():
	case first = <-errs:
		running--
	}
	// Closing the sockets ends both loops, also one that has not started yet.
	closed := errors.Join(l.udp.Close(), l.tcp.Close())
	for ; running > 0; running-- {
		<-errs
	}
	if ctx.Err() != nil {
		return nil
	}
	return errors.Join(fmt.Errorf("serve DNS on %s: %w", l.addr, first), closed)
}

// ServeDNS implements dns.Handler.
func (s *Server) ServeDNS(w dns.ResponseWriter, r *dns.Msg) {
	m := s.respond(r, w.RemoteAddr().Network())
	if err := w.WriteMsg(m); err != nil {
		s.log.Debug("write DNS answer", "client", w.RemoteAddr().String(), "err", err)
	}
}

func (s *Server) respond(r *dns.Msg, network string) *dns.Msg {
	m := new(dns.Msg)
	if len(r.Question) != 1 || r.Opcode != dns.OpcodeQuery {
		return m.SetRcode(r, dns.RcodeNotImplemented)
	}
	q := r.Question[0]
	name := strings.ToLower(q.Name)
	switch {
	case s.zone.contains(name):
		s.local(m, r, q, s.zone.resolve(name, ask(q.Qtype)))
	case q.Qtype == dns.TypePTR && s.pointer(m, r, q, name):
	default:
		return s.forward(r, network)
	}
	size := dns.MinMsgSize
	if opt := r.IsEdns0(); opt != nil {
		size = int(opt.UDPSize())
		m.SetEdns0(opt.UDPSize(), false)
	}
	if network == "tcp" {
		size = dns.MaxMsgSize
	}
	m.Truncate(size)
	return m
}

func (s *Server) local(m, r *dns.Msg, q dns.Question, a answer) {
	m.SetReply(r)
	m.Authoritative, m.RecursionAvailable = true, true
	for _, rec := range a.records {
		s.add(m, q, rec)
	}
	if len(m.Answer) > 0 {
		return
	}
	if !a.exists {
		m.Rcode = dns.RcodeNameError
	}
	m.Ns = []dns.RR{s.soa()}
}

func (s *Server) pointer(m, r *dns.Msg, q dns.Question, name string) bool {
	ip, ok := parseReverse(name)
	if !ok {
		return false
	}
	records, found := s.zone.reverse(ip)
	if found {
		s.local(m, r, q, answer{exists: true, records: records})
	}
	return found
}

func (s *Server) add(m *dns.Msg, q dns.Question, rec record) {
	hdr := func(name string, t uint16) dns.RR_Header {
		return dns.RR_Header{Name: name, Rrtype: t, Class: dns.ClassINET, Ttl: ttl}
	}
	addr := func(name string, ip netip.Addr) dns.RR {
		if ip.Is4() {
			return &dns.A{Hdr: hdr(name, dns.TypeA), A: ip.AsSlice()}
		}
		return &dns.AAAA{Hdr: hdr(name, dns.TypeAAAA), AAAA: ip.AsSlice()}
	}
	switch {
	case rec.ip.IsValid():
		m.Answer = append(m.Answer, addr(q.Name, rec.ip))
	case rec.srv != nil:
		m.Answer = append(m.Answer, &dns.SRV{Hdr: hdr(q.Name, dns.TypeSRV), Port: rec.srv.port, Target: rec.srv.target, Priority: 0, Weight: 100})
		for _, ip := range rec.srv.ip {
			m.Extra = append(m.Extra, addr(rec.srv.target, ip))
		}
	case rec.text != "":
		m.Answer = append(m.Answer, &dns.TXT{Hdr: hdr(q.Name, dns.TypeTXT), Txt: []string{rec.text}})
	case q.Qtype == dns.TypePTR:
		m.Answer = append(m.Answer, &dns.PTR{Hdr: hdr(q.Name, dns.TypePTR), Ptr: rec.target})
	default:
		s.addAlias(m, q, rec.target, hdr(q.Name, dns.TypeCNAME))
	}
}

// addAlias answers with a CNAME and, where it can be had, what the target holds.
func (s *Server) addAlias(m *dns.Msg, q dns.Question, target string, h dns.RR_Header) {
	m.Answer = append(m.Answer, &dns.CNAME{Hdr: h, Target: target})
	if q.Qtype == dns.TypeCNAME {
		return
	}
	follow := new(dns.Msg).SetQuestion(target, q.Qtype)
	var got *dns.Msg
	if name := strings.ToLower(target); s.zone.contains(name) {
		a := s.zone.resolve(name, ask(q.Qtype))
		for _, rec := range a.records {
			if rec.ip.IsValid() { // one step only: chains of aliases could loop
				s.add(m, follow.Question[0], rec)
			}
		}
		return
	}
	if got = s.forward(follow, "udp"); got.Rcode == dns.RcodeSuccess {
		m.Answer = append(m.Answer, got.Answer...)
	}
}

func (s *Server) soa() dns.RR {
	return &dns.SOA{
		Hdr: dns.RR_Header{Name: s.zone.domain, Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: ttl},
		Ns:  "ns.dns." + s.zone.domain, Mbox: "hostmaster." + s.zone.domain,
		Serial: 1, Refresh: 7200, Retry: 1800, Expire: 86400, Minttl: ttl,
	}
}

const forwardTimeout = 2 * time.Second

func (s *Server) forward(r *dns.Msg, network string) *dns.Msg {
	select {
	case s.pending <- struct{}{}:
		defer func() { <-s.pending }()
	default:
		return new(dns.Msg).SetRcode(r, dns.RcodeServerFailure)
	}
	c := &dns.Client{Net: network, Timeout: forwardTimeout}
	for _, up := range s.upstreams {
		resp, _, err := c.Exchange(r, up)
		if err == nil {
			return resp
		}
		s.log.Debug("forward DNS question", "upstream", up, "name", r.Question[0].Name, "err", err)
	}
	return new(dns.Msg).SetRcode(r, dns.RcodeServerFailure)
}

func ask(t uint16) question {
	switch t {
	case dns.TypeA:
		return askA
	case dns.TypeAAAA:
		return askAAAA
	case dns.TypeSRV:
		return askSRV
	case dns.TypeTXT:
		return askTXT
	}
	return askOther
}

// parseReverse turns 4.3.2.1.in-addr.arpa. or the ip6.arpa. form into an address.
func parseReverse(name string) (netip.Addr, bool) {
	if rest, ok := strings.CutSuffix(name, ".in-addr.arpa."); ok {
		l := strings.Split(rest, ".")
		if len(l) != 4 {
			return netip.Addr{}, false
		}
		a, err := netip.ParseAddr(l[3] + "." + l[2] + "." + l[1] + "." + l[0])
		return a, err == nil
	}
	rest, ok := strings.CutSuffix(name, ".ip6.arpa.")
	nibbles := strings.Split(rest, ".")
	if !ok || len(nibbles) != 32 {
		return netip.Addr{}, false
	}
	var b strings.Builder
	for i := 31; i >= 0; i-- {
		b.WriteString(nibbles[i])
		if i%4 == 0 && i > 0 {
			b.WriteByte(':')
		}
	}
	a, err := netip.ParseAddr(b.String())
	return a, err == nil
}
