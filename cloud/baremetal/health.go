package baremetal

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	// probeTimeout and failuresTaken make a node that is silent bad after about three seconds.
	probeTimeout  = time.Second
	failuresTaken = 3
	// probesAtATime bounds the connections.
	probesAtATime = 32
	// proxyHealthPort is where kube-proxy tells whether it serves (KEP-3836).
	proxyHealthPort = 10256
)

// Probe asks a URL of a node: an answer that is not 200 is a no, an error is no answer.
type Probe func(ctx context.Context, url string) (ok bool, err error)

func newHTTPProbe() Probe {
	client := &http.Client{
		Timeout:   probeTimeout,
		Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: probeTimeout}).DialContext, MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute},
		// What redirects is no health port.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return func(ctx context.Context, url string) (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		resp, err := client.Do(req)
		if err != nil {
			return false, err
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16)) // so that the connection is used again
		return resp.StatusCode == http.StatusOK, nil
	}
}

// healthURL is where a node says whether it serves a Service, as it tells any load balancer: for
// policy Local its health port, which knows of endpoints there, else the proxy's own.
func healthURL(s *corev1.Service, n *corev1.Node) string {
	port := int32(proxyHealthPort)
	if s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal && s.Spec.HealthCheckNodePort != 0 {
		port = s.Spec.HealthCheckNodePort
	}
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeInternalIP {
			return fmt.Sprintf("http://%s/healthz", net.JoinHostPort(a.Address, strconv.Itoa(int(port))))
		}
	}
	return ""
}

// health remembers what nodes answered.
type health struct {
	probe Probe
	mu    sync.Mutex
	seen  map[string]int // failures in a row; failuresTaken after a no
}

func newHealth(p Probe) *health { return &health{probe: p, seen: map[string]int{}} }

// ask all URLs at once.
func (h *health) ask(ctx context.Context, urls map[string]bool) {
	var wg sync.WaitGroup
	free := make(chan struct{}, probesAtATime)
	for url := range urls {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			ok, err := h.probe(ctx, url)
			if ctx.Err() != nil {
				return
			}
			h.mu.Lock()
			defer h.mu.Unlock()
			switch {
			case err != nil:
				h.seen[url] = min(h.seen[url]+1, failuresTaken)
			case !ok:
				h.seen[url] = failuresTaken
			default:
				h.seen[url] = 0
			}
		})
	}
	wg.Wait()
}

// fresh tells whether it answered well the last time.
func (h *health) fresh(url string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	failures, known := h.seen[url]
	return known && failures == 0
}

// forget all but some.
func (h *health) forget(but map[string]bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for url := range h.seen {
		if !but[url] {
			delete(h.seen, url)
		}
	}
}

// trusted tells whether none of the URLs has said no or been silent for long: a moment's silence,
// also of one that was not asked before (by a new leader), moves nothing.
func (h *health) trusted(urls []string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, u := range urls {
		if h.seen[u] >= failuresTaken {
			return false
		}
	}
	return true
}
