package cgroup

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// setting is one file of a cgroup and what it is to say.
type setting struct{ controller, file, value string }

// Update changes limits; what r leaves unset stays as it is.
func (g Group) Update(r *specs.LinuxResources) error {
	if g.path == "/" {
		return errors.New("refusing to limit the root cgroup")
	}
	settings := settingsV1(r)
	if g.v2 {
		settings = settingsV2(r)
	}
	for i, s := range settings {
		err := g.set(s)
		if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINVAL) {
			// A limit and its limit with swap must never cross; which to set
			// first depends on whether they grow.
			if i+1 < len(settings) && settings[i+1].controller == "memory" && s.controller == "memory" {
				settings[i], settings[i+1] = settings[i+1], settings[i]
				err = errors.Join(g.set(settings[i]), g.set(settings[i+1]))
			}
		}
		if err != nil {
			return fmt.Errorf("update cgroup %s: %w", g.path, err)
		}
	}
	return nil
}

func (g Group) set(s setting) error {
	dir := filepath.Join(mountRoot, g.path)
	if !g.v2 {
		dir = filepath.Join(mountRoot, s.controller, g.path)
	}
	return write(filepath.Join(dir, s.file), s.value)
}

// write never creates: a missing file of cgroupfs is an error of its own.
func write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func settingsV1(r *specs.LinuxResources) []setting {
	var out []setting
	if c := r.CPU; c != nil {
		if c.Shares != nil {
			out = append(out, setting{"cpu", "cpu.shares", strconv.FormatUint(*c.Shares, 10)})
		}
		if c.Period != nil {
			out = append(out, setting{"cpu", "cpu.cfs_period_us", strconv.FormatUint(*c.Period, 10)})
		}
		if c.Quota != nil {
			out = append(out, setting{"cpu", "cpu.cfs_quota_us", strconv.FormatInt(*c.Quota, 10)})
		}
		if c.Cpus != "" {
			out = append(out, setting{"cpuset", "cpuset.cpus", c.Cpus})
		}
		if c.Mems != "" {
			out = append(out, setting{"cpuset", "cpuset.mems", c.Mems})
		}
	}
	if m := r.Memory; m != nil && m.Limit != nil {
		out = append(out, setting{"memory", "memory.limit_in_bytes", strconv.FormatInt(*m.Limit, 10)})
		if m.Swap != nil && hasSwapAccounting() {
			out = append(out, setting{"memory", "memory.memsw.limit_in_bytes", strconv.FormatInt(*m.Swap, 10)})
		}
	}
	for _, h := range r.HugepageLimits {
		out = append(out, setting{"hugetlb", "hugetlb." + h.Pagesize + ".limit_in_bytes", strconv.FormatUint(h.Limit, 10)})
	}
	return out
}

func hasSwapAccounting() bool {
	_, err := os.Stat(filepath.Join(mountRoot, "memory/memory.memsw.limit_in_bytes"))
	return err == nil
}

func settingsV2(r *specs.LinuxResources) []setting {
	var out []setting
	limit := func(n int64) string {
		if n < 0 {
			return "max"
		}
		return strconv.FormatInt(n, 10)
	}
	if c := r.CPU; c != nil {
		if c.Shares != nil {
			out = append(out, setting{"", "cpu.weight", strconv.FormatUint(weight(*c.Shares), 10)})
		}
		if c.Quota != nil || c.Period != nil {
			quota, period := "max", ""
			if c.Quota != nil {
				quota = limit(*c.Quota)
			}
			if c.Period != nil {
				period = " " + strconv.FormatUint(*c.Period, 10)
			}
			out = append(out, setting{"", "cpu.max", quota + period})
		}
		if c.Cpus != "" {
			out = append(out, setting{"", "cpuset.cpus", c.Cpus})
		}
		if c.Mems != "" {
			out = append(out, setting{"", "cpuset.mems", c.Mems})
		}
	}
	if m := r.Memory; m != nil && m.Limit != nil {
		out = append(out, setting{"", "memory.max", limit(*m.Limit)})
		if m.Swap != nil && *m.Swap >= *m.Limit {
			out = append(out, setting{"", "memory.swap.max", limit(*m.Swap - *m.Limit)})
		}
	}
	for _, h := range r.HugepageLimits {
		out = append(out, setting{"", "hugetlb." + h.Pagesize + ".max", strconv.FormatUint(h.Limit, 10)})
	}
	for file, value := range r.Unified {
		out = append(out, setting{"", filepath.Base(file), value})
	}
	return out
}

// weight converts cgroup v1 shares, 2 to 262144, to a v2 weight, 1 to 10000,
// on the curve that runc has used since 1.3.2: 2, 1024 and 262144 become 1,
// 100 and 10000 (https://github.com/opencontainers/cgroups/pull/20).
func weight(shares uint64) uint64 {
	switch {
	case shares == 0:
		return 0
	case shares <= 2:
		return 1
	case shares >= 262144:
		return 10000
	}
	l := math.Log2(float64(shares))
	return uint64(math.Ceil(math.Pow(10, (l*l+125*l)/612-7.0/34.0)))
}
