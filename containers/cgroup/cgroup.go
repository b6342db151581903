// Package cgroup is what the runtime does to a container's cgroup beside
// creating it (libcontainer does that): limits, figures, killing, removal; on
// cgroup v1, v2 and the hybrid of both.
//
// It must not know containers: a cgroup is a path below the hierarchies' roots.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/cgroups"
	"github.com/opencontainers/cgroups/fs"
	"github.com/opencontainers/cgroups/fs2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const mountRoot = "/sys/fs/cgroup"

// V2 says whether the machine has only the unified hierarchy.
func V2() bool { return cgroups.IsCgroup2UnifiedMode() }

// Group is one cgroup, in every hierarchy that there is.
type Group struct {
	path string
	v2   bool
}

// At names the cgroup with that absolute path.
func At(path string) Group { return Group{path: filepath.Clean("/" + path), v2: V2()} }

// dirs lists the group's directory in each hierarchy.
func (g Group) dirs() ([]string, error) {
	if g.v2 {
		return []string{filepath.Join(mountRoot, g.path)}, nil
	}
	entries, err := os.ReadDir(mountRoot)
	if err != nil {
		return nil, fmt.Errorf("list cgroup hierarchies: %w", err)
	}
	var out []string
	for _, e := range entries {
		// Links such as cpu -> cpu,cpuacct name the same hierarchy again.
		if e.IsDir() {
			out = append(out, filepath.Join(mountRoot, e.Name(), g.path))
		}
	}
	return out, nil
}

// OOMFile is where the kernel counts the processes that it killed for memory.
func (g Group) OOMFile() string {
	if g.v2 {
		return filepath.Join(mountRoot, g.path, "memory.events")
	}
	return filepath.Join(mountRoot, "memory", g.path, "memory.oom_control")
}

func (g Group) manager() (cgroups.Manager, error) {
	cg := &cgroups.Cgroup{Path: g.path, Resources: &cgroups.Resources{SkipDevices: true}}
	if g.v2 {
		return fs2.NewManager(cg, filepath.Join(mountRoot, g.path))
	}
	return fs.NewManager(cg, nil)
}

// Update changes limits; what r leaves unset stays as it is.
func (g Group) Update(r *specs.LinuxResources) error {
	m, err := g.manager()
	if err != nil {
		return fmt.Errorf("open cgroup %s: %w", g.path, err)
	}
	res := &cgroups.Resources{SkipDevices: true, Unified: r.Unified}
	if c := r.CPU; c != nil {
		res.CpusetCpus, res.CpusetMems = c.Cpus, c.Mems
		if c.Shares != nil {
			res.CpuShares = *c.Shares
			if g.v2 {
				res.CpuWeight = cgroups.ConvertCPUSharesToCgroupV2Value(*c.Shares)
			}
		}
		if c.Quota != nil {
			res.CpuQuota = *c.Quota
		}
		if c.Period != nil {
			res.CpuPeriod = *c.Period
		}
	}
	if mem := r.Memory; mem != nil {
		if mem.Limit != nil {
			res.Memory = *mem.Limit
		}
		if mem.Swap != nil {
			res.MemorySwap = *mem.Swap
		}
	}
	for _, h := range r.HugepageLimits {
		res.HugetlbLimit = append(res.HugetlbLimit, &cgroups.HugepageLimit{Pagesize: h.Pagesize, Limit: h.Limit})
	}
	if err := m.Set(res); err != nil {
		return fmt.Errorf("update cgroup %s: %w", g.path, err)
	}
	return nil
}

// Pids lists the processes in the group and below it.
func (g Group) Pids() ([]int, error) {
	dir := filepath.Join(mountRoot, g.path)
	if !g.v2 {
		dir = filepath.Join(mountRoot, "memory", g.path)
	}
	pids, err := cgroups.GetAllPids(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list processes of cgroup %s: %w", g.path, err)
	}
	return pids, nil
}

// Kill kills every process in the group and below it.
func (g Group) Kill() error {
	if g.path == "/" {
		return errors.New("refusing to kill the root cgroup")
	}
	if g.v2 {
		err := cgroups.WriteFile(filepath.Join(mountRoot, g.path), "cgroup.kill", "1")
		if err == nil {
			return nil
		}
		// Kernels before 5.14 lack the file: one by one, then.
	} else {
		// Frozen, nothing forks while the list is read; a process killed
		// frozen dies when it thaws.
		state := filepath.Join(mountRoot, "freezer", g.path, "freezer.state")
		if err := os.WriteFile(state, []byte("FROZEN"), 0); err == nil {
			defer func() { _ = os.WriteFile(state, []byte("THAWED"), 0) }()
		}
	}
	pids, err := g.Pids()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d of cgroup %s: %w", pid, g.path, err)
		}
	}
	return nil
}

// Remove deletes the group and those below it, in every hierarchy. Its
// processes must be dead or dying.
func (g Group) Remove() error {
	if g.path == "/" {
		return errors.New("refusing to remove the root cgroup")
	}
	dirs, err := g.dirs()
	if err != nil {
		return err
	}
	var errs []error
	for _, dir := range dirs {
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := cgroups.RemovePath(dir); err != nil {
			errs = append(errs, fmt.Errorf("remove cgroup: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Child makes a group for one exec'd process and returns its directories by
// controller, as the helper takes them: on cgroup v1 the freezer alone is enough.
func (g Group) Child(name string) (map[string]string, error) {
	controller, dir := "", filepath.Join(mountRoot, g.path, name)
	if !g.v2 {
		controller, dir = "freezer", filepath.Join(mountRoot, "freezer", g.path, name)
	}
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, fmt.Errorf("make cgroup: %w", err)
	}
	return map[string]string{controller: dir}, nil
}

// Stats is a reading of a group.
type Stats struct {
	Time        time.Time
	CPUNanos    uint64
	MemoryUsage uint64
	WorkingSet  uint64
	RSS         uint64
	MemoryLimit uint64 // 0 for none
	PageFaults  uint64
	MajorFaults uint64
	SwapUsage   uint64
	SwapLimit   uint64 // 0 for none
	Processes   uint64
}

// Stats reads the group's figures from the files themselves: a dozen reads
// where the library makes fifty.
func (g Group) Stats() (*Stats, error) {
	s := &Stats{Time: time.Now()}
	if g.v2 {
		return s, g.statsV2(s)
	}
	return s, g.statsV1(s)
}

func (g Group) statsV2(s *Stats) error {
	dir := filepath.Join(mountRoot, g.path)
	cpu, err := keyed(filepath.Join(dir, "cpu.stat"))
	if err != nil {
		return fmt.Errorf("read cgroup figures: %w", err)
	}
	mem, err := keyed(filepath.Join(dir, "memory.stat"))
	if err != nil {
		return fmt.Errorf("read cgroup figures: %w", err)
	}
	s.CPUNanos = cpu["usage_usec"] * 1000
	s.MemoryUsage = number(filepath.Join(dir, "memory.current"))
	s.WorkingSet = sub(s.MemoryUsage, mem["inactive_file"])
	s.RSS = mem["anon"]
	s.PageFaults, s.MajorFaults = mem["pgfault"], mem["pgmajfault"]
	s.MemoryLimit = number(filepath.Join(dir, "memory.max"))
	s.SwapUsage = number(filepath.Join(dir, "memory.swap.current"))
	s.SwapLimit = number(filepath.Join(dir, "memory.swap.max"))
	s.Processes = number(filepath.Join(dir, "pids.current"))
	return nil
}

func (g Group) statsV1(s *Stats) error {
	file := func(controller, name string) string { return filepath.Join(mountRoot, controller, g.path, name) }
	mem, err := keyed(file("memory", "memory.stat"))
	if err != nil {
		return fmt.Errorf("read cgroup figures: %w", err)
	}
	s.CPUNanos = number(file("cpuacct", "cpuacct.usage"))
	s.MemoryUsage = number(file("memory", "memory.usage_in_bytes"))
	s.WorkingSet = sub(s.MemoryUsage, mem["total_inactive_file"])
	s.RSS = mem["total_rss"]
	s.PageFaults, s.MajorFaults = mem["total_pgfault"], mem["total_pgmajfault"]
	if l := number(file("memory", "memory.limit_in_bytes")); l < 1<<62 { // the kernel's "none" is just below 2^63
		s.MemoryLimit = l
	}
	s.SwapUsage = mem["total_swap"]
	s.Processes = number(file("pids", "pids.current"))
	return nil
}

func sub(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}

// number reads a file with one number; 0 for "max", for none and for a missing file.
func number(path string) uint64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// keyed reads a file of "name value" lines.
func keyed(path string) (map[string]uint64, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	out := map[string]uint64{}
	in := bufio.NewScanner(f)
	for in.Scan() {
		k, v, ok := strings.Cut(in.Text(), " ")
		if !ok {
			continue
		}
		if n, err := strconv.ParseUint(v, 10, 64); err == nil {
			out[k] = n
		}
	}
	return out, in.Err()
}

// RemoveEmpty deletes the group where it exists and has nothing in it.
func (g Group) RemoveEmpty() error {
	if g.path == "/" {
		return errors.New("refusing to remove the root cgroup")
	}
	dirs, err := g.dirs()
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		err := unix.Rmdir(dir)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENOTEMPTY) {
			return fmt.Errorf("remove cgroup %s: %w", dir, err)
		}
	}
	return nil
}
