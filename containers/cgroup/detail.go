package cgroup

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Detail is what monitoring asks for beyond Stats. What the kernel does not count here is 0
// or missing from its map.
type Detail struct {
	UserNanos, SystemNanos     uint64
	Periods, ThrottledPeriods  uint64
	ThrottledNanos             uint64
	Cache, MappedFile          uint64
	KernelMemory, MaxUsage     uint64
	FailCount, OOMKills        uint64
	Threads, MaxThreads        uint64 // MaxThreads is 0 for none
	Reservation                uint64
	Pressure                   map[string]Pressure // by cpu, memory, io
	HugePages, HugePagesMost   map[string]uint64   // bytes by page size
	ReadBytes, WriteBytes      map[string]uint64   // by device, major:minor
	ReadOperations, WriteCount map[string]uint64
}

// Pressure is how long tasks waited for a resource (the kernel's psi.rst).
type Pressure struct{ SomeMicros, FullMicros uint64 }

// Detail reads them; it costs a few dozen reads and is for those who ask.
func (g Group) Detail() (*Detail, error) {
	d := &Detail{
		Pressure: map[string]Pressure{}, HugePages: map[string]uint64{}, HugePagesMost: map[string]uint64{},
		ReadBytes: map[string]uint64{}, WriteBytes: map[string]uint64{}, ReadOperations: map[string]uint64{}, WriteCount: map[string]uint64{},
	}
	if g.v2 {
		return d, g.detailV2(d)
	}
	return d, g.detailV1(d)
}

func (g Group) detailV2(d *Detail) error {
	file := func(name string) string { return filepath.Join(mountRoot, g.path, name) }
	cpu, err := keyed(file("cpu.stat"))
	if err != nil {
		return fmt.Errorf("read cgroup figures: %w", err)
	}
	mem, err := keyed(file("memory.stat"))
	if err != nil {
		return fmt.Errorf("read cgroup figures: %w", err)
	}
	events, err := keyed(file("memory.events"))
	if err != nil {
		return fmt.Errorf("read cgroup figures: %w", err)
	}
	d.UserNanos, d.SystemNanos = cpu["user_usec"]*1000, cpu["system_usec"]*1000
	d.Periods, d.ThrottledPeriods, d.ThrottledNanos = cpu["nr_periods"], cpu["nr_throttled"], cpu["throttled_usec"]*1000
	d.Cache, d.MappedFile, d.KernelMemory = mem["file"], mem["file_mapped"], mem["kernel"]
	d.MaxUsage = number(file("memory.peak"))
	d.FailCount, d.OOMKills = events["max"], events["oom_kill"]
	d.Threads, d.MaxThreads = number(file("pids.current")), number(file("pids.max"))
	d.Reservation = number(file("memory.low"))
	for _, resource := range []string{"cpu", "memory", "io"} {
		if p, ok := pressure(file(resource + ".pressure")); ok {
			d.Pressure[resource] = p
		}
	}
	hugePages(file(""), ".current", d.HugePages)
	return eachLine(file("io.stat"), func(f []string) {
		for _, kv := range f[1:] {
			k, v, _ := strings.Cut(kv, "=")
			n, err := strconv.ParseUint(v, 10, 64)
			into := map[string]map[string]uint64{"rbytes": d.ReadBytes, "wbytes": d.WriteBytes, "rios": d.ReadOperations, "wios": d.WriteCount}[k]
			if err == nil && into != nil {
				into[f[0]] = n
			}
		}
	})
}

func (g Group) detailV1(d *Detail) error {
	file := func(controller, name string) string { return filepath.Join(mountRoot, controller, g.path, name) }
	cpu, err := keyed(file("cpu", "cpu.stat"))
	if err != nil {
		return fmt.Errorf("read cgroup figures: %w", err)
	}
	mem, err := keyed(file("memory", "memory.stat"))
	if err != nil {
		return fmt.Errorf("read cgroup figures: %w", err)
	}
	oom, err := keyed(file("memory", "memory.oom_control"))
	if err != nil {
		return fmt.Errorf("read cgroup figures: %w", err)
	}
	d.UserNanos, d.SystemNanos = number(file("cpuacct", "cpuacct.usage_user")), number(file("cpuacct", "cpuacct.usage_sys"))
	d.Periods, d.ThrottledPeriods, d.ThrottledNanos = cpu["nr_periods"], cpu["nr_throttled"], cpu["throttled_time"]
	d.Cache, d.MappedFile = mem["total_cache"], mem["total_mapped_file"]
	d.KernelMemory, d.MaxUsage = number(file("memory", "memory.kmem.usage_in_bytes")), number(file("memory", "memory.max_usage_in_bytes"))
	d.FailCount, d.OOMKills = number(file("memory", "memory.failcnt")), oom["oom_kill"]
	d.Threads, d.MaxThreads = number(file("pids", "pids.current")), number(file("pids", "pids.max"))
	if r := number(file("memory", "memory.soft_limit_in_bytes")); r < 1<<62 {
		d.Reservation = r
	}
	hugePages(file("hugetlb", ""), ".usage_in_bytes", d.HugePages)
	hugePages(file("hugetlb", ""), ".max_usage_in_bytes", d.HugePagesMost)
	for name, into := range map[string][2]map[string]uint64{
		"blkio.throttle.io_service_bytes_recursive": {d.ReadBytes, d.WriteBytes},
		"blkio.throttle.io_serviced_recursive":      {d.ReadOperations, d.WriteCount},
	} {
		err := eachLine(file("blkio", name), func(f []string) { // "8:0 Read 4096"
			if len(f) != 3 {
				return
			}
			n, err := strconv.ParseUint(f[2], 10, 64)
			if err != nil {
				return
			}
			switch f[1] {
			case "Read":
				into[0][f[0]] = n
			case "Write":
				into[1][f[0]] = n
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// pressure reads "some avg10=… total=N" and "full …"; a kernel without it has no file.
func pressure(path string) (Pressure, bool) {
	var p Pressure
	seen := false
	err := eachLine(path, func(f []string) {
		_, text, ok := strings.Cut(f[len(f)-1], "total=")
		n, err := strconv.ParseUint(text, 10, 64)
		if !ok || err != nil {
			return
		}
		seen = true
		switch f[0] {
		case "some":
			p.SomeMicros = n
		case "full":
			p.FullMicros = n
		}
	})
	return p, err == nil && seen
}

// hugePages reads hugetlb.SIZE+suffix of each page size.
func hugePages(dir, suffix string, into map[string]uint64) {
	files, err := filepath.Glob(filepath.Join(dir, "hugetlb.*"+suffix))
	if err != nil {
		return // the pattern is fixed
	}
	for _, f := range files {
		size := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(f), "hugetlb."), suffix)
		if !strings.Contains(size, ".") { // hugetlb.2MB.rsvd.current is another figure
			into[size] = number(f)
		}
	}
}

// eachLine calls f with the fields of each line that has any. A file that is not there has none.
func eachLine(path string, f func([]string)) error {
	in, err := os.Open(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read cgroup figures: %w", err)
	}
	defer func() { _ = in.Close() }()
	s := bufio.NewScanner(in)
	for s.Scan() {
		if fields := strings.Fields(s.Text()); len(fields) > 0 {
			f(fields)
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("read cgroup figures: %w", err)
	}
	return nil
}
