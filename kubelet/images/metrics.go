package images

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// metrics count what is asked of a Puller, under the names of upstream's kubelet.
type metrics struct {
	mu       sync.Mutex
	requests map[request]uint64
	pulls    map[string]*durations // by size
}

// request is the labels of one: present and required are true, false or unknown.
type request struct{ policy, present, required string }

// durations is a histogram: counts[i] of those up to pullBuckets[i], the last of all others.
type durations struct {
	counts []uint64
	sum    float64
}

// pullBuckets are bounds in seconds.
var pullBuckets = []float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}

// sizes are labels of images that are larger than so many MiB.
var sizes = []struct {
	over  uint64
	label string
}{
	{100 << 10, "GT100GB"}, {60 << 10, "60GB-100GB"}, {40 << 10, "40GB-60GB"}, {30 << 10, "30GB-40GB"}, {20 << 10, "20GB-30GB"}, {10 << 10, "10GB-20GB"},
	{5 << 10, "5GB-10GB"}, {1 << 10, "1GB-5GB"}, {500, "500MB-1GB"}, {100, "100MB-500MB"}, {10, "10MB-100MB"}, {0, "0-10MB"},
}

func sizeLabel(bytes uint64) string {
	for _, s := range sizes {
		if bytes > s.over<<20 {
			return s.label
		}
	}
	return "N/A" // the runtime does not say
}

// asked counts a request; nil is what was not found out.
func (m *metrics) asked(policy corev1.PullPolicy, present, required *bool) {
	label := func(b *bool) string {
		if b == nil {
			return "unknown"
		}
		return strconv.FormatBool(*b)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.requests == nil {
		m.requests = map[request]uint64{}
	}
	m.requests[request{strings.ToLower(string(policy)), label(present), label(required)}]++
}

// pulled notes a pull that took its time, waiting for others included.
func (m *metrics) pulled(size uint64, took time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pulls == nil {
		m.pulls = map[string]*durations{}
	}
	d := m.pulls[sizeLabel(size)]
	if d == nil {
		d = &durations{counts: make([]uint64, len(pullBuckets)+1)}
		m.pulls[sizeLabel(size)] = d
	}
	i, _ := slices.BinarySearch(pullBuckets, took.Seconds())
	d.counts[i]++
	d.sum += took.Seconds()
}

// WriteMetrics writes them in Prometheus' text format.
func (p *Puller) WriteMetrics(w io.Writer) {
	m := &p.metrics
	m.mu.Lock()
	defer m.mu.Unlock()
	const requests = "kubelet_image_manager_ensure_image_requests_total"
	fmt.Fprintf(w, "# HELP %[1]s Requests for images of containers.\n# TYPE %[1]s counter\n", requests)
	for _, r := range slices.SortedFunc(maps.Keys(m.requests), func(a, b request) int {
		return strings.Compare(a.policy+a.present+a.required, b.policy+b.present+b.required)
	}) {
		fmt.Fprintf(w, "%s{present_locally=%q,pull_policy=%q,pull_required=%q} %d\n", requests, r.present, r.policy, r.required, m.requests[r])
	}
	const pulls = "kubelet_image_pull_duration_seconds"
	fmt.Fprintf(w, "# HELP %[1]s Time that pulls took, by the size of the image.\n# TYPE %[1]s histogram\n", pulls)
	for _, size := range slices.Sorted(maps.Keys(m.pulls)) {
		d := m.pulls[size]
		var n uint64
		for i, c := range d.counts {
			n += c
			bound := "+Inf"
			if i < len(pullBuckets) {
				bound = strconv.FormatFloat(pullBuckets[i], 'g', -1, 64)
			}
			fmt.Fprintf(w, "%s_bucket{image_size_in_bytes=%q,le=%q} %d\n", pulls, size, bound, n)
		}
		fmt.Fprintf(w, "%s_sum{image_size_in_bytes=%q} %g\n%s_count{image_size_in_bytes=%q} %d\n", pulls, size, d.sum, pulls, size, n)
	}
}
