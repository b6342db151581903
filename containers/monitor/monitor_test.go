package monitor

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/containers/oci"
)

// The monitor takes any program for its launcher: one that starts a process,
// says its pid on descriptor 3 and ends, as the real one does. No root needed.
type fixture struct {
	t   *testing.T
	cfg Config
	pid int
}

func start(t *testing.T, script string, change func(*Config)) *fixture {
	t.Helper()
	dir, err := os.MkdirTemp("", "skiff-monitor-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program, err := oci.Monitor.Extract(dir)
	if err != nil {
		t.Skipf("needs the monitor: %v", err)
	}
	f := &fixture{t: t, cfg: Config{
		Program: program, Dir: dir, ExitFile: filepath.Join(dir, "exit.json"), LogFile: filepath.Join(dir, "log"),
		Launcher: []string{"/bin/sh", "-c", `exec 4<&0; (exec 3>&-; ` + script + `) <&4 & echo "{\"pid\":$!}" >&3`},
	}}
	if change != nil {
		change(&f.cfg)
	}
	if f.pid, err = Start(f.cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if s, err := ReadState(dir); err == nil {
			if err := Kill(s); err != nil {
				t.Error(err)
			}
		}
	})
	return f
}

func (f *fixture) wait() *Exit {
	f.t.Helper()
	w, err := Subscribe(f.cfg.Dir)
	if err == nil {
		e, err := w.Wait()
		if err != nil {
			f.t.Fatal(err)
		}
		return e
	}
	if !errors.Is(err, ErrGone) {
		f.t.Fatal(err)
	}
	e, err := ReadExit(f.cfg.ExitFile)
	if err != nil {
		f.t.Fatal(err)
	}
	return e
}

// lines are the log's without their times.
func (f *fixture) lines() []string {
	f.t.Helper()
	b, err := os.ReadFile(f.cfg.LogFile)
	if err != nil {
		f.t.Fatal(err)
	}
	var out []string
	for line := range strings.Lines(string(b)) {
		stamp, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
		at, err := time.Parse(time.RFC3339Nano, stamp)
		if err != nil || time.Since(at).Abs() > time.Minute {
			f.t.Fatalf("time %q: %v", stamp, err)
		}
		out = append(out, rest)
	}
	return out
}

func TestExits(t *testing.T) {
	for script, want := range map[string]Exit{
		"exit 0":                                {Code: 0},
		"exit 41":                               {Code: 41},
		"kill -TERM $(exec sh -c 'echo $PPID')": {Code: 143, Signal: 15},
	} {
		t.Run(script, func(t *testing.T) {
			f := start(t, "sleep 0.05; "+script, nil)
			e := f.wait()
			if e.Code != want.Code || e.Signal != want.Signal || e.OOM || time.Since(e.FinishedAt).Abs() > time.Minute {
				t.Errorf("got %+v", e)
			}
			onDisk, err := ReadExit(f.cfg.ExitFile)
			if err != nil || *onDisk != *e {
				t.Errorf("on disk %+v, %v", onDisk, err)
			}
		})
	}
}

func TestOOMCounts(t *testing.T) {
	oom := filepath.Join(t.TempDir(), "events")
	for content, want := range map[string]bool{"oom 3\noom_kill 0\n": false, "oom 3\noom_kill 2\n": true} {
		if err := os.WriteFile(oom, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		f := start(t, "sleep 0.05; exit 9", func(c *Config) { c.OOMFile = oom })
		if e := f.wait(); e.OOM != want {
			t.Errorf("%q: got %+v", content, e)
		}
	}
}

func TestLauncherFails(t *testing.T) {
	for script, want := range map[string]string{
		`echo '{"error":"no such thing"}' >&3`: "no such thing",
		"exit 3":                               "without a word",
		"echo nonsense >&3":                    "nonsense",
	} {
		f := &fixture{t: t}
		dir := t.TempDir()
		program, err := oci.Monitor.Extract(dir)
		if err != nil {
			t.Skipf("needs the monitor: %v", err)
		}
		f.cfg = Config{Program: program, Dir: dir, ExitFile: filepath.Join(dir, "exit"), Launcher: []string{"/bin/sh", "-c", script}}
		if _, err := Start(f.cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", script, err)
		}
	}
}

func TestLog(t *testing.T) {
	f := start(t, `printf 'one\ntwo\n\n'; printf err >&2; sleep 0.1; head -c 20000 /dev/zero | tr '\0' x; printf '\nend'`, nil)
	f.wait()
	want := []string{"stdout F one", "stdout F two", "stdout F ", "stderr P err", "stdout P " + strings.Repeat("x", 16384), "stdout F " + strings.Repeat("x", 20000-16384), "stdout P end"}
	got := f.lines()
	// Which of two streams comes first is nobody's to say.
	var out, errs []string
	for _, l := range got {
		if strings.HasPrefix(l, "stderr") {
			errs = append(errs, l)
			continue
		}
		out = append(out, l)
	}
	if strings.Join(errs, "|") != want[3] || strings.Join(out, "|") != strings.Join(append(want[:3:3], want[4:]...), "|") {
		t.Errorf("got %.300q", got)
	}
}

func TestLogIsComplete(t *testing.T) {
	f := start(t, "seq 1 200000", nil)
	f.wait()
	got := f.lines()
	if len(got) != 200000 {
		t.Fatalf("%d lines", len(got))
	}
	for i, l := range got {
		if l != fmt.Sprintf("stdout F %d", i+1) {
			t.Fatalf("line %d is %q", i+1, l)
		}
	}
}

func TestSignalAndReopen(t *testing.T) {
	f := start(t, "trap 'echo told; exit 5' USR1; echo up; while :; do sleep 0.02; done", nil)
	await(t, func() error { return wantLines(f, "stdout F up") })
	if err := os.Rename(f.cfg.LogFile, f.cfg.LogFile+".1"); err != nil {
		t.Fatal(err)
	}
	if err := ReopenLog(f.cfg.Dir); err != nil {
		t.Fatal(err)
	}
	if err := Signal(f.cfg.Dir, syscall.SIGUSR1); err != nil {
		t.Fatal(err)
	}
	if e := f.wait(); e.Code != 5 {
		t.Errorf("got %+v", e)
	}
	if err := wantLines(f, "stdout F told"); err != nil {
		t.Error(err)
	}
	await(t, func() error {
		if err := Signal(f.cfg.Dir, syscall.SIGTERM); !errors.Is(err, ErrGone) && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
}

func wantLines(f *fixture, want ...string) error {
	if got := f.lines(); strings.Join(got, "|") != strings.Join(want, "|") {
		return fmt.Errorf("got %q", got)
	}
	return nil
}

func await(t *testing.T, f func() error) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Input of any size arrives whole and in order, and comes back.
func TestAttachEchoes(t *testing.T) {
	f := start(t, "exec cat", func(c *Config) { c.Stdin, c.StdinOnce = true, true })
	in := make([]byte, 3<<20)
	for i := range in {
		in[i] = byte('a' + i%26)
		if i%1000 == 999 {
			in[i] = '\n'
		}
	}
	var out bytes.Buffer
	if err := Attach(f.cfg.Dir, bytes.NewReader(in), &out, nil, nil); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(out.Bytes(), in) {
		t.Errorf("%d bytes came back of %d", out.Len(), len(in))
	}
	if e := f.wait(); e.Code != 0 {
		t.Errorf("got %+v", e)
	}
}

func TestStdinStaysOpenBetweenClients(t *testing.T) {
	f := start(t, "read a; read b; echo $a $b", func(c *Config) { c.Stdin = true })
	for _, line := range []string{"one\n", "two\n"} {
		closed := make(chan struct{})
		done := make(chan error, 1)
		r, w := io.Pipe()
		go func() { done <- Attach(f.cfg.Dir, r, nil, nil, closed) }()
		if _, err := w.Write([]byte(line)); err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
		if line == "one\n" {
			// Sent, and the end of it too, before we leave.
			time.Sleep(100 * time.Millisecond)
			close(closed)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	f.wait()
	if err := wantLines(f, "stdout F one two"); err != nil {
		t.Error(err)
	}
}

// A client that does not read is cut off; the container goes on.
func TestStalledClientIsCutOff(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for the monitor's patience")
	}
	f := start(t, "seq 1 300000; echo done", nil)
	c, err := Dial(f.cfg.Dir)
	if errors.Is(err, ErrGone) {
		t.Skip("over already")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	if err := c.call(reqAttach, nil); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if e := f.wait(); e.Code != 0 {
		t.Errorf("got %+v", e)
	}
	if took := time.Since(began); took > time.Minute {
		t.Errorf("it was held up for %s", took)
	}
	if got := f.lines(); got[len(got)-1] != "stdout F done" {
		t.Errorf("the log ends with %q", got[len(got)-1])
	}
}

// However many are attached, a signal gets through.
func TestManyClients(t *testing.T) {
	f := start(t, "exec sleep 100", nil)
	refused := 0
	for range 20 {
		c, err := Dial(f.cfg.Dir)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if err := c.call(reqAttach, nil); errors.Is(err, syscall.EBUSY) {
			refused++
			_ = c.Close()
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if refused != 4 {
		t.Errorf("%d were refused", refused)
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if err := Signal(f.cfg.Dir, 0); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// Whatever is sent, the monitor answers the next one and keeps the container.
func TestGarbageOnTheSocket(t *testing.T) {
	f := start(t, "exec sleep 100", func(c *Config) { c.Stdin = true })
	var wg sync.WaitGroup
	for seed := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(seed), 1))
			for range 200 {
				c, err := Dial(f.cfg.Dir)
				if err != nil {
					t.Error(err)
					return
				}
				b := make([]byte, r.IntN(200))
				for i := range b {
					b[i] = byte(r.Uint32())
				}
				if len(b) > 0 && (b[0] == reqKill || b[0] == reqClose) {
					b[0] = 'z'
				}
				_ = c.c.(*net.UnixConn).SetDeadline(time.Now().Add(time.Second))
				_, _ = c.c.Write(b)
				_ = c.Close()
			}
		})
	}
	wg.Wait()
	if err := Signal(f.cfg.Dir, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if e := f.wait(); e.Code != 137 || e.Signal != 9 {
		t.Errorf("got %+v", e)
	}
}

// The container dies with nobody watching but its monitor.
func TestStateNamesTheProcesses(t *testing.T) {
	f := start(t, "exec sleep 100", nil)
	s, err := ReadState(f.cfg.Dir)
	if err != nil || s.PID != f.pid || !Alive(s.PID, s.Start) || !Alive(s.MonitorPID, s.MonitorStart) || Alive(s.PID, s.Start+1) {
		t.Fatalf("%+v, %v", s, err)
	}
	if err := Kill(s); err != nil {
		t.Fatal(err)
	}
	if Alive(s.PID, s.Start) || Alive(s.MonitorPID, s.MonitorStart) {
		t.Error("still alive")
	}
	if _, err := Dial(f.cfg.Dir); !errors.Is(err, ErrGone) {
		t.Errorf("dial: %v", err)
	}
}
