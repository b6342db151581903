// Package procfs reads what the kernel accounts to processes and to the machine.
//
// Owns: the parsing of /proc, processes' clocks. Must not: know whose processes they are.
package procfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// clockTicks per second: USER_HZ, 100 on every Linux that Go runs on.
const clockTicks = 100

// CPU is the CPU time in seconds that a process has used, ended children left out. Its clock
// (clock_getcpuclockid(3)) counts nanoseconds, where /proc has hundredths of a second.
func CPU(pid int) (float64, error) {
	const (
		scheduled = 2       // CPUCLOCK_SCHED
		maxPID    = 1 << 22 // PID_MAX_LIMIT
	)
	var ts unix.Timespec
	if pid < 1 || pid > maxPID {
		return 0, fmt.Errorf("read CPU time of process %d: there is no such process", pid)
	}
	if err := unix.ClockGettime(int32(^pid<<3|scheduled), &ts); err != nil {
		return 0, fmt.Errorf("read CPU time of process %d: %w", pid, err)
	}
	return float64(ts.Nano()) / 1e9, nil
}

// Family is the CPU time of a process and of all its children that ended and were waited for;
// of these, to a hundredth of a second.
func Family(pid int) (float64, error) {
	own, err := CPU(pid)
	if err != nil {
		return 0, err
	}
	f, err := stat(pid)
	if err != nil {
		return 0, err
	}
	ended, err := ticks(f[13], f[14])
	return own + ended, err
}

// stat is the fields of /proc/PID/stat from the state on.
func stat(pid int) ([]string, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, fmt.Errorf("read CPU time: %w", err)
	}
	// The command's name, in parentheses, may hold spaces.
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(f) < 15 {
		return nil, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(f))
	}
	return f, nil
}

func ticks(fields ...string) (float64, error) {
	sum := uint64(0)
	for _, f := range fields {
		n, err := strconv.ParseUint(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("CPU time: %w", err)
		}
		sum += n
	}
	return float64(sum) / clockTicks, nil
}

// PSS is the proportional set size of a process in MB (2^20 bytes): what it holds alone and its
// share of what it shares.
func PSS(pid int) (float64, error) { return kilobytes(pid, "smaps_rollup", "Pss:") }

// Peak is the largest resident size of a process in MB since ResetPeak or its start.
func Peak(pid int) (float64, error) { return kilobytes(pid, "status", "VmHWM:") }

// ResetPeak makes Peak begin anew.
func ResetPeak(pid int) error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0); err != nil {
		return fmt.Errorf("reset peak size: %w", err)
	}
	return nil
}

func kilobytes(pid int, file, key string) (float64, error) {
	path := fmt.Sprintf("/proc/%d/%s", pid, file)
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("read memory: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == key {
			kb, err := strconv.ParseFloat(f[1], 64)
			return kb / 1024, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", path, key)
}

// Busy is the CPU time in seconds that all of the machine has used since it started.
func Busy() (float64, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("read the machine's CPU time: %w", err)
	}
	line, _, _ := strings.Cut(string(text), "\n")
	f := strings.Fields(line)
	if len(f) < 9 || f[0] != "cpu" {
		return 0, fmt.Errorf("/proc/stat begins with %q", line)
	}
	return ticks(f[1], f[2], f[3], f[6], f[7]) // user nice system, irq softirq; not idle iowait steal
}

// Load is the load average of the last minute.
func Load() (float64, error) {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, fmt.Errorf("read load: %w", err)
	}
	one, _, _ := strings.Cut(string(text), " ")
	return strconv.ParseFloat(one, 64)
}

// Model is the processor's name.
func Model() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}

// Named are the processes whose command's name begins so and of whose arguments one contains the text.
func Named(prefix, argument string) ([]int, error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var all []int
	for _, path := range names {
		dir := filepath.Dir(path)
		comm, err := os.ReadFile(path)
		if err != nil || !strings.HasPrefix(string(comm), prefix) {
			continue // ended meanwhile, or another
		}
		args, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !strings.Contains(string(args), argument) {
			continue
		}
		if id, err := strconv.Atoi(filepath.Base(dir)); err == nil {
			all = append(all, id)
		}
	}
	return all, nil
}

// Descendants are all living children of a process, theirs included, but not itself.
func Descendants(pid int) ([]int, error) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	children := map[int][]int{}
	for _, path := range stats {
		id, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		f, err := stat(id)
		if err != nil {
			continue // ended meanwhile
		}
		if parent, err := strconv.Atoi(f[1]); err == nil {
			children[parent] = append(children[parent], id)
		}
	}
	var all []int
	for next := children[pid]; len(next) > 0; {
		all = append(all, next...)
		var below []int
		for _, id := range next {
			below = append(below, children[id]...)
		}
		next = below
	}
	return all, nil
}
