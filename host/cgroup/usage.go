package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Usage reads what a group and those below it use; files that a kernel lacks read as zero.
func (t *Tree) Usage(name string) (Usage, error) {
	if !t.Exists(name) {
		return Usage{}, fmt.Errorf("read usage of cgroup %s: %w", name, fs.ErrNotExist)
	}
	if t.v2 {
		return t.usageV2(name)
	}
	var u Usage
	var err error
	u.CPUNanos = number(&err, t.Path("cpuacct", name), "cpuacct.usage")
	mem := t.Path("memory", name)
	u.MemoryBytes = number(&err, mem, "memory.usage_in_bytes")
	if l := number(&err, mem, "memory.limit_in_bytes"); l < 1<<62 {
		u.MemoryLimitBytes = l
	}
	stat := table(&err, mem, "memory.stat")
	u.RSSBytes = stat["total_rss"]
	u.PageFaults, u.MajorPageFaults = stat["total_pgfault"], stat["total_pgmajfault"]
	u.WorkingSetBytes = sub(u.MemoryBytes, stat["total_inactive_file"])
	if t.roots["pids"] != "" {
		u.Pids = number(&err, t.Path("pids", name), "pids.current")
	}
	return u, err
}

func (t *Tree) usageV2(name string) (Usage, error) {
	var u Usage
	var err error
	dir := t.Path("", name)
	u.CPUNanos = table(&err, dir, "cpu.stat")["usage_usec"] * 1000
	u.MemoryBytes = number(&err, dir, "memory.current")
	u.MemoryLimitBytes = number(&err, dir, "memory.max")
	stat := table(&err, dir, "memory.stat")
	u.RSSBytes = stat["anon"]
	u.PageFaults, u.MajorPageFaults = stat["pgfault"], stat["pgmajfault"]
	u.WorkingSetBytes = sub(u.MemoryBytes, stat["inactive_file"])
	u.Pids = number(&err, dir, "pids.current")
	return u, err
}

func sub(a, b uint64) uint64 {
	if b > a {
		return 0
	}
	return a - b
}

// number reads a file with one number ("max" is 0).
func number(errp *error, dir, file string) uint64 {
	raw, err := os.ReadFile(filepath.Join(dir, file))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && *errp == nil {
			*errp = fmt.Errorf("read cgroup file: %w", err)
		}
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(raw)), 10, 64)
	return n
}

// table reads a file of "key value" lines.
func table(errp *error, dir, file string) map[string]uint64 {
	f, err := os.Open(filepath.Join(dir, file))
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) && *errp == nil {
			*errp = fmt.Errorf("read cgroup file: %w", err)
		}
		return nil
	}
	defer f.Close()
	out := map[string]uint64{}
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		if k, v, ok := strings.Cut(sc.Text(), " "); ok {
			if n, err := strconv.ParseUint(v, 10, 64); err == nil {
				out[k] = n
			}
		}
	}
	return out
}
