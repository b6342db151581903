// Package portmap passes connections to ports of the host on to ports of nodes.
//
// It copies bytes between sockets rather than translating addresses in the kernel: the nodes' ports
// are themselves translated (Services' node ports), and the kernel translates a connection once at
// each hook. Owns: the sockets. Must not: know Services or pods.
package portmap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"
)

const (
	// TCP and UDP are what can be passed on.
	TCP = "TCP"
	UDP = "UDP"

	dialTimeout = 10 * time.Second
	// udpIdle is how long a client's answers find their way back after the last datagram: the
	// kernel's own for streams (nf_conntrack_udp_timeout_stream).
	udpIdle = 2 * time.Minute
	// udpClients bounds the clients of one port.
	udpClients  = 4096
	maxDatagram = 64 << 10
	relisten    = time.Second
)

// Mapping leads from a port of the host to one of a node.
type Mapping struct {
	Protocol string
	// Listen is where on the host; an unspecified address is all of them.
	Listen netip.AddrPort
	Target netip.AddrPort
}

func (m Mapping) String() string {
	return fmt.Sprintf("%d/%s", m.Listen.Port(), m.Protocol)
}

func (m Mapping) network() string { return strings.ToLower(m.Protocol) }

// address: an unspecified one listens for both families.
func (m Mapping) address() string {
	if !m.Listen.Addr().IsValid() || m.Listen.Addr().IsUnspecified() {
		return fmt.Sprintf(":%d", m.Listen.Port())
	}
	return m.Listen.String()
}

// Free says whether a mapping can listen; the error is for who wants it.
func (m Mapping) Free() error {
	l, err := m.listen(context.Background())
	if err != nil {
		return err
	}
	return l.Close()
}

func (m Mapping) listen(ctx context.Context) (io.Closer, error) {
	var l net.ListenConfig
	var c io.Closer
	var err error
	if m.Protocol == UDP {
		c, err = l.ListenPacket(ctx, m.network(), m.address())
	} else {
		c, err = l.Listen(ctx, m.network(), m.address())
	}
	if err != nil {
		var sys *net.OpError
		if errors.As(err, &sys) {
			err = sys.Err
		}
		return nil, fmt.Errorf("listen on port %s: %w", m, err)
	}
	return c, nil
}

// Ports passes on.
type Ports struct {
	mappings []Mapping
	log      *slog.Logger
}

// New checks the mappings and listens nowhere yet.
func New(mappings []Mapping, log *slog.Logger) (*Ports, error) {
	for _, m := range mappings {
		if m.Protocol != TCP && m.Protocol != UDP || m.Listen.Port() == 0 || m.Target.Port() == 0 || !m.Target.Addr().IsValid() {
			return nil, fmt.Errorf("port mapping %s to %s: protocol, port or address is missing", m, m.Target)
		}
	}
	return &Ports{mappings, log}, nil
}

// Run listens and passes on until ctx ends. A port that another process has meanwhile is waited for.
func (p *Ports) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	for _, m := range p.mappings {
		wg.Go(func() { p.serve(ctx, m) })
	}
	<-ctx.Done()
	wg.Wait()
	return nil
}

func (p *Ports) serve(ctx context.Context, m Mapping) {
	said := ""
	for ctx.Err() == nil {
		l, err := m.listen(ctx)
		if err == nil {
			said = ""
			switch l := l.(type) {
			case net.Listener:
				err = p.streams(ctx, m, l)
			case net.PacketConn:
				err = p.datagrams(ctx, m, l)
			}
		}
		if err != nil && ctx.Err() == nil && err.Error() != said {
			said = err.Error()
			p.log.Error("port of the host is not passed on; it will be tried again", "port", m.String(), "err", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(relisten):
		}
	}
}

func (p *Ports) streams(ctx context.Context, m Mapping, l net.Listener) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	for {
		client, err := l.Accept()
		if err != nil {
			return err
		}
		wg.Go(func() { p.stream(ctx, m, client) })
	}
}

func (p *Ports) stream(ctx context.Context, m Mapping, client net.Conn) {
	defer client.Close()
	d := net.Dialer{Timeout: dialTimeout}
	server, err := d.DialContext(ctx, m.network(), m.Target.String())
	if err != nil {
		p.log.Debug("pass on a connection", "port", m.String(), "err", err)
		if c, ok := client.(*net.TCPConn); ok {
			_ = c.SetLinger(0) // reset, as the target did
		}
		return
	}
	defer server.Close()
	defer context.AfterFunc(ctx, func() { client.Close(); server.Close() })()
	var wg sync.WaitGroup
	for _, way := range [][2]net.Conn{{client, server}, {server, client}} {
		wg.Go(func() {
			// An end of one direction is passed on, the other goes on: clients may close early.
			if _, err := io.Copy(way[1], way[0]); err != nil {
				client.Close()
				server.Close()
				return
			}
			if c, ok := way[1].(*net.TCPConn); ok {
				_ = c.CloseWrite() // it fails where the other end is gone already
			}
		})
	}
	wg.Wait()
}

func (p *Ports) datagrams(ctx context.Context, m Mapping, l net.PacketConn) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	var mu sync.Mutex
	sessions := map[string]net.Conn{} // by client
	defer func() {
		mu.Lock()
		defer mu.Unlock()
		for _, s := range sessions {
			s.Close()
		}
	}()
	buf := make([]byte, maxDatagram)
	for {
		n, from, err := l.ReadFrom(buf)
		if err != nil {
			return err
		}
		mu.Lock()
		s := sessions[from.String()]
		if s == nil && len(sessions) < udpClients {
			if conn, err := net.Dial(m.network(), m.Target.String()); err == nil {
				s = conn
				sessions[from.String()] = s
				wg.Go(func() {
					answers(l, from, conn)
					conn.Close()
					mu.Lock()
					delete(sessions, from.String())
					mu.Unlock()
				})
			}
		}
		mu.Unlock()
		if s != nil {
			_ = s.SetReadDeadline(time.Now().Add(udpIdle))
			_, _ = s.Write(buf[:n]) // datagrams may be lost
		}
	}
}

// answers passes datagrams back until the client is idle or the socket is closed.
func answers(l net.PacketConn, to net.Addr, conn net.Conn) {
	buf := make([]byte, maxDatagram)
	for {
		n, err := conn.Read(buf)
		if err != nil { // idle, closed, or nobody listens there now: the next datagram begins anew
			return
		}
		if _, err := l.WriteTo(buf[:n], to); err != nil {
			return
		}
	}
}
