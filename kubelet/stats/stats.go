// Package stats tells what node, pods and containers use: the Summary API and
// resource metrics, from the runtime's figures and the node's own.
package stats

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/skiff-k8s/skiff/host/cgroup"
	"github.com/skiff-k8s/skiff/kubelet/cri"
)

// Config of a Provider.
type Config struct {
	NodeName string
	CRI      *cri.Client
	// Cgroups and Group are where a node's use is read that Shared says is one of several on
	// its machine; that of another is the machine's, from /proc. All three may be left out.
	Cgroups *cgroup.Tree
	Group   string
	Shared  func() bool
	RootDir string
	// MemoryCapacity of the node, which may change.
	MemoryCapacity func() uint64
}

// Provider is safe for concurrent use.
type Provider struct {
	cfg     Config
	started time.Time

	mu   sync.Mutex
	last map[string]sample // for rates
}

type sample struct {
	at    time.Time
	nanos uint64
	rate  uint64
}

// New makes a provider.
func New(cfg Config) *Provider {
	return &Provider{cfg: cfg, started: time.Now(), last: map[string]sample{}}
}

// rate is a counter's growth per second since it was last read.
func (p *Provider) rate(key string, at time.Time, nanos uint64) *uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.last[key]
	if ok && at.Sub(s.at) < time.Second {
		return &s.rate
	}
	n := sample{at: at, nanos: nanos}
	if ok && nanos >= s.nanos {
		n.rate = uint64(float64(nanos-s.nanos) / at.Sub(s.at).Seconds())
	}
	p.last[key] = n
	return &n.rate
}

// Summary implements the Summary API.
func (p *Provider) Summary(ctx context.Context) (*statsapi.Summary, error) {
	resp, err := p.cfg.CRI.Runtime.ListContainerStats(ctx, &runtimeapi.ListContainerStatsRequest{})
	if err != nil {
		return nil, fmt.Errorf("read container stats: %w", err)
	}
	pods, err := p.cfg.CRI.Pods(ctx)
	if err != nil {
		return nil, err
	}
	network := p.networks(ctx)
	now := time.Now()
	out := &statsapi.Summary{Node: p.node(now)}
	byPod := map[string]*statsapi.PodStats{}
	keep := map[string]bool{"/node": true}
	for uid, rt := range pods {
		if len(rt.Sandboxes) == 0 || !rt.Sandboxes[0].Ready {
			continue
		}
		byPod[string(uid)] = &statsapi.PodStats{
			PodRef:    statsapi.PodReference{Name: rt.Name, Namespace: rt.Namespace, UID: string(uid)},
			StartTime: metav1.NewTime(rt.Sandboxes[0].CreatedAt), Network: network[rt.Sandboxes[0].ID],
		}
	}
	for _, c := range resp.Stats {
		ps := byPod[c.GetAttributes().GetLabels()[cri.PodUIDLabel]]
		if ps == nil {
			continue
		}
		id := c.GetAttributes().GetId()
		keep[id] = true
		cs := p.container(c, now)
		for _, run := range pods[types.UID(ps.PodRef.UID)].Containers {
			if run.ID == id {
				cs.StartTime = metav1.NewTime(run.StartedAt)
			}
		}
		ps.Containers = append(ps.Containers, cs)
		ps.CPU = addCPU(ps.CPU, cs.CPU)
		ps.Memory = addMemory(ps.Memory, cs.Memory)
	}
	for _, ps := range byPod {
		sort.Slice(ps.Containers, func(i, j int) bool { return ps.Containers[i].Name < ps.Containers[j].Name })
		out.Pods = append(out.Pods, *ps)
	}
	sort.Slice(out.Pods, func(i, j int) bool {
		a, b := out.Pods[i].PodRef, out.Pods[j].PodRef
		return a.Namespace < b.Namespace || a.Namespace == b.Namespace && a.Name < b.Name
	})
	p.mu.Lock()
	for k := range p.last {
		if !keep[k] {
			delete(p.last, k)
		}
	}
	p.mu.Unlock()
	return out, nil
}

func (p *Provider) container(c *runtimeapi.ContainerStats, now time.Time) statsapi.ContainerStats {
	cs := statsapi.ContainerStats{Name: c.GetAttributes().GetLabels()[cri.ContainerNameLabel]}
	if u := c.Cpu; u != nil && u.UsageCoreNanoSeconds != nil {
		at := stampOf(u.Timestamp, now)
		cs.CPU = &statsapi.CPUStats{Time: metav1.NewTime(at), UsageCoreNanoSeconds: &u.UsageCoreNanoSeconds.Value, UsageNanoCores: p.rate(c.GetAttributes().GetId(), at, u.UsageCoreNanoSeconds.Value)}
	}
	if m := c.Memory; m != nil {
		cs.Memory = &statsapi.MemoryStats{
			Time: metav1.NewTime(stampOf(m.Timestamp, now)), WorkingSetBytes: value(m.WorkingSetBytes), UsageBytes: value(m.UsageBytes), AvailableBytes: value(m.AvailableBytes),
			RSSBytes: value(m.RssBytes), PageFaults: value(m.PageFaults), MajorPageFaults: value(m.MajorPageFaults),
		}
	}
	if w := c.WritableLayer; w != nil {
		cs.Rootfs = &statsapi.FsStats{Time: metav1.NewTime(now), UsedBytes: value(w.UsedBytes), InodesUsed: value(w.InodesUsed)}
	}
	return cs
}

// networks asks for the interfaces of sandboxes, where the runtime counts them.
func (p *Provider) networks(ctx context.Context) map[string]*statsapi.NetworkStats {
	resp, err := p.cfg.CRI.Runtime.ListPodSandboxStats(ctx, &runtimeapi.ListPodSandboxStatsRequest{})
	if err != nil {
		return nil
	}
	out := map[string]*statsapi.NetworkStats{}
	for _, s := range resp.Stats {
		n := s.GetLinux().GetNetwork()
		if n == nil {
			continue
		}
		ns := &statsapi.NetworkStats{Time: metav1.NewTime(stampOf(n.Timestamp, time.Now()))}
		iface := func(i *runtimeapi.NetworkInterfaceUsage) statsapi.InterfaceStats {
			return statsapi.InterfaceStats{Name: i.Name, RxBytes: value(i.RxBytes), RxErrors: value(i.RxErrors), TxBytes: value(i.TxBytes), TxErrors: value(i.TxErrors)}
		}
		if d := n.DefaultInterface; d != nil {
			ns.InterfaceStats = iface(d)
		}
		for _, i := range n.Interfaces {
			ns.Interfaces = append(ns.Interfaces, iface(i))
		}
		out[s.GetAttributes().GetId()] = ns
	}
	return out
}

// Node is what the node uses.
func (p *Provider) Node() statsapi.NodeStats { return p.node(time.Now()) }

func (p *Provider) node(now time.Time) statsapi.NodeStats {
	n := statsapi.NodeStats{NodeName: p.cfg.NodeName, StartTime: metav1.NewTime(p.started), Fs: fsStats(p.cfg.RootDir, now)}
	nanos, mem := p.nodeUse()
	n.CPU = &statsapi.CPUStats{Time: metav1.NewTime(now), UsageCoreNanoSeconds: &nanos, UsageNanoCores: p.rate("/node", now, nanos)}
	avail := uint64(0)
	if capacity := p.cfg.MemoryCapacity(); capacity > mem {
		avail = capacity - mem
	}
	n.Memory = &statsapi.MemoryStats{Time: metav1.NewTime(now), WorkingSetBytes: &mem, AvailableBytes: &avail, UsageBytes: &mem}
	if n.Fs != nil {
		n.Runtime = &statsapi.RuntimeStats{ImageFs: n.Fs, ContainerFs: n.Fs}
	}
	return n
}

func (p *Provider) nodeUse() (cpuNanos, workingSet uint64) {
	if p.cfg.Cgroups != nil && p.cfg.Group != "" && p.cfg.Shared != nil && p.cfg.Shared() {
		if u, err := p.cfg.Cgroups.Usage(p.cfg.Group); err == nil {
			return u.CPUNanos, u.WorkingSetBytes
		}
	}
	if raw, err := os.ReadFile("/proc/stat"); err == nil {
		line, _, _ := strings.Cut(string(raw), "\n")
		f := strings.Fields(line)
		for i := 1; i < len(f) && i <= 8; i++ {
			if i == 4 || i == 5 { // idle, waiting for disks
				continue
			}
			n, _ := strconv.ParseUint(f[i], 10, 64)
			cpuNanos += n * 10_000_000 // USER_HZ is 100 everywhere
		}
	}
	if raw, err := os.ReadFile("/proc/meminfo"); err == nil {
		var total, avail uint64
		for _, l := range strings.Split(string(raw), "\n") {
			f := strings.Fields(l)
			if len(f) < 2 {
				continue
			}
			n, _ := strconv.ParseUint(f[1], 10, 64)
			switch f[0] {
			case "MemTotal:":
				total = n << 10
			case "MemAvailable:":
				avail = n << 10
			}
		}
		if total > avail {
			workingSet = total - avail
		}
	}
	return cpuNanos, workingSet
}

func fsStats(dir string, now time.Time) *statsapi.FsStats {
	var st unix.Statfs_t
	for unix.Statfs(dir, &st) != nil {
		if dir == "/" || dir == "." {
			return nil
		}
		dir = filepath.Dir(dir)
	}
	size := uint64(st.Bsize)
	capacity, avail, used := st.Blocks*size, st.Bavail*size, (st.Blocks-st.Bfree)*size
	inodes, free, inUse := st.Files, st.Ffree, st.Files-st.Ffree
	return &statsapi.FsStats{Time: metav1.NewTime(now), CapacityBytes: &capacity, AvailableBytes: &avail, UsedBytes: &used, Inodes: &inodes, InodesFree: &free, InodesUsed: &inUse}
}

// Metrics are the resource metrics in Prometheus' text format.
func (p *Provider) Metrics(ctx context.Context) ([]byte, error) {
	s, err := p.Summary(ctx)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	family := func(name, kind, help string) { fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind) }
	secs := func(n *uint64) string { return strconv.FormatFloat(float64(*n)/1e9, 'g', -1, 64) }
	family("container_cpu_usage_seconds_total", "counter", "[STABLE] Cumulative cpu time consumed by the container in core-seconds")
	each := func(f func(pod *statsapi.PodStats, labels string, c *statsapi.ContainerStats)) {
		for i := range s.Pods {
			ps := &s.Pods[i]
			for j := range ps.Containers {
				c := &ps.Containers[j]
				f(ps, fmt.Sprintf("{container=%q,namespace=%q,pod=%q}", c.Name, ps.PodRef.Namespace, ps.PodRef.Name), c)
			}
		}
	}
	each(func(_ *statsapi.PodStats, l string, c *statsapi.ContainerStats) {
		if c.CPU != nil && c.CPU.UsageCoreNanoSeconds != nil {
			fmt.Fprintf(&b, "container_cpu_usage_seconds_total%s %s %d\n", l, secs(c.CPU.UsageCoreNanoSeconds), c.CPU.Time.UnixMilli())
		}
	})
	family("container_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the container in bytes")
	each(func(_ *statsapi.PodStats, l string, c *statsapi.ContainerStats) {
		if c.Memory != nil && c.Memory.WorkingSetBytes != nil {
			fmt.Fprintf(&b, "container_memory_working_set_bytes%s %d %d\n", l, *c.Memory.WorkingSetBytes, c.Memory.Time.UnixMilli())
		}
	})
	family("container_start_time_seconds", "gauge", "[STABLE] Start time of the container since unix epoch in seconds")
	each(func(_ *statsapi.PodStats, l string, c *statsapi.ContainerStats) {
		if !c.StartTime.IsZero() {
			fmt.Fprintf(&b, "container_start_time_seconds%s %s\n", l, strconv.FormatFloat(float64(c.StartTime.UnixNano())/1e9, 'f', -1, 64))
		}
	})
	family("node_cpu_usage_seconds_total", "counter", "[STABLE] Cumulative cpu time consumed by the node in core-seconds")
	fmt.Fprintf(&b, "node_cpu_usage_seconds_total %s %d\n", secs(s.Node.CPU.UsageCoreNanoSeconds), s.Node.CPU.Time.UnixMilli())
	family("node_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the node in bytes")
	fmt.Fprintf(&b, "node_memory_working_set_bytes %d %d\n", *s.Node.Memory.WorkingSetBytes, s.Node.Memory.Time.UnixMilli())
	family("pod_cpu_usage_seconds_total", "counter", "[STABLE] Cumulative cpu time consumed by the pod in core-seconds")
	for _, ps := range s.Pods {
		if ps.CPU != nil && ps.CPU.UsageCoreNanoSeconds != nil {
			fmt.Fprintf(&b, "pod_cpu_usage_seconds_total{namespace=%q,pod=%q} %s %d\n", ps.PodRef.Namespace, ps.PodRef.Name, secs(ps.CPU.UsageCoreNanoSeconds), ps.CPU.Time.UnixMilli())
		}
	}
	family("pod_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the pod in bytes")
	for _, ps := range s.Pods {
		if ps.Memory != nil && ps.Memory.WorkingSetBytes != nil {
			fmt.Fprintf(&b, "pod_memory_working_set_bytes{namespace=%q,pod=%q} %d %d\n", ps.PodRef.Namespace, ps.PodRef.Name, *ps.Memory.WorkingSetBytes, ps.Memory.Time.UnixMilli())
		}
	}
	family("resource_scrape_error", "gauge", "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise")
	b.WriteString("resource_scrape_error 0\n")
	return []byte(b.String()), nil
}
