package proxy

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// healthPort is where a load balancer asks in a family whether this node has endpoints of a
// Service whose external traffic policy is Local (spec.healthCheckNodePort).
type healthPort struct {
	v6    bool
	port  uint16
	local int // ready endpoints on this node
}

// healthOf decides which a Service has here. Pure.
func healthOf(svc *corev1.Service, slices []*discoveryv1.EndpointSlice, node string) (out []healthPort) {
	port := healthPortOf(svc)
	if skip(svc) || port == 0 {
		return nil
	}
	clusterIPs := svc.Spec.ClusterIPs
	if len(clusterIPs) == 0 {
		clusterIPs = []string{svc.Spec.ClusterIP}
	}
	for _, ip := range clusterIPs {
		a, err := netip.ParseAddr(ip)
		if err != nil {
			continue
		}
		h := healthPort{v6: a.Unmap().Is6(), port: port}
		seen := map[string]bool{}
		for _, s := range slices {
			if (s.AddressType == discoveryv1.AddressTypeIPv6) != h.v6 || len(s.Ports) == 0 {
				continue
			}
			for i := range s.Endpoints {
				e := &s.Endpoints[i]
				ready := e.Conditions.Ready == nil || *e.Conditions.Ready
				if ready && e.NodeName != nil && *e.NodeName == node && len(e.Addresses) > 0 {
					seen[e.Addresses[0]] = true
				}
			}
		}
		h.local = len(seen)
		out = append(out, h)
	}
	return out
}

// healthPorts serves them.
type healthPorts struct {
	addresses func(v6 bool) ([]netip.Addr, error)
	healthy   func() bool // the proxy is
	log       *slog.Logger

	mu      sync.Mutex
	wanted  map[string][]healthPort // by Service
	servers map[healthKey]*healthServer
	running sync.WaitGroup
}

type healthKey struct {
	service string
	v6      bool
	port    uint16
}

type healthServer struct {
	http      []*http.Server
	listening []net.Listener
}

func newHealthPorts(addresses func(bool) ([]netip.Addr, error), healthy func() bool, log *slog.Logger) *healthPorts {
	return &healthPorts{addresses: addresses, healthy: healthy, log: log,
		wanted: map[string][]healthPort{}, servers: map[healthKey]*healthServer{}}
}

// set says what a Service has.
func (h *healthPorts) set(service string, ports []healthPort) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(ports) == 0 {
		delete(h.wanted, service)
	} else {
		h.wanted[service] = ports
	}
}

// open opens and closes ports until they are as they should. One that can't be opened is
// tried again when something changes, as upstream: Services work without.
func (h *healthPorts) open() {
	h.mu.Lock()
	defer h.mu.Unlock()
	wanted := map[healthKey]bool{}
	for service, ports := range h.wanted {
		for _, p := range ports {
			wanted[healthKey{service, p.v6, p.port}] = true
		}
	}
	for k, s := range h.servers {
		if !wanted[k] {
			s.close()
			delete(h.servers, k)
		}
	}
	for k := range wanted {
		if h.servers[k] != nil {
			continue
		}
		s, err := h.listen(k)
		if err != nil {
			h.log.Error("open the health port of a Service", "service", k.service, "port", k.port, "err", err)
			continue
		}
		h.servers[k] = s
	}
}

func (h *healthPorts) listen(k healthKey) (*healthServer, error) {
	network, all := "tcp4", netip.IPv4Unspecified()
	if k.v6 {
		network, all = "tcp6", netip.IPv6Unspecified()
	}
	addresses, err := h.addresses(k.v6)
	if err != nil {
		return nil, err
	}
	if len(addresses) == 0 {
		addresses = []netip.Addr{all}
	}
	s := &healthServer{}
	for _, a := range addresses {
		l, err := (&net.ListenConfig{}).Listen(context.Background(), network, netip.AddrPortFrom(a, k.port).String())
		if err != nil {
			s.close()
			return nil, fmt.Errorf("listen: %w", err)
		}
		s.listening = append(s.listening, l)
	}
	for _, l := range s.listening {
		srv := &http.Server{Handler: h.handler(k), ReadHeaderTimeout: 10 * time.Second, ErrorLog: slog.NewLogLogger(h.log.Handler(), slog.LevelDebug)}
		s.http = append(s.http, srv)
		h.running.Go(func() { _ = srv.Serve(l) }) // ends when it is closed
	}
	return s, nil
}

func (s *healthServer) close() {
	for _, l := range s.listening {
		_ = l.Close() // closed by its server already, as a rule
	}
	for _, srv := range s.http {
		_ = srv.Close()
	}
}

// close ends all servers and waits for them.
func (h *healthPorts) close() {
	h.mu.Lock()
	for k, s := range h.servers {
		s.close()
		delete(h.servers, k)
	}
	h.mu.Unlock()
	h.running.Wait()
}

func (h *healthPorts) handler(k healthKey) http.Handler {
	namespace, name, _ := strings.Cut(k.service, "/")
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		local := 0
		h.mu.Lock()
		for _, p := range h.wanted[k.service] {
			if p.v6 == k.v6 {
				local = p.local
			}
		}
		h.mu.Unlock()
		healthy := h.healthy()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(local))
		if local == 0 || !healthy {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		// Byte for byte what upstream says: some balancers match it.
		fmt.Fprintf(w, "{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": %q\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %v\n}",
			namespace, name, local, healthy)
	})
}

// healthPortOf is the port that a Service's health is served at; 0: none.
func healthPortOf(svc *corev1.Service) uint16 {
	if svc.Spec.Type != corev1.ServiceTypeLoadBalancer || svc.Spec.ExternalTrafficPolicy != corev1.ServiceExternalTrafficPolicyLocal {
		return 0
	}
	return uint16(svc.Spec.HealthCheckNodePort)
}
