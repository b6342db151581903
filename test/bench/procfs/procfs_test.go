package procfs

import (
	"os"
	"os/exec"
	"slices"
	"testing"
)

func TestCPUGrowsWithWork(t *testing.T) {
	before, err := CPU(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	machine, err := Busy()
	if err != nil {
		t.Fatal(err)
	}
	after := before
	for n := 0; after < before+0.05; n++ {
		if n > 1e6 {
			t.Fatalf("still %g s of CPU after much work", after)
		}
		for i := range 100_000 {
			_ = i * i
		}
		if after, err = CPU(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	later, err := Busy()
	if err != nil {
		t.Fatal(err)
	}
	if later <= machine {
		t.Errorf("this process used CPU, but the machine's went from %g to %g s", machine, later)
	}
	if family, err := Family(os.Getpid()); err != nil || family < after {
		t.Errorf("with children %g s (%v), without %g", family, err, after)
	}
}

func TestMemory(t *testing.T) {
	pss, err := PSS(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	held := make([]byte, 64<<20)
	for i := 0; i < len(held); i += 4096 {
		held[i] = 1
	}
	more, err := PSS(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if more < pss+60 {
		t.Errorf("64 MB more, but PSS went from %g to %g MB", pss, more)
	}
	if peak, err := Peak(os.Getpid()); err != nil || peak < 60 {
		t.Errorf("peak %g MB, %v", peak, err)
	}
	if held[4096] != 1 {
		t.Error("kept alive")
	}
}

func TestProcessThatIsNot(t *testing.T) {
	for name, f := range map[string]func(int) (float64, error){"CPU": CPU, "Family": Family, "PSS": PSS, "Peak": Peak} {
		if v, err := f(1 << 30); err == nil {
			t.Errorf("%s of a process that is not: %g", name, v)
		}
	}
}

func TestDescendants(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	all, err := Descendants(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(all, cmd.Process.Pid) || slices.Contains(all, os.Getpid()) {
		t.Errorf("child %d, self %d, descendants %v", cmd.Process.Pid, os.Getpid(), all)
	}
}

func TestNamed(t *testing.T) {
	cmd := exec.Command("sleep", "1000.25")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for argument, want := range map[string]bool{"1000.25": true, "no such argument": false} {
		pids, err := Named("slee", argument)
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(pids, cmd.Process.Pid) != want {
			t.Errorf("with argument %q: %v, the process is %d", argument, pids, cmd.Process.Pid)
		}
	}
	if pids, err := Named("other", "1000.25"); err != nil || slices.Contains(pids, cmd.Process.Pid) {
		t.Errorf("by another name: %v, %v", pids, err)
	}
}
