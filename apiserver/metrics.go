package apiserver

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	goruntime "runtime"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"
)

// metrics counts requests under upstream's names, in the Prometheus text format.
type metrics struct {
	clock   clock.PassiveClock
	started time.Time
	dropped atomic.Int64

	mu       sync.Mutex
	requests map[requestKey]*requestCount
	inflight map[string]*atomic.Int64 // by kind: readOnly, mutating, watch
	more     []func(io.Writer)        // what other parts count
}

type requestKey struct {
	group, version, resource, subresource, verb string
	code                                        int
}

type requestCount struct {
	count   int64
	seconds float64
}

func newMetrics(c clock.PassiveClock) *metrics {
	m := &metrics{clock: c, started: c.Now(), requests: map[requestKey]*requestCount{}, inflight: map[string]*atomic.Int64{}}
	for _, k := range []string{"readOnly", "mutating", "longRunning"} {
		m.inflight[k] = &atomic.Int64{}
	}
	return m
}

// measured is a response that remembers its status. It passes on what handlers need of
// the writer beneath: flushing and hijacking.
type measured struct {
	http.ResponseWriter
	m     *metrics
	info  *request.RequestInfo
	begun time.Time
	kind  string
	code  int
}

func (m *metrics) begin(w http.ResponseWriter, info *request.RequestInfo) *measured {
	r := &measured{ResponseWriter: w, m: m, info: info, begun: m.clock.Now(), kind: "mutating"}
	switch {
	case info.Verb == "watch" || longRunning(nil, info):
		r.kind = "longRunning"
	case info.Verb == "get" || info.Verb == "list" || info.Verb == "head":
		r.kind = "readOnly"
	}
	m.inflight[r.kind].Add(1)
	return r
}

func (r *measured) end() {
	r.m.inflight[r.kind].Add(-1)
	code := r.code
	if code == 0 {
		code = http.StatusOK
	}
	k := requestKey{verb: r.info.Verb, code: code}
	if !slices.Contains(knownVerbs, k.verb) {
		k.verb = "other"
	}
	if r.info.IsResourceRequest {
		k.group, k.version, k.resource, k.subresource = r.info.APIGroup, r.info.APIVersion, r.info.Resource, r.info.Subresource
	}
	if code == http.StatusNotFound || code == http.StatusForbidden || code == http.StatusUnauthorized {
		k.group, k.version, k.resource, k.subresource = "", "", "", "" // anybody can invent names
	}
	r.m.mu.Lock()
	defer r.m.mu.Unlock()
	c := r.m.requests[k]
	if c == nil {
		c = &requestCount{}
		r.m.requests[k] = c
	}
	c.count++
	c.seconds += r.m.clock.Since(r.begun).Seconds()
}

// knownVerbs bound what clients can make the server count.
var knownVerbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection", "proxy", "post", "put", "head", "options"}

func (r *measured) WriteHeader(code int) {
	if r.code == 0 {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *measured) Flush() {
	if f, ok := r.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

func (r *measured) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := r.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, fmt.Errorf("the connection (%T) can not be upgraded; upgrades need HTTP/1.1", r.ResponseWriter)
	}
	r.code = http.StatusSwitchingProtocols
	return h.Hijack()
}

func (r *measured) Unwrap() http.ResponseWriter { return r.ResponseWriter }

func (m *metrics) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8; escaping=underscores")
	m.mu.Lock()
	keys := make([]requestKey, 0, len(m.requests))
	counts := make(map[requestKey]requestCount, len(m.requests))
	for k, c := range m.requests {
		keys = append(keys, k)
		counts[k] = *c
	}
	m.mu.Unlock()
	sort.Slice(keys, func(i, j int) bool { return fmt.Sprint(keys[i]) < fmt.Sprint(keys[j]) })
	fmt.Fprint(w, "# HELP apiserver_request_total Counter of apiserver requests.\n# TYPE apiserver_request_total counter\n")
	for _, k := range keys {
		fmt.Fprintf(w, "apiserver_request_total{%s,code=\"%d\"} %d\n", k.labels(), k.code, counts[k].count)
	}
	fmt.Fprint(w, "# HELP apiserver_request_duration_seconds Response latency.\n# TYPE apiserver_request_duration_seconds summary\n")
	for _, k := range keys {
		fmt.Fprintf(w, "apiserver_request_duration_seconds_sum{%s,code=\"%d\"} %g\n", k.labels(), k.code, counts[k].seconds)
		fmt.Fprintf(w, "apiserver_request_duration_seconds_count{%s,code=\"%d\"} %d\n", k.labels(), k.code, counts[k].count)
	}
	fmt.Fprint(w, "# HELP apiserver_current_inflight_requests Requests in work.\n# TYPE apiserver_current_inflight_requests gauge\n")
	for _, k := range []string{"longRunning", "mutating", "readOnly"} {
		fmt.Fprintf(w, "apiserver_current_inflight_requests{request_kind=%q} %d\n", k, m.inflight[k].Load())
	}
	fmt.Fprintf(w, "# HELP apiserver_dropped_requests_total Requests refused with 429.\n# TYPE apiserver_dropped_requests_total counter\napiserver_dropped_requests_total %d\n", m.dropped.Load())
	for _, write := range m.more {
		write(w)
	}
	var ms goruntime.MemStats
	goruntime.ReadMemStats(&ms)
	fmt.Fprintf(w, "# HELP go_goroutines Number of goroutines.\n# TYPE go_goroutines gauge\ngo_goroutines %d\n", goruntime.NumGoroutine())
	fmt.Fprintf(w, "# HELP go_memstats_heap_alloc_bytes Heap in use.\n# TYPE go_memstats_heap_alloc_bytes gauge\ngo_memstats_heap_alloc_bytes %d\n", ms.HeapAlloc)
	fmt.Fprintf(w, "# HELP process_start_time_seconds Start time since the epoch.\n# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds %d\n", m.started.Unix())
	fmt.Fprintf(w, "# HELP kubernetes_build_info Build.\n# TYPE kubernetes_build_info gauge\nkubernetes_build_info{git_version=%q,major=\"1\",minor=\"37\"} 1\n", Version().GitVersion)
}

func (k requestKey) labels() string {
	return fmt.Sprintf("verb=%q,group=%q,version=%q,resource=%q,subresource=%q", k.verb, k.group, k.version, k.resource, k.subresource)
}
