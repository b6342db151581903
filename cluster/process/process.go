// Package process starts, finds and ends the long-lived processes of a cluster.
//
// A process proves that it lives by holding a lock (flock) on its lock file, which
// the kernel lets go of however it dies; the file's text is its pid. Owns: lock files,
// spawning, signals. Must not: know what the processes do.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/skiff-k8s/skiff/host/netlink"
)

// ErrRunning says that another process holds the lock.
var ErrRunning = errors.New("already running")

// Lock takes the lock file for this process and writes its pid. The lock lasts until
// the returned file is closed or the process ends.
func Lock(path string) (io.Closer, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := take(f); err != nil {
		pid, _ := readPID(f)
		err = fmt.Errorf("lock %s: %w", path, err)
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = fmt.Errorf("%w (pid %d holds %s)", ErrRunning, pid, path)
		}
		return nil, errors.Join(err, f.Close())
	}
	// Written first and cut after that: who reads the first line meanwhile finds a pid.
	line := strconv.Itoa(os.Getpid()) + "\n"
	_, err = f.WriteAt([]byte(line), 0)
	if err == nil {
		err = f.Truncate(int64(len(line)))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("write pid to %s: %w", path, err), f.Close())
	}
	return f, nil
}

// take tries for a moment: whoever only looks (Running) holds the lock too, for no longer
// than that takes.
func take(f *os.File) error {
	for i := 1; ; i++ {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if !errors.Is(err, unix.EWOULDBLOCK) || i == tries {
			return err
		}
		time.Sleep(pause)
	}
}

// A lock that is held for a moment only, or whose pid is just being written, is looked at again.
const tries, pause = 50, 10 * time.Millisecond

// Running returns the pid of the process that holds the lock file, 0 if none does.
func Running(path string) (int, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("look at lock: %w", err)
	}
	defer f.Close()
	for i := 1; ; i++ {
		err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB)
		if err == nil {
			return 0, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return 0, fmt.Errorf("look at lock %s: %w", path, err)
		}
		if pid, err := readPID(f); err == nil || i == tries {
			return pid, err
		}
		time.Sleep(pause)
	}
}

func readPID(f *os.File) (int, error) {
	buf := make([]byte, 32)
	n, err := f.ReadAt(buf, 0)
	if err != nil && err != io.EOF {
		return 0, err
	}
	line, _, _ := strings.Cut(string(buf[:n]), "\n")
	pid, err := strconv.Atoi(line)
	if err != nil {
		return 0, fmt.Errorf("lock %s holds no pid", f.Name())
	}
	return pid, nil
}

// Child is a process that was started and outlives its starter.
type Child struct {
	PID int
	// Done is closed when the process ends while its starter still runs.
	Done    <-chan struct{}
	state   *os.ProcessState
	logPath string
	logFrom int64
}

// Place is where a process runs; what is empty is its starter's.
type Place struct {
	// NetNS is the path of a network namespace.
	NetNS string
	// Hostname gives the process a UTS namespace of its own with this name.
	Hostname string
}

// Start runs argv in a session of its own, with output appended to logPath.
func Start(argv []string, logPath string) (*Child, error) {
	return Place{}.Start(argv, logPath)
}

// Start runs argv there, in a session of its own, with output appended to logPath.
func (p Place) Start(argv []string, logPath string) (*Child, error) {
	if err := os.MkdirAll(filepath.Dir(logPath), 0o755); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	log, err := os.OpenFile(logPath, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	defer log.Close()
	st, err := log.Stat()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := p.within(cmd.Start); err != nil {
		return nil, fmt.Errorf("start %s: %w", argv[0], err)
	}
	done := make(chan struct{})
	c := &Child{PID: cmd.Process.Pid, Done: done, logPath: logPath, logFrom: st.Size()}
	go func() {
		_ = cmd.Wait() // the state tells
		c.state = cmd.ProcessState
		close(done)
	}()
	return c, nil
}

// within calls start on a thread that is in the place: a new process is where its parent's thread is.
func (p Place) within(start func() error) error {
	if p == (Place{}) {
		return start()
	}
	return netlink.OnThread(func() error {
		if p.NetNS != "" {
			if err := netlink.Enter(p.NetNS); err != nil {
				return err
			}
		}
		if p.Hostname != "" {
			if err := unix.Unshare(unix.CLONE_NEWUTS); err != nil {
				return fmt.Errorf("make a UTS namespace: %w", err)
			}
			if err := unix.Sethostname([]byte(p.Hostname)); err != nil {
				return fmt.Errorf("set host name %s: %w", p.Hostname, err)
			}
		}
		return start()
	})
}

// Failure explains, after Done, why the process ended: the last line that it wrote.
func (c *Child) Failure() error {
	<-c.Done
	line, err := lastLine(c.logPath, c.logFrom)
	if err != nil || line == "" {
		return fmt.Errorf("ended (%s); see %s", c.state, c.logPath)
	}
	return errors.New(line)
}

// lastLine is the last non-empty line of a file behind an offset.
func lastLine(path string, from int64) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	const most = 64 << 10
	st, err := f.Stat()
	if err != nil {
		return "", err
	}
	from = max(from, st.Size()-most)
	text, err := io.ReadAll(io.NewSectionReader(f, from, most))
	if err != nil {
		return "", err
	}
	text = bytes.TrimSpace(text)
	return string(text[bytes.LastIndexByte(text, '\n')+1:]), nil
}

// Stop ends the process that holds a lock: SIGTERM, SIGKILL after grace. It returns once the
// lock is free.
func Stop(ctx context.Context, lock string, grace time.Duration) error {
	pid, err := Running(lock)
	if err != nil || pid == 0 {
		return err
	}
	for _, step := range []struct {
		sig  syscall.Signal
		wait time.Duration
	}{{syscall.SIGTERM, grace}, {syscall.SIGKILL, 10 * time.Second}} {
		if err := syscall.Kill(pid, step.sig); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("stop pid %d: %w", pid, err)
		}
		within, cancel := context.WithTimeout(ctx, step.wait)
		err := WaitFree(within, lock)
		ended := within.Err() == nil
		cancel()
		if err != nil || ended {
			return err
		}
	}
	return fmt.Errorf("pid %d does not end", pid)
}

// WaitFree returns once the lock is free, or without an error when ctx ends. A pidfd would tell
// at once, but says nothing of a process that was replaced; the lock is the truth, so it is polled.
func WaitFree(ctx context.Context, lock string) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		pid, err := Running(lock)
		if err != nil || pid == 0 {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}
