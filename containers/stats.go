package containers

import (
	"bufio"
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/cgroup"
	"github.com/skiff-k8s/skiff/containers/sandbox"
	"github.com/skiff-k8s/skiff/containers/snapshot"
)

// usageCache remembers earlier readings: rates need two, and walking a
// writable layer is not done for every question.
type usageCache struct {
	mu   sync.Mutex
	cpu  map[string]cpuReading
	disk map[string]diskReading
}

type cpuReading struct {
	at    time.Time
	nanos uint64
	rate  uint64 // nanocores
}

type diskReading struct {
	at            time.Time
	bytes, inodes uint64
}

const (
	rateWindow = time.Second      // shorter intervals tell nothing
	diskFresh  = 10 * time.Second // how old a walk's result may be
)

func newUsageCache() *usageCache {
	return &usageCache{cpu: map[string]cpuReading{}, disk: map[string]diskReading{}}
}

func (u *usageCache) forget(id string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.cpu, id)
	delete(u.disk, id)
}

// rate returns the CPU use between the previous reading and this one.
func (u *usageCache) rate(id string, at time.Time, nanos uint64) uint64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	last, ok := u.cpu[id]
	passed := at.Sub(last.at)
	switch {
	case !ok || nanos < last.nanos:
		u.cpu[id] = cpuReading{at: at, nanos: nanos}
		return 0
	case passed < rateWindow:
		return last.rate
	}
	rate := uint64(float64(nanos-last.nanos) / passed.Seconds())
	u.cpu[id] = cpuReading{at: at, nanos: nanos, rate: rate}
	return rate
}

func (u *usageCache) writable(id, dir string) (bytes, inodes uint64) {
	u.mu.Lock()
	d, ok := u.disk[id]
	u.mu.Unlock()
	if ok && time.Since(d.at) < diskFresh {
		return d.bytes, d.inodes
	}
	b, i, err := snapshot.Usage(dir)
	if err != nil {
		return d.bytes, d.inodes
	}
	u.mu.Lock()
	u.disk[id] = diskReading{time.Now(), b, i}
	u.mu.Unlock()
	return b, i
}

func u64(v uint64) *runtimeapi.UInt64Value { return &runtimeapi.UInt64Value{Value: v} }

func (r *Runtime) containerStats(c *containerState) *runtimeapi.ContainerStats {
	rec := c.record()
	now := time.Now()
	bytes, inodes := r.usage.writable(rec.ID, r.upper(rec.ID))
	out := &runtimeapi.ContainerStats{
		Attributes: &runtimeapi.ContainerAttributes{
			Id: rec.ID, Metadata: c.cfg.GetMetadata(), Labels: c.cfg.GetLabels(), Annotations: c.cfg.GetAnnotations(),
		},
		WritableLayer: &runtimeapi.FilesystemUsage{
			Timestamp: now.UnixNano(), FsId: &runtimeapi.FilesystemIdentifier{Mountpoint: r.cfg.RootDir},
			UsedBytes: u64(bytes), InodesUsed: u64(inodes),
		},
	}
	if rec.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return out
	}
	s, err := cgroup.At(rec.Cgroup).Stats()
	if err != nil {
		return out // ended meanwhile
	}
	out.Cpu, out.Memory = r.cpuUsage(rec.ID, s), memoryUsage(s)
	out.Swap = &runtimeapi.SwapUsage{Timestamp: s.Time.UnixNano(), SwapUsageBytes: u64(s.SwapUsage)}
	if s.SwapLimit > 0 {
		out.Swap.SwapAvailableBytes = u64(s.SwapLimit - min(s.SwapLimit, s.SwapUsage))
	}
	return out
}

func (r *Runtime) cpuUsage(id string, s *cgroup.Stats) *runtimeapi.CpuUsage {
	return &runtimeapi.CpuUsage{
		Timestamp: s.Time.UnixNano(), UsageCoreNanoSeconds: u64(s.CPUNanos),
		UsageNanoCores: u64(r.usage.rate(id, s.Time, s.CPUNanos)),
	}
}

func memoryUsage(s *cgroup.Stats) *runtimeapi.MemoryUsage {
	out := &runtimeapi.MemoryUsage{
		Timestamp: s.Time.UnixNano(), WorkingSetBytes: u64(s.WorkingSet), UsageBytes: u64(s.MemoryUsage), RssBytes: u64(s.RSS),
		PageFaults: u64(s.PageFaults), MajorPageFaults: u64(s.MajorFaults), AvailableBytes: u64(0),
	}
	if s.MemoryLimit > 0 {
		out.AvailableBytes = u64(s.MemoryLimit - min(s.MemoryLimit, s.WorkingSet))
	}
	return out
}

// ContainerStats reads one container's figures.
func (r *Runtime) ContainerStats(_ context.Context, req *runtimeapi.ContainerStatsRequest) (*runtimeapi.ContainerStatsResponse, error) {
	c, err := r.containerFor(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ContainerStatsResponse{Stats: r.containerStats(c)}, nil
}

// ListContainerStats reads the figures of running containers that match.
func (r *Runtime) ListContainerStats(_ context.Context, req *runtimeapi.ListContainerStatsRequest) (*runtimeapi.ListContainerStatsResponse, error) {
	return &runtimeapi.ListContainerStatsResponse{Stats: r.listContainerStats(req.GetFilter())}, nil
}

// StreamContainerStats is ListContainerStats in pieces.
func (r *Runtime) StreamContainerStats(req *runtimeapi.StreamContainerStatsRequest, out runtimeapi.RuntimeService_StreamContainerStatsServer) error {
	return inPieces(r.listContainerStats(req.GetFilter()), func(part []*runtimeapi.ContainerStats) error {
		return out.Send(&runtimeapi.StreamContainerStatsResponse{ContainerStats: part})
	})
}

func (r *Runtime) listContainerStats(f *runtimeapi.ContainerStatsFilter) []*runtimeapi.ContainerStats {
	var out []*runtimeapi.ContainerStats
	for _, c := range r.allContainers() {
		rec := c.record()
		if rec.State == runtimeapi.ContainerState_CONTAINER_RUNNING && idMatches(f.GetId(), rec.ID) &&
			idMatches(f.GetPodSandboxId(), rec.SandboxID) && labelsMatch(f.GetLabelSelector(), c.cfg.GetLabels()) {
			out = append(out, r.containerStats(c))
		}
	}
	return out
}

func (r *Runtime) sandboxStats(s *sandboxState) *runtimeapi.PodSandboxStats {
	rec := s.record()
	out := &runtimeapi.PodSandboxStats{
		Attributes: &runtimeapi.PodSandboxAttributes{
			Id: rec.ID, Metadata: s.cfg.GetMetadata(), Labels: s.cfg.GetLabels(), Annotations: s.cfg.GetAnnotations(),
		},
		Linux: &runtimeapi.LinuxPodSandboxStats{},
	}
	for _, c := range r.containersOf(rec.ID) {
		if c.record().State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			out.Linux.Containers = append(out.Linux.Containers, r.containerStats(c))
		}
	}
	if !rec.Ready {
		return out
	}
	group := cgroup.At(rec.Cgroup)
	if st, err := group.Stats(); err == nil {
		out.Linux.Cpu, out.Linux.Memory = r.cpuUsage(rec.ID, st), memoryUsage(st)
		if pids, err := group.Pids(); err == nil {
			out.Linux.Process = &runtimeapi.ProcessUsage{Timestamp: st.Time.UnixNano(), ProcessCount: u64(uint64(len(pids)))}
		}
	}
	if netns := r.networkSandbox(s).NetNSPath; netns != "" {
		out.Linux.Network = networkUsage(netns)
	}
	return out
}

// networkUsage is the interfaces' counters; those of eth0 come first.
func networkUsage(netns string) *runtimeapi.NetworkUsage {
	interfaces := interfacesOf(netns)
	if interfaces == nil {
		return nil // the sandbox is going
	}
	out := &runtimeapi.NetworkUsage{Timestamp: time.Now().UnixNano()}
	for _, i := range interfaces {
		usage := &runtimeapi.NetworkInterfaceUsage{
			Name: i.name, RxBytes: u64(i.rx.bytes), RxErrors: u64(i.rx.errors), TxBytes: u64(i.tx.bytes), TxErrors: u64(i.tx.errors),
		}
		if i.name == "eth0" {
			out.DefaultInterface = usage
			continue
		}
		out.Interfaces = append(out.Interfaces, usage)
	}
	return out
}

// netInterface is one line of /proc/net/dev.
type netInterface struct {
	name   string
	rx, tx traffic
}

type traffic struct{ bytes, packets, errors, dropped uint64 }

// interfacesOf reads the counters of all interfaces but loopback from inside the namespace;
// nil: there is no such namespace any more.
func interfacesOf(netns string) []netInterface {
	var content []byte
	err := sandbox.InNetwork(netns, func() (err error) {
		content, err = os.ReadFile("/proc/thread-self/net/dev")
		return err
	})
	if err != nil {
		return nil
	}
	return parseNetDev(string(content))
}

// parseNetDev reads the text of /proc/net/dev: eight columns received, eight sent.
func parseNetDev(text string) []netInterface {
	out := []netInterface{}
	in := bufio.NewScanner(strings.NewReader(text))
	for in.Scan() {
		name, rest, ok := strings.Cut(in.Text(), ":")
		f := strings.Fields(rest)
		if name = strings.TrimSpace(name); !ok || len(f) < 16 || name == "lo" {
			continue // titles have no colon
		}
		n := func(i int) uint64 {
			v, err := strconv.ParseUint(f[i], 10, 64)
			if err != nil {
				return 0
			}
			return v
		}
		out = append(out, netInterface{name, traffic{n(0), n(1), n(2), n(3)}, traffic{n(8), n(9), n(10), n(11)}})
	}
	return out
}

// PodSandboxStats reads one pod's figures.
func (r *Runtime) PodSandboxStats(_ context.Context, req *runtimeapi.PodSandboxStatsRequest) (*runtimeapi.PodSandboxStatsResponse, error) {
	s, err := r.sandboxFor(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	return &runtimeapi.PodSandboxStatsResponse{Stats: r.sandboxStats(s)}, nil
}

// ListPodSandboxStats reads the figures of ready sandboxes that match.
func (r *Runtime) ListPodSandboxStats(_ context.Context, req *runtimeapi.ListPodSandboxStatsRequest) (*runtimeapi.ListPodSandboxStatsResponse, error) {
	return &runtimeapi.ListPodSandboxStatsResponse{Stats: r.listSandboxStats(req.GetFilter())}, nil
}

// StreamPodSandboxStats is ListPodSandboxStats in pieces.
func (r *Runtime) StreamPodSandboxStats(req *runtimeapi.StreamPodSandboxStatsRequest, out runtimeapi.RuntimeService_StreamPodSandboxStatsServer) error {
	return inPieces(r.listSandboxStats(req.GetFilter()), func(part []*runtimeapi.PodSandboxStats) error {
		return out.Send(&runtimeapi.StreamPodSandboxStatsResponse{PodSandboxStats: part})
	})
}

func (r *Runtime) listSandboxStats(f *runtimeapi.PodSandboxStatsFilter) []*runtimeapi.PodSandboxStats {
	var out []*runtimeapi.PodSandboxStats
	for _, s := range r.allSandboxes() {
		rec := s.record()
		if rec.Ready && idMatches(f.GetId(), rec.ID) && labelsMatch(f.GetLabelSelector(), s.cfg.GetLabels()) {
			out = append(out, r.sandboxStats(s))
		}
	}
	return out
}
