// Package metrics counts what the cloud's controllers do, under upstream's names.
//
// Owns: the catalogue and its text. Must not: know what is counted where.
package metrics

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"sync"
)

// Names of the counters and histograms.
const (
	LoadBalancerSyncs   = "service_controller_loadbalancer_sync_total"
	NodeSyncErrors      = "service_controller_nodesync_error_total"
	NodeSyncLatency     = "service_controller_nodesync_latency_seconds"
	HostsLatency        = "service_controller_update_loadbalancer_host_latency_seconds"
	RouteSyncs          = "route_controller_route_sync_total"
	MonitorNodes        = "cloud_node_lifecycle_controller_monitor_nodes_duration_seconds"
	ProviderCalls       = "cloud_node_lifecycle_controller_cloud_provider_calls_total"
	TaintRemovalDelay   = "node_controller_cloud_provider_taint_removal_delay_seconds"
	InitialNodeSync     = "node_controller_initial_node_sync_delay_seconds"
	countsWithoutLabels = ""
)

type metric struct {
	name, help string
	buckets    []float64 // none: a counter
	// labelled ones have no value before something is counted.
	labelled bool
}

func catalogue() []metric {
	return []metric{
		{name: ProviderCalls, help: "The total number of cloud provider API calls, labeled by operation and result.", labelled: true},
		{name: MonitorNodes, help: "A metric measuring the duration in seconds of a single MonitorNodes loop execution.", buckets: growing(0.001, 2, 15)},
		{name: TaintRemovalDelay, help: "Number of seconds after node creation when NodeController removed the cloud-provider taint of a single node.", buckets: growing(1, 4, 6)},
		{name: InitialNodeSync, help: "Number of seconds after node creation when NodeController finished the initial synchronization of a single node.", buckets: growing(1, 4, 6)},
		{name: RouteSyncs, help: "A metric counting the number of route reconciles with the cloud provider, labeled by trigger and outcome.", labelled: true},
		{name: LoadBalancerSyncs, help: "A metric counting the amount of times any load balancer has been configured, as an effect of service/node changes on the cluster"},
		{name: NodeSyncErrors, help: "A metric counting the amount of times any load balancer has been configured and errored, as an effect of node changes on the cluster"},
		{name: NodeSyncLatency, help: "A metric measuring the latency for nodesync which updates loadbalancer hosts on cluster node updates.", buckets: growing(1, 2, 15)},
		{name: HostsLatency, help: "A metric measuring the latency for updating each load balancer hosts.", buckets: growing(1, 2, 15)},
	}
}

func growing(first, by float64, n int) (out []float64) {
	for i := range n {
		out = append(out, first*math.Pow(by, float64(i)))
	}
	return out
}

type histogram struct {
	counts []uint64
	sum    float64
	count  uint64
}

// Metrics are the counts of one process. A nil one counts nothing.
type Metrics struct {
	all []metric

	mu         sync.Mutex
	counters   map[string]map[string]float64
	histograms map[string]*histogram
}

// New makes them, all zero.
func New() *Metrics {
	m := &Metrics{all: catalogue(), counters: map[string]map[string]float64{}, histograms: map[string]*histogram{}}
	for _, c := range m.all {
		if c.buckets != nil {
			m.histograms[c.name] = &histogram{counts: make([]uint64, len(c.buckets))}
			continue
		}
		m.counters[c.name] = map[string]float64{}
		if !c.labelled {
			m.counters[c.name][countsWithoutLabels] = 0
		}
	}
	return m
}

// Count adds one; labels are pairs of name and value.
func (m *Metrics) Count(name string, labels ...string) {
	if m == nil {
		return
	}
	text := countsWithoutLabels
	for i := 0; i+1 < len(labels); i += 2 {
		if i > 0 {
			text += ","
		}
		text += labels[i] + "=" + strconv.Quote(labels[i+1])
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.counters[name][text]++
}

// Observe adds seconds to a histogram.
func (m *Metrics) Observe(name string, seconds float64) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.histograms[name]
	h.sum += seconds
	h.count++
	for _, c := range m.all {
		if c.name != name {
			continue
		}
		for i, le := range c.buckets {
			if seconds <= le {
				h.counts[i]++
			}
		}
	}
}

// Write writes them in Prometheus' text format.
func (m *Metrics) Write(w io.Writer) error {
	var b bytes.Buffer
	m.mu.Lock()
	for _, c := range m.all {
		kind := "counter"
		if c.buckets != nil {
			kind = "histogram"
		}
		fmt.Fprintf(&b, "# HELP %s [ALPHA] %s\n# TYPE %s %s\n", c.name, c.help, c.name, kind)
		if c.buckets == nil {
			for _, labels := range slices.Sorted(maps.Keys(m.counters[c.name])) {
				shown := ""
				if labels != countsWithoutLabels {
					shown = "{" + labels + "}"
				}
				fmt.Fprintf(&b, "%s%s %g\n", c.name, shown, m.counters[c.name][labels])
			}
			continue
		}
		h := m.histograms[c.name]
		for i, le := range c.buckets {
			fmt.Fprintf(&b, "%s_bucket{le=\"%g\"} %d\n", c.name, le, h.counts[i])
		}
		fmt.Fprintf(&b, "%s_bucket{le=\"+Inf\"} %d\n%s_sum %g\n%s_count %d\n", c.name, h.count, c.name, h.sum, c.name, h.count)
	}
	m.mu.Unlock()
	_, err := w.Write(b.Bytes())
	return err
}
