package metricsapi

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

type podKey struct{ namespace, name string }

// counters are one subject's at one moment.
type counters struct {
	at      time.Time
	cpu     float64 // seconds
	memory  uint64
	started time.Time
}

// reading is what a kubelet said at /metrics/resource.
type reading struct {
	node counters
	pods map[podKey]map[string]*counters // by container
}

// usage is over a window that ends at a moment.
type usage struct {
	at        time.Time
	window    time.Duration
	nanoCores uint64
	memory    uint64
}

type window struct {
	node usage
	pods map[podKey]map[string]usage
}

// between makes rates of two readings. A container that started after the first one is
// measured from its start, unless that was just now.
func between(a, b *reading) *window {
	w := &window{pods: map[podKey]map[string]usage{}}
	w.node, _ = rate(a.node, b.node)
	for key, containers := range b.pods {
		out := map[string]usage{}
		for name, now := range containers {
			var before counters
			if old := a.pods[key][name]; old != nil {
				before = *old
			}
			if before.at.IsZero() || now.started.After(before.at) || now.cpu < before.cpu {
				before = counters{at: now.started}
			}
			if u, ok := rate(before, *now); ok {
				out[name] = u
			}
		}
		if len(out) > 0 {
			w.pods[key] = out
		}
	}
	return w
}

// rate is the use of CPU per second between two moments. Less than the shortest window, with
// some leave for clocks, tells nothing.
func rate(a, b counters) (usage, bool) {
	passed := b.at.Sub(a.at)
	if a.at.IsZero() || passed < shortest/2 || b.cpu < a.cpu {
		return usage{at: b.at, memory: b.memory}, false
	}
	return usage{at: b.at, window: passed, nanoCores: uint64((b.cpu - a.cpu) / passed.Seconds() * 1e9), memory: b.memory}, true
}

// read asks for the counters.
func (s *Source) read(ctx context.Context, n *corev1.Node) (*reading, error) {
	body, err := s.get(ctx, n, "/metrics/resource")
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	return parse(body, s.Clock.Now())
}

// summary asks for the kubelet's own rates.
func (s *Source) summary(ctx context.Context, n *corev1.Node) (*window, error) {
	body, err := s.get(ctx, n, "/stats/summary?only_cpu_and_memory=true")
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	var sum statsapi.Summary
	if err := json.NewDecoder(body).Decode(&sum); err != nil {
		return nil, fmt.Errorf("decode the summary: %w", err)
	}
	w := &window{pods: map[podKey]map[string]usage{}}
	w.node, _ = ownRate(sum.Node.CPU, sum.Node.Memory)
	for _, p := range sum.Pods {
		out := map[string]usage{}
		for _, c := range p.Containers {
			if u, ok := ownRate(c.CPU, c.Memory); ok {
				out[c.Name] = u
			}
		}
		w.pods[podKey{p.PodRef.Namespace, p.PodRef.Name}] = out
	}
	return w, nil
}

// ownWindow is over how long upstream's kubelet makes its rates: its cAdvisor looks that often.
const ownWindow = 10 * time.Second

func ownRate(cpu *statsapi.CPUStats, memory *statsapi.MemoryStats) (usage, bool) {
	if cpu == nil || cpu.UsageNanoCores == nil || memory == nil || memory.WorkingSetBytes == nil {
		return usage{}, false
	}
	return usage{at: cpu.Time.Time, window: ownWindow, nanoCores: *cpu.UsageNanoCores, memory: *memory.WorkingSetBytes}, true
}

func (s *Source) get(ctx context.Context, n *corev1.Node, path string) (io.ReadCloser, error) {
	host, err := address(n)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+host+path, nil)
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet: %w", err)
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 200)) // for the message alone
		_ = resp.Body.Close()
		return nil, fmt.Errorf("ask the kubelet: GET %s: %s: %s", path, resp.Status, strings.TrimSpace(string(text)))
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, 64<<20), resp.Body}, nil
}

// parse reads the families that count here, in Prometheus' text format; samples without a
// timestamp are of now.
func parse(r io.Reader, now time.Time) (*reading, error) {
	out := &reading{pods: map[podKey]map[string]*counters{}}
	in := bufio.NewScanner(r)
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		line := in.Text()
		if line == "" || line[0] == '#' {
			continue
		}
		s, err := parseSample(line, now)
		if err != nil {
			return nil, fmt.Errorf("metrics of the kubelet: %q: %w", line, err)
		}
		c := &out.node
		if strings.HasPrefix(s.name, "container_") {
			key := podKey{s.labels["namespace"], s.labels["pod"]}
			if out.pods[key] == nil {
				out.pods[key] = map[string]*counters{}
			}
			if c = out.pods[key][s.labels["container"]]; c == nil {
				c = &counters{}
				out.pods[key][s.labels["container"]] = c
			}
		}
		switch s.name {
		case "node_cpu_usage_seconds_total", "container_cpu_usage_seconds_total":
			c.cpu, c.at = s.value, s.at
		case "node_memory_working_set_bytes", "container_memory_working_set_bytes":
			c.memory = uint64(max(0, s.value))
		case "container_start_time_seconds":
			c.started = time.Unix(0, int64(s.value*1e9))
		}
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("metrics of the kubelet: %w", err)
	}
	if out.node.at.IsZero() {
		return nil, errors.New("metrics of the kubelet: it does not tell the node's use of CPU")
	}
	return out, nil
}

type sample struct {
	name   string
	labels map[string]string
	value  float64
	at     time.Time
}

// parseSample reads name{label="value",…} value [timestamp in milliseconds].
func parseSample(line string, now time.Time) (sample, error) {
	end := strings.IndexAny(line, "{ \t")
	if end <= 0 {
		return sample{}, errors.New("no value")
	}
	s := sample{name: line[:end], at: now}
	rest := line[end:]
	if rest[0] == '{' {
		var err error
		if s.labels, rest, err = parseLabels(rest[1:]); err != nil {
			return sample{}, err
		}
	}
	f := strings.Fields(rest)
	if len(f) != 1 && len(f) != 2 {
		return sample{}, errors.New("want a value and perhaps a timestamp")
	}
	var err error
	if s.value, err = strconv.ParseFloat(f[0], 64); err != nil {
		return sample{}, errors.New("no number")
	}
	if len(f) == 2 {
		ms, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil {
			return sample{}, errors.New("no timestamp")
		}
		s.at = time.UnixMilli(ms)
	}
	return s, nil
}

// parseLabels reads label="value",… up to the brace that closes them.
func parseLabels(text string) (map[string]string, string, error) {
	out := map[string]string{}
	for {
		text = strings.TrimLeft(text, " ,")
		if rest, ok := strings.CutPrefix(text, "}"); ok {
			return out, rest, nil
		}
		name, rest, ok := strings.Cut(text, `="`)
		if !ok {
			return nil, "", errors.New("labels do not end")
		}
		var value strings.Builder
		i := 0
		for ; i < len(rest) && rest[i] != '"'; i++ {
			if rest[i] != '\\' || i+1 == len(rest) {
				value.WriteByte(rest[i])
				continue
			}
			i++
			switch rest[i] {
			case 'n':
				value.WriteByte('\n')
			default: // \\ and \"
				value.WriteByte(rest[i])
			}
		}
		if i == len(rest) {
			return nil, "", errors.New("a label does not end")
		}
		out[strings.TrimSpace(name)] = value.String()
		text = rest[i+1:]
	}
}
