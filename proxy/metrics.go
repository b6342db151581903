package proxy

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// metrics are what upstream's proxy has, under its names.
type metrics struct {
	families                        []corev1.IPFamily
	clock                           clock.PassiveClock
	serviceChanges, endpointChanges atomic.Int64
	// pending ones are those since the last sync.
	servicesSynced, endpointsSynced atomic.Int64

	mu                                    sync.Mutex
	all, full, partial, network, flowTime histogram
	lastSync, lastQueued                  time.Time
	failures, flows                       int64
	noLocal                               map[noLocalKey]int
}

type noLocalKey struct {
	policy string
	v6     bool
}

func newMetrics(families []corev1.IPFamily, c clock.PassiveClock) *metrics {
	// Upstream's: from 1 ms, each twice the one before, 15 of them.
	var doubling []float64
	for i := range 15 {
		doubling = append(doubling, 0.001*math.Pow(2, float64(i)))
	}
	network := []float64{0.25, 0.5}
	for i := range 59 {
		network = append(network, float64(i+1))
	}
	for i := range 12 {
		network = append(network, float64(60+5*i))
	}
	for i := range 7 {
		network = append(network, float64(120+30*i))
	}
	return &metrics{families: families, clock: c, all: newHistogram(doubling), full: newHistogram(doubling), partial: newHistogram(doubling),
		network: newHistogram(network), flowTime: newHistogram(doubling), noLocal: map[noLocalKey]int{}}
}

func (m *metrics) queued() {
	m.mu.Lock()
	m.lastQueued = m.clock.Now()
	m.mu.Unlock()
}

func (m *metrics) failed() {
	m.mu.Lock()
	m.failures++
	m.mu.Unlock()
}

func (m *metrics) synced(start time.Time, full bool) {
	m.servicesSynced.Store(m.serviceChanges.Load())
	m.endpointsSynced.Store(m.endpointChanges.Load())
	m.mu.Lock()
	defer m.mu.Unlock()
	m.lastSync = m.clock.Now()
	took := m.lastSync.Sub(start).Seconds()
	m.all.observe(took)
	if full {
		m.full.observe(took)
	} else {
		m.partial.observe(took)
	}
}

// programmed notes how long changes of endpoints took from where they happened.
func (m *metrics) programmed(triggers []time.Time) {
	if len(triggers) == 0 {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range triggers {
		m.network.observe(m.clock.Since(t).Seconds())
	}
}

func (m *metrics) forgot(start time.Time, flows int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.flowTime.observe(m.clock.Since(start).Seconds())
	m.flows += int64(flows)
}

// count adds or takes away ports that a Local policy leaves without endpoints.
func (m *metrics) count(ports []Port, by int) {
	for i := range ports {
		p := &ports[i]
		if !p.Endpoints || len(p.Local) > 0 || !p.InternalLocal && !p.ExternalLocal {
			continue
		}
		m.mu.Lock()
		if p.InternalLocal {
			m.noLocal[noLocalKey{"internal", p.V6}] += by
		}
		if p.ExternalLocal {
			m.noLocal[noLocalKey{"external", p.V6}] += by
		}
		m.mu.Unlock()
	}
}

// WriteMetrics writes them in Prometheus' text format.
func (p *Proxy) WriteMetrics(w io.Writer) error {
	m := p.metrics
	t := &text{}
	t.counter("proxy_healthz_total", "Cumulative proxy healthz HTTP status")
	t.answers("proxy_healthz_total", &p.status.healthz)
	t.counter("proxy_livez_total", "Cumulative proxy livez HTTP status")
	t.answers("proxy_livez_total", &p.status.livez)
	services, endpoints := m.serviceChanges.Load(), m.endpointChanges.Load()
	t.counter("sync_proxy_rules_endpoint_changes_total", "Cumulative proxy rules Endpoint changes")
	t.value("sync_proxy_rules_endpoint_changes_total", "", float64(endpoints))
	t.gauge("sync_proxy_rules_endpoint_changes_pending", "Pending proxy rules Endpoint changes")
	t.value("sync_proxy_rules_endpoint_changes_pending", "", float64(endpoints-m.endpointsSynced.Load()))
	t.counter("sync_proxy_rules_service_changes_total", "Cumulative proxy rules Service changes")
	t.value("sync_proxy_rules_service_changes_total", "", float64(services))
	t.gauge("sync_proxy_rules_service_changes_pending", "Pending proxy rules Service changes")
	t.value("sync_proxy_rules_service_changes_pending", "", float64(services-m.servicesSynced.Load()))

	m.mu.Lock()
	defer m.mu.Unlock()
	each := func(name string, write func(name, label string, v6 bool)) {
		for _, f := range m.families {
			write(name, fmt.Sprintf(`ip_family=%q`, string(f)), f == corev1.IPv6Protocol)
		}
	}
	hist := func(name, help string, h *histogram) {
		t.histogram(name, help)
		each(name, func(name, label string, _ bool) { t.buckets(name, label, h) })
	}
	plain := func(v float64) func(string, string, bool) {
		return func(name, label string, _ bool) { t.value(name, label, v) }
	}
	hist("sync_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds", &m.all)
	hist("sync_full_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds for full resyncs", &m.full)
	hist("sync_partial_proxy_rules_duration_seconds", "SyncProxyRules latency in seconds for partial resyncs", &m.partial)
	hist("network_programming_duration_seconds", "In Cluster Network Programming Latency in seconds", &m.network)
	hist("conntrack_reconciler_sync_duration_seconds", "ReconcileConntrackFlowsLatency latency in seconds", &m.flowTime)
	t.counter("conntrack_reconciler_deleted_entries_total", "Cumulative conntrack flows deleted by conntrack reconciler")
	each("conntrack_reconciler_deleted_entries_total", plain(float64(m.flows)))
	t.gauge("sync_proxy_rules_last_timestamp_seconds", "The last time proxy rules were successfully synced")
	each("sync_proxy_rules_last_timestamp_seconds", plain(seconds(m.lastSync)))
	t.gauge("sync_proxy_rules_last_queued_timestamp_seconds", "The last time a sync of proxy rules was queued")
	each("sync_proxy_rules_last_queued_timestamp_seconds", plain(seconds(m.lastQueued)))
	t.counter("sync_proxy_rules_nftables_sync_failures_total", "Cumulative proxy nftables sync failures")
	each("sync_proxy_rules_nftables_sync_failures_total", plain(float64(m.failures)))
	t.gauge("sync_proxy_rules_no_local_endpoints_total", "Number of services with a Local traffic policy and no endpoints")
	each("sync_proxy_rules_no_local_endpoints_total", func(name, label string, v6 bool) {
		for _, policy := range []string{"internal", "external"} {
			t.value(name, label+fmt.Sprintf(`,traffic_policy=%q`, policy), float64(m.noLocal[noLocalKey{policy, v6}]))
		}
	})
	_, err := w.Write(t.Bytes())
	return err
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}

// histogram counts observations in buckets of ascending bounds.
type histogram struct {
	bounds []float64
	counts []int64
	total  int64
	sum    float64
}

func newHistogram(bounds []float64) histogram {
	return histogram{bounds: bounds, counts: make([]int64, len(bounds))}
}

func (h *histogram) observe(v float64) {
	h.total++
	h.sum += v
	if i, _ := slices.BinarySearch(h.bounds, v); i < len(h.counts) {
		h.counts[i]++
	}
}

// text is metrics in the making. Upstream's all begin with kubeproxy_.
type text struct{ bytes.Buffer }

func (t *text) head(name, help, kind string) {
	fmt.Fprintf(t, "# HELP kubeproxy_%s [ALPHA] %s\n# TYPE kubeproxy_%s %s\n", name, help, name, kind)
}

func (t *text) counter(name, help string)   { t.head(name, help, "counter") }
func (t *text) gauge(name, help string)     { t.head(name, help, "gauge") }
func (t *text) histogram(name, help string) { t.head(name, help, "histogram") }

func (t *text) value(name, labels string, v float64) {
	if labels != "" {
		labels = "{" + labels + "}"
	}
	fmt.Fprintf(t, "kubeproxy_%s%s %s\n", name, labels, number(v))
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', -1, 64) }

func (t *text) answers(name string, a *answers) {
	for _, c := range []struct {
		code  string
		count int64
	}{{"200", a.ok.Load()}, {"503", a.unavailable.Load()}} {
		if c.count > 0 {
			t.value(name, fmt.Sprintf(`code=%q`, c.code), float64(c.count))
		}
	}
}

func (t *text) buckets(name, label string, h *histogram) {
	var below int64
	for i, bound := range h.bounds {
		below += h.counts[i]
		t.value(name+"_bucket", label+fmt.Sprintf(`,le=%q`, number(bound)), float64(below))
	}
	t.value(name+"_bucket", label+`,le="+Inf"`, float64(h.total))
	t.value(name+"_sum", label, h.sum)
	t.value(name+"_count", label, float64(h.total))
}
