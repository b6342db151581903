package proxy

import (
	"encoding/json"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// lateAfter is how long a change may wait before the proxy counts as unhealthy: twice
// upstream's default --nftables-sync-period.
const lateAfter = time.Minute

// deletionTaint is what the cluster autoscaler puts on a node that it is about to delete:
// load balancers should let go of it in time (KEP-3836).
const deletionTaint = "ToBeDeletedByClusterAutoscaler"

// status is the health of a proxy.
type status struct {
	families []corev1.IPFamily
	clock    clock.PassiveClock

	mu       sync.Mutex
	last     time.Time // of the last success
	pending  time.Time // since when a change waits; zero: none does
	eligible bool

	healthz, livez answers
}

// answers count responses.
type answers struct{ ok, unavailable atomic.Int64 }

func newStatus(families []corev1.IPFamily, c clock.PassiveClock) *status {
	return &status{families: families, clock: c}
}

func (s *status) queued() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending.IsZero() {
		s.pending = s.clock.Now()
	}
}

func (s *status) updated() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last, s.pending = s.clock.Now(), time.Time{}
}

func (s *status) setNode(n *corev1.Node) {
	eligible := n != nil && n.DeletionTimestamp == nil
	if eligible {
		for _, t := range n.Spec.Taints {
			eligible = eligible && t.Key != deletionTaint
		}
	}
	s.mu.Lock()
	s.eligible = eligible
	s.mu.Unlock()
}

// report is upstream's answer.
type report struct {
	LastUpdated  time.Time                        `json:"lastUpdated"`
	CurrentTime  time.Time                        `json:"currentTime"`
	NodeEligible *bool                            `json:"nodeEligible,omitempty"`
	Healthy      bool                             `json:"healthy"`
	Status       map[corev1.IPFamily]familyReport `json:"status,omitempty"`
}

type familyReport struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// report: a proxy that has not programmed anything yet is starting, and healthy.
func (s *status) report() (r report, eligible bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.clock.Now()
	r = report{LastUpdated: s.last, CurrentTime: now, Healthy: true}
	if !s.last.IsZero() {
		r.Healthy = s.pending.IsZero() || now.Sub(s.pending) < lateAfter
		r.Status = map[corev1.IPFamily]familyReport{}
		for _, f := range s.families {
			r.Status[f] = familyReport{LastUpdated: s.last, Healthy: r.Healthy}
		}
	}
	return r, s.eligible
}

func (s *status) healthy() bool {
	r, _ := s.report()
	return r.Healthy
}

// Health answers /healthz, which says no while the node is to be deleted, so that load
// balancers turn elsewhere, and /livez, which is about the proxy alone.
func (p *Proxy) Health() http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, r report, ok bool, count *answers) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if ok {
			r.LastUpdated = r.CurrentTime // as ever: healthy means up to date
			count.ok.Add(1)
		} else {
			count.unavailable.Add(1)
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if text, err := json.Marshal(r); err == nil { // plain values can be encoded
			_, _ = w.Write(text) // the client has gone
		}
	}
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		r, eligible := p.status.report()
		r.NodeEligible = &eligible
		answer(w, r, r.Healthy && eligible, &p.status.healthz)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) {
		r, _ := p.status.report()
		answer(w, r, r.Healthy, &p.status.livez)
	})
	return mux
}
