package containers

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// BenchmarkPodStart measures what a pod costs with its image at hand: sandbox,
// container, start. CPU is that of the runtime, monitors and launchers, which is
// what the figure in docs/benchmarks.md is.
func BenchmarkPodStart(b *testing.B) {
	h := newHarness(b)
	img := h.pull("busybox", busyboxImage(b, nil))
	var walls, sandboxes, creates []time.Duration
	before, empty := cpuOfTree(b, h.cmd.Process.Pid), pss(b, h.cmd.Process.Pid)
	var pids, inits []int
	for i := 0; b.Loop(); i++ {
		begin := time.Now()
		sb, cfg := h.sandbox(nil)
		sandboxes = append(sandboxes, time.Since(begin))
		id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
			c.Command, c.LogPath = []string{"sleep", "1000"}, strconv.Itoa(i)+".log"
		})
		creates = append(creates, time.Since(begin)-sandboxes[i])
		h.start(id)
		walls = append(walls, time.Since(begin))
		monitor, init := processesOf(b, h, id)
		pids, inits = append(pids, monitor), append(inits, init)
	}
	cpu := cpuOfTree(b, h.cmd.Process.Pid) - before
	for _, pid := range slices.Concat(pids, inits) {
		cpu += cpuOfTree(b, pid)
	}
	report := func(unit string, d []time.Duration) {
		slices.Sort(d)
		b.ReportMetric(float64(d[len(d)/2].Microseconds())/1000, "p50-"+unit)
	}
	report("ms", walls)
	report("sandbox-ms", sandboxes)
	report("create-ms", creates)
	b.ReportMetric(float64(walls[0].Microseconds())/1000, "min-ms")
	b.ReportMetric(float64(cpu.Milliseconds())/float64(len(walls)), "cpu-ms/pod")
	b.ReportMetric(pss(b, pids[len(pids)-1]), "monitor-kB")
	b.ReportMetric((pss(b, h.cmd.Process.Pid)-empty)/float64(len(pids)), "runtime-kB/pod")
}

// BenchmarkExecSync measures an exec probe.
func BenchmarkExecSync(b *testing.B) {
	h := newHarness(b)
	img := h.pull("busybox", busyboxImage(b, nil))
	sb, cfg := h.sandbox(nil)
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) { c.Command = []string{"sleep", "1000"} })
	h.start(id)
	before := cpuOfTree(b, h.cmd.Process.Pid)
	n := 0
	for b.Loop() {
		if _, err := h.execSync(id, 60, "true"); err != nil {
			b.Fatal(err)
		}
		n++
	}
	cpu := cpuOfTree(b, h.cmd.Process.Pid) - before
	b.ReportMetric(float64(cpu.Milliseconds())/float64(n), "cpu-ms/exec")
}

func processesOf(t testing.TB, h *harness, id string) (monitor, init int) {
	t.Helper()
	got, err := h.Runtime.ContainerStatus(context.Background(), &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	if init, err = strconv.Atoi(got.GetInfo()["pid"]); err != nil {
		t.Fatal(err)
	}
	if monitor, err = strconv.Atoi(statFields(t, got.GetInfo()["pid"])[1]); err != nil {
		t.Fatal(err)
	}
	return monitor, init
}

// statFields are those of /proc/PID/stat after the command's name.
func statFields(t testing.TB, pid string) []string {
	t.Helper()
	b, err := os.ReadFile("/proc/" + pid + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(b)[strings.LastIndexByte(string(b), ')')+1:])
}

// cpuOfTree is a process's CPU time with that of the children it has reaped.
func cpuOfTree(t testing.TB, pid int) time.Duration {
	t.Helper()
	f := statFields(t, strconv.Itoa(pid))
	var ticks int
	for _, s := range f[11:15] {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

func pss(t testing.TB, pid int) float64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
			n, err := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	return 0
}
