// Package monitor starts and speaks to the small C process that is the parent
// of one container and outlives the runtime (see src/). The protocol is one
// packet a message on a SOCK_SEQPACKET socket; monitor.h defines it.
//
// It must not know CRI, OCI specs or images.
package monitor

import (
	"bufio"
	"encoding/json"
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

	"github.com/skiff-k8s/skiff/containers/record"
)

// Exit is how a container ended, as its monitor left it on disk.
type Exit struct {
	record.Header
	Code       int32     `json:"code"`
	Signal     int32     `json:"signal"`
	OOM        bool      `json:"oom"`
	FinishedAt time.Time `json:"finishedAt"`
}

// exitVersion and stateVersion are the newest formats understood.
const (
	exitVersion  = 1
	stateVersion = 1
)

// ReadExit reads the exit file; os.ErrNotExist while there is none.
func ReadExit(path string) (*Exit, error) {
	var e Exit
	if err := record.Load(path, &e, exitVersion); err != nil {
		return nil, err
	}
	return &e, nil
}

// State names a monitor's processes for a runtime that cannot ask it.
type State struct {
	record.Header
	MonitorPID   int    `json:"monitorPid"`
	MonitorStart uint64 `json:"monitorStart"`
	PID          int    `json:"pid"`
	Start        uint64 `json:"start"`
}

// ReadState reads what the monitor in dir wrote about itself.
func ReadState(dir string) (*State, error) {
	var s State
	if err := record.Load(filepath.Join(dir, "monitor.json"), &s, stateVersion); err != nil {
		return nil, err
	}
	return &s, nil
}

// Config says what to start.
type Config struct {
	Program   string // the monitor
	Dir       string // made by the caller; its socket and state file go there
	ExitFile  string
	LogFile   string // "" for none
	OOMFile   string // memory.events or memory.oom_control, "" for none
	TTY       bool
	Stdin     bool
	StdinOnce bool
	Launcher  []string // the program that makes the container
}

// Start starts a monitor, which starts the container, and returns the pid of
// the container's init. It returns when the container's process runs, or with
// the reason why it does not.
func Start(cfg Config) (pid int, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("start monitor: %w", err)
	}
	defer func() { _ = r.Close() }()
	args := []string{"--dir", cfg.Dir, "--exit", cfg.ExitFile, "--log", cfg.LogFile, "--oom", cfg.OOMFile}
	for _, f := range []struct {
		on   bool
		name string
	}{{cfg.TTY, "--tty"}, {cfg.Stdin, "--stdin"}, {cfg.StdinOnce, "--stdin-once"}} {
		if f.on {
			args = append(args, f.name)
		}
	}
	cmd := exec.Command(cfg.Program, append(append(args, "--"), cfg.Launcher...)...)
	cmd.Env = []string{}
	cmd.Dir = "/"
	cmd.ExtraFiles = []*os.File{w}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = cmd.Start()
	if cerr := w.Close(); err == nil && cerr != nil {
		err = cerr
	}
	if err != nil {
		return 0, fmt.Errorf("start monitor: %w", err)
	}
	// Reaps the monitor while we are its parent; its result is the exit file.
	go func() { _ = cmd.Wait() }()
	line, err := bufio.NewReader(r).ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, fmt.Errorf("read from monitor: %w", err)
	}
	var m struct {
		PID   int    `json:"pid"`
		Error string `json:"error"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return 0, fmt.Errorf("the monitor ended before the container ran, saying %q", line)
	}
	if m.Error != "" {
		return 0, errors.New(m.Error)
	}
	return m.PID, nil
}

// Alive says whether pid is still the process that began at start (in ticks
// since boot), so that a reused pid is not taken for it.
func Alive(pid int, start uint64) bool {
	if pid <= 0 {
		return false
	}
	got, state, err := statOf(pid)
	return err == nil && got == start && state != 'Z' && state != 'X'
}

// StartTime is field 22 of /proc/PID/stat.
func StartTime(pid int) (uint64, error) {
	t, _, err := statOf(pid)
	return t, err
}

func statOf(pid int) (start uint64, state byte, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, 0, err
	}
	// After the last ')': the command name may hold anything.
	s := string(b)
	fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:])
	if len(fields) < 20 {
		return 0, 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	start, err = strconv.ParseUint(fields[19], 10, 64)
	return start, fields[0][0], err
}

// killWait is how long a killed process may take to die: one in an
// uninterruptible call dies when the call returns.
const killWait = 10 * time.Second

// awaitEnd waits until the process of a pidfd has ended.
func awaitEnd(pidfd int) error {
	p := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(p, int(killWait.Milliseconds()))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && n == 0 {
			return errors.New("it does not die")
		}
		return err
	}
}

// Kill ends the processes that a state file names, if they are still the same:
// for a monitor that no longer answers. It returns when they have ended.
func Kill(s *State) error {
	return s.each(func(pid, pidfd int) error {
		err := unix.PidfdSendSignal(pidfd, unix.SIGKILL, nil, 0)
		if err == nil {
			err = awaitEnd(pidfd)
		}
		if err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill process %d: %w", pid, err)
		}
		return nil
	})
}

// AwaitEnd returns when the processes of a state file have ended, which others kill.
func AwaitEnd(s *State) error {
	return s.each(func(pid, pidfd int) error {
		if err := awaitEnd(pidfd); err != nil {
			return fmt.Errorf("wait for process %d: %w", pid, err)
		}
		return nil
	})
}

// each calls do for the processes of a state file that are still the same.
func (s *State) each(do func(pid, pidfd int) error) error {
	var errs []error
	for _, p := range []struct {
		pid   int
		start uint64
	}{{s.PID, s.Start}, {s.MonitorPID, s.MonitorStart}} {
		fd, err := unix.PidfdOpen(p.pid, 0)
		if err != nil {
			continue // gone
		}
		// Checked after the pidfd holds the process: no reuse in between.
		if Alive(p.pid, p.start) {
			if err := do(p.pid, fd); err != nil {
				errs = append(errs, err)
			}
		}
		_ = unix.Close(fd)
	}
	return errors.Join(errs...)
}
