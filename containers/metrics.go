package containers

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/cgroup"
)

// The metrics that a kubelet passes on at /metrics/cadvisor (KEP-2371). Names, meaning and
// labels are cAdvisor's, whose users' queries go on working. CRI carries whole numbers only,
// so that seconds lose their fraction.

const (
	counter = runtimeapi.MetricType_COUNTER
	gauge   = runtimeapi.MetricType_GAUGE
)

// metric is one family: how it is described, and its values for one container or sandbox.
type metric struct {
	name, help string
	kind       runtimeapi.MetricType
	labels     []string // beside those that all have
	of         func(*reading) []value
}

type value struct {
	n      uint64
	labels []string
}

// reading is all that is measured of one container, or of a sandbox's network.
type reading struct {
	at        time.Time
	stats     *cgroup.Stats
	detail    *cgroup.Detail
	started   time.Time
	processes uint64
	// descriptors and sockets are those that processes hold open.
	descriptors, sockets uint64
	openFiles            uint64 // the first process' limit
	resources            *runtimeapi.LinuxContainerResources
	disk                 disk
	interfaces           []netInterface
}

// disk is the file system of the writable layer, and how much of it the layer takes.
type disk struct{ device, used, size, inodes, inodesFree uint64 }

func (d disk) label() string {
	return strconv.FormatUint(uint64(unix.Major(d.device)), 10) + ":" + strconv.FormatUint(uint64(unix.Minor(d.device)), 10)
}

// commonLabels are what every series has, in this order.
var commonLabels = []string{"container", "id", "image", "name", "namespace", "pod"}

func one(n uint64, labels ...string) []value { return []value{{n, labels}} }

func seconds(nanos uint64) []value { return one(nanos / uint64(time.Second)) }

func byDevice(operation string, m map[string]uint64) []value {
	var out []value
	for device, n := range m {
		v := value{n: n, labels: []string{device}}
		if operation != "" {
			v.labels = append(v.labels, operation)
		}
		out = append(out, v)
	}
	return out
}

func stalled(resource string, full bool) func(*reading) []value {
	return func(r *reading) []value {
		p, ok := r.detail.Pressure[resource]
		switch {
		case !ok:
			return nil
		case full:
			return one(p.FullMicros / 1e6)
		}
		return one(p.SomeMicros / 1e6)
	}
}

// containerMetrics are those of a container's control group, processes and file system.
var containerMetrics = []metric{
	{"container_blkio_device_usage_total", "Bytes moved to and from a device", counter, []string{"device", "operation"}, func(r *reading) []value {
		return append(byDevice("Read", r.detail.ReadBytes), byDevice("Write", r.detail.WriteBytes)...)
	}},
	{"container_cpu_cfs_periods_total", "Enforcement periods that have passed", counter, nil, func(r *reading) []value { return one(r.detail.Periods) }},
	{"container_cpu_cfs_throttled_periods_total", "Enforcement periods in which the container was throttled", counter, nil, func(r *reading) []value { return one(r.detail.ThrottledPeriods) }},
	{"container_cpu_cfs_throttled_seconds_total", "Time that the container was throttled", counter, nil, func(r *reading) []value { return seconds(r.detail.ThrottledNanos) }},
	{"container_cpu_system_seconds_total", "CPU time spent in the kernel", counter, nil, func(r *reading) []value { return seconds(r.detail.SystemNanos) }},
	{"container_cpu_usage_seconds_total", "CPU time spent", counter, []string{"cpu"}, func(r *reading) []value {
		return one(r.stats.CPUNanos/uint64(time.Second), "total")
	}},
	{"container_cpu_user_seconds_total", "CPU time spent in programs", counter, nil, func(r *reading) []value { return seconds(r.detail.UserNanos) }},
	{"container_file_descriptors", "Open file descriptors", gauge, nil, func(r *reading) []value { return one(r.descriptors) }},
	{"container_fs_inodes_free", "Free inodes of the writable layer's file system", gauge, []string{"device"}, func(r *reading) []value { return one(r.disk.inodesFree, r.disk.label()) }},
	{"container_fs_inodes_total", "Inodes of the writable layer's file system", gauge, []string{"device"}, func(r *reading) []value { return one(r.disk.inodes, r.disk.label()) }},
	{"container_fs_limit_bytes", "Bytes of the writable layer's file system", gauge, []string{"device"}, func(r *reading) []value { return one(r.disk.size, r.disk.label()) }},
	{"container_fs_reads_bytes_total", "Bytes read", counter, []string{"device"}, func(r *reading) []value { return byDevice("", r.detail.ReadBytes) }},
	{"container_fs_reads_total", "Reads", counter, []string{"device"}, func(r *reading) []value { return byDevice("", r.detail.ReadOperations) }},
	{"container_fs_usage_bytes", "Bytes that the writable layer takes", gauge, []string{"device"}, func(r *reading) []value { return one(r.disk.used, r.disk.label()) }},
	{"container_fs_writes_bytes_total", "Bytes written", counter, []string{"device"}, func(r *reading) []value { return byDevice("", r.detail.WriteBytes) }},
	{"container_fs_writes_total", "Writes", counter, []string{"device"}, func(r *reading) []value { return byDevice("", r.detail.WriteCount) }},
	{"container_hugetlb_max_usage_bytes", "Most bytes of huge pages used", gauge, []string{"pagesize"}, func(r *reading) []value { return byDevice("", r.detail.HugePagesMost) }},
	{"container_hugetlb_usage_bytes", "Bytes of huge pages used", gauge, []string{"pagesize"}, func(r *reading) []value { return byDevice("", r.detail.HugePages) }},
	{"container_last_seen", "When the container was last seen, as Unix time", gauge, nil, func(r *reading) []value { return one(uint64(r.at.Unix())) }},
	{"container_memory_cache", "Bytes of page cache", gauge, nil, func(r *reading) []value { return one(r.detail.Cache) }},
	{"container_memory_failcnt", "How often memory reached its limit", counter, nil, func(r *reading) []value { return one(r.detail.FailCount) }},
	{"container_memory_failures_total", "Page faults", counter, []string{"failure_type", "scope"}, func(r *reading) []value {
		var out []value
		for _, scope := range []string{"container", "hierarchy"} { // containers have no groups below theirs
			out = append(out, value{r.stats.PageFaults, []string{"pgfault", scope}}, value{r.stats.MajorFaults, []string{"pgmajfault", scope}})
		}
		return out
	}},
	{"container_memory_kernel_usage", "Bytes of kernel memory", gauge, nil, func(r *reading) []value { return one(r.detail.KernelMemory) }},
	{"container_memory_mapped_file", "Bytes of mapped files", gauge, nil, func(r *reading) []value { return one(r.detail.MappedFile) }},
	{"container_memory_max_usage_bytes", "Most bytes of memory used", gauge, nil, func(r *reading) []value { return one(r.detail.MaxUsage) }},
	{"container_memory_rss", "Bytes of anonymous memory", gauge, nil, func(r *reading) []value { return one(r.stats.RSS) }},
	{"container_memory_swap", "Bytes in swap", gauge, nil, func(r *reading) []value { return one(r.stats.SwapUsage) }},
	{"container_memory_usage_bytes", "Bytes of memory used, cache included", gauge, nil, func(r *reading) []value { return one(r.stats.MemoryUsage) }},
	{"container_memory_working_set_bytes", "Bytes of memory used without inactive cache", gauge, nil, func(r *reading) []value { return one(r.stats.WorkingSet) }},
	{"container_oom_events_total", "Processes killed for want of memory", counter, nil, func(r *reading) []value { return one(r.detail.OOMKills) }},
	{"container_pressure_cpu_stalled_seconds_total", "Time in which all tasks waited for CPU", counter, nil, stalled("cpu", true)},
	{"container_pressure_cpu_waiting_seconds_total", "Time in which some task waited for CPU", counter, nil, stalled("cpu", false)},
	{"container_pressure_io_stalled_seconds_total", "Time in which all tasks waited for I/O", counter, nil, stalled("io", true)},
	{"container_pressure_io_waiting_seconds_total", "Time in which some task waited for I/O", counter, nil, stalled("io", false)},
	{"container_pressure_memory_stalled_seconds_total", "Time in which all tasks waited for memory", counter, nil, stalled("memory", true)},
	{"container_pressure_memory_waiting_seconds_total", "Time in which some task waited for memory", counter, nil, stalled("memory", false)},
	{"container_processes", "Processes", gauge, nil, func(r *reading) []value { return one(r.processes) }},
	{"container_sockets", "Open sockets", gauge, nil, func(r *reading) []value { return one(r.sockets) }},
	{"container_spec_cpu_period", "CPU period, microseconds", gauge, nil, func(r *reading) []value { return one(uint64(r.resources.GetCpuPeriod())) }},
	{"container_spec_cpu_quota", "CPU quota, microseconds a period; none: no series", gauge, nil, func(r *reading) []value {
		if q := r.resources.GetCpuQuota(); q > 0 {
			return one(uint64(q))
		}
		return nil
	}},
	{"container_spec_cpu_shares", "CPU shares", gauge, nil, func(r *reading) []value { return one(uint64(r.resources.GetCpuShares())) }},
	{"container_spec_memory_limit_bytes", "Memory limit, 0 for none", gauge, nil, func(r *reading) []value { return one(uint64(max(0, r.resources.GetMemoryLimitInBytes()))) }},
	{"container_spec_memory_reservation_limit_bytes", "Memory that is protected from others' need, 0 for none", gauge, nil, func(r *reading) []value { return one(r.detail.Reservation) }},
	{"container_spec_memory_swap_limit_bytes", "Limit of memory and swap, 0 for none", gauge, nil, func(r *reading) []value { return one(uint64(max(0, r.resources.GetMemorySwapLimitInBytes()))) }},
	{"container_start_time_seconds", "When the container started, as Unix time", gauge, nil, func(r *reading) []value { return one(uint64(r.started.Unix())) }},
	{"container_threads", "Threads", gauge, nil, func(r *reading) []value { return one(r.detail.Threads) }},
	{"container_threads_max", "Most threads that may be, 0 for no limit", gauge, nil, func(r *reading) []value { return one(r.detail.MaxThreads) }},
	{"container_ulimits_soft", "Soft limits of the container's first process", gauge, []string{"ulimit"}, func(r *reading) []value { return one(r.openFiles, "max_open_files") }},
}

func perInterface(pick func(netInterface) uint64) func(*reading) []value {
	return func(r *reading) []value {
		var out []value
		for _, i := range r.interfaces {
			out = append(out, value{pick(i), []string{i.name}})
		}
		return out
	}
}

// sandboxMetrics are those of the network that a sandbox's containers share.
var sandboxMetrics = []metric{
	{"container_network_receive_bytes_total", "Bytes received", counter, []string{"interface"}, perInterface(func(i netInterface) uint64 { return i.rx.bytes })},
	{"container_network_receive_errors_total", "Errors while receiving", counter, []string{"interface"}, perInterface(func(i netInterface) uint64 { return i.rx.errors })},
	{"container_network_receive_packets_dropped_total", "Packets dropped while receiving", counter, []string{"interface"}, perInterface(func(i netInterface) uint64 { return i.rx.dropped })},
	{"container_network_receive_packets_total", "Packets received", counter, []string{"interface"}, perInterface(func(i netInterface) uint64 { return i.rx.packets })},
	{"container_network_transmit_bytes_total", "Bytes sent", counter, []string{"interface"}, perInterface(func(i netInterface) uint64 { return i.tx.bytes })},
	{"container_network_transmit_errors_total", "Errors while sending", counter, []string{"interface"}, perInterface(func(i netInterface) uint64 { return i.tx.errors })},
	{"container_network_transmit_packets_dropped_total", "Packets dropped while sending", counter, []string{"interface"}, perInterface(func(i netInterface) uint64 { return i.tx.dropped })},
	{"container_network_transmit_packets_total", "Packets sent", counter, []string{"interface"}, perInterface(func(i netInterface) uint64 { return i.tx.packets })},
}

// ListMetricDescriptors describes all metrics, whether or not this machine counts them.
func (r *Runtime) ListMetricDescriptors(context.Context, *runtimeapi.ListMetricDescriptorsRequest) (*runtimeapi.ListMetricDescriptorsResponse, error) {
	out := &runtimeapi.ListMetricDescriptorsResponse{}
	for _, list := range [][]metric{containerMetrics, sandboxMetrics} {
		for _, m := range list {
			out.Descriptors = append(out.Descriptors, &runtimeapi.MetricDescriptor{
				Name: m.name, Help: m.help, LabelKeys: append(append([]string{}, commonLabels...), m.labels...),
			})
		}
	}
	return out, nil
}

// ListPodSandboxMetrics reads the metrics of ready sandboxes and their running containers.
func (r *Runtime) ListPodSandboxMetrics(context.Context, *runtimeapi.ListPodSandboxMetricsRequest) (*runtimeapi.ListPodSandboxMetricsResponse, error) {
	return &runtimeapi.ListPodSandboxMetricsResponse{PodMetrics: r.listSandboxMetrics()}, nil
}

// StreamPodSandboxMetrics is ListPodSandboxMetrics in pieces.
func (r *Runtime) StreamPodSandboxMetrics(_ *runtimeapi.StreamPodSandboxMetricsRequest, out runtimeapi.RuntimeService_StreamPodSandboxMetricsServer) error {
	return inPieces(r.listSandboxMetrics(), func(part []*runtimeapi.PodSandboxMetrics) error {
		return out.Send(&runtimeapi.StreamPodSandboxMetricsResponse{PodSandboxMetrics: part})
	})
}

func (r *Runtime) listSandboxMetrics() []*runtimeapi.PodSandboxMetrics {
	var out []*runtimeapi.PodSandboxMetrics
	for _, s := range r.allSandboxes() {
		if s.record().Ready {
			out = append(out, r.sandboxMetricsOf(s))
		}
	}
	return out
}

func (r *Runtime) sandboxMetricsOf(s *sandboxState) *runtimeapi.PodSandboxMetrics {
	rec, pod := s.record(), s.cfg.GetMetadata()
	out := &runtimeapi.PodSandboxMetrics{PodSandboxId: rec.ID}
	network := &reading{}
	if netns := r.networkSandbox(s).NetNSPath; netns != "" {
		network.interfaces = interfacesOf(netns)
	}
	out.Metrics = values(sandboxMetrics, network, []string{"", rec.Cgroup, "", rec.ID, pod.GetNamespace(), pod.GetName()})
	for _, c := range r.containersOf(rec.ID) {
		got := r.read(c)
		if got == nil {
			continue
		}
		crec := c.record()
		labels := []string{c.cfg.GetMetadata().GetName(), crec.Cgroup, crec.ImageName, crec.ID, pod.GetNamespace(), pod.GetName()}
		out.ContainerMetrics = append(out.ContainerMetrics, &runtimeapi.ContainerMetrics{ContainerId: crec.ID, Metrics: values(containerMetrics, got, labels)})
	}
	return out
}

func values(list []metric, r *reading, common []string) []*runtimeapi.Metric {
	var out []*runtimeapi.Metric
	for _, m := range list {
		for _, v := range m.of(r) {
			out = append(out, &runtimeapi.Metric{
				Name: m.name, MetricType: m.kind, LabelValues: append(append([]string{}, common...), v.labels...), Value: u64(v.n),
			})
		}
	}
	return out
}

// read measures a running container; nil: it does not run.
func (r *Runtime) read(c *containerState) *reading {
	rec := c.record()
	if rec.State != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil
	}
	group := cgroup.At(rec.Cgroup)
	out := &reading{at: time.Now(), started: rec.Started, resources: resourcesOf(c, rec)}
	var err error
	if out.stats, err = group.Stats(); err != nil {
		return nil // ended meanwhile
	}
	if out.detail, err = group.Detail(); err != nil {
		return nil
	}
	pids, err := group.Pids()
	if err != nil {
		return nil
	}
	out.processes = uint64(len(pids))
	for _, pid := range pids {
		descriptors, sockets := openFilesOf(pid)
		out.descriptors, out.sockets = out.descriptors+descriptors, out.sockets+sockets
	}
	var limit unix.Rlimit
	if err := unix.Prlimit(rec.PID, unix.RLIMIT_NOFILE, nil, &limit); err == nil {
		out.openFiles = limit.Cur
	}
	out.disk.used, _ = r.usage.writable(rec.ID, r.upper(rec.ID))
	var st unix.Stat_t
	var fs unix.Statfs_t
	if unix.Stat(r.cfg.RootDir, &st) == nil && unix.Statfs(r.cfg.RootDir, &fs) == nil {
		out.disk.device, out.disk.size, out.disk.inodes, out.disk.inodesFree = st.Dev, fs.Blocks*uint64(fs.Bsize), fs.Files, fs.Ffree
	}
	return out
}

// openFilesOf counts a process' descriptors; one that is gone has none.
func openFilesOf(pid int) (descriptors, sockets uint64) {
	dir := filepath.Join("/proc", strconv.Itoa(pid), "fd")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0, 0
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.HasPrefix(to, "socket:") {
			sockets++
		}
	}
	return uint64(len(entries)), sockets
}
