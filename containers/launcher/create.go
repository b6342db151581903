//go:build linux && cgo

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// message is what the launcher says on its control descriptor, one JSON object a
// line. Fields are only ever added: a newer runtime may talk to an older launcher.
type message struct {
	PID   int    `json:"pid,omitempty"`
	Exit  *int   `json:"exit,omitempty"`
	Error string `json:"error,omitempty"`
}

func say(w *os.File, m message) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	_, err = w.Write(append(b, '\n'))
	return err
}

// create makes the container described by the spec file and starts its process.
// The process becomes an orphan when the launcher ends, and so a child of the
// monitor, the nearest subreaper above.
func create(root, id, specFile string) error {
	control := os.NewFile(controlFD, "control")
	unix.CloseOnExec(controlFD)
	pid, err := start(root, id, specFile)
	if err != nil {
		return say(control, message{Error: err.Error()})
	}
	return say(control, message{PID: pid})
}

func start(root, id, specFile string) (int, error) {
	b, err := os.ReadFile(specFile)
	if err != nil {
		return 0, fmt.Errorf("read spec: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(b, &spec); err != nil {
		return 0, fmt.Errorf("parse spec %s: %w", specFile, err)
	}
	config, err := specconv.CreateLibcontainerConfig(&specconv.CreateOpts{CgroupName: id, Spec: &spec})
	if err != nil {
		return 0, fmt.Errorf("convert spec: %w", err)
	}
	c, err := libcontainer.Create(root, id, config)
	if err != nil {
		return 0, fmt.Errorf("create container: %w", err)
	}
	p, err := newProcess(spec.Process)
	if err != nil {
		return 0, err
	}
	p.Init = true
	if spec.Process.Terminal {
		unix.CloseOnExec(consoleFD)
		p.ConsoleSocket = os.NewFile(consoleFD, "console")
	} else {
		p.Stdin, p.Stdout, p.Stderr = os.Stdin, os.Stdout, os.Stderr
	}
	if err := c.Run(p); err != nil {
		// Leaves nothing behind: the caller may retry under the same id.
		_ = c.Signal(unix.SIGKILL)
		_, _ = p.Wait()
		if derr := c.Destroy(); derr != nil {
			return 0, fmt.Errorf("%w (and clean-up: %v)", err, derr)
		}
		return 0, err
	}
	pid, err := p.Pid()
	if err != nil {
		return 0, err
	}
	return pid, awaitExec(pid)
}

// awaitExec waits until the process has become the container's command. Until
// then it is libcontainer's init, a Go program, which takes the first signal
// for a reason to exit with status 2; whoever is told that the container runs
// may signal it at once. There is nothing to wait on: the name is polled.
func awaitExec(pid int) error {
	const patience = 10 * time.Second
	comm := fmt.Sprintf("/proc/%d/comm", pid)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		b, err := os.ReadFile(comm)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			return nil // over already
		}
		if err != nil {
			return fmt.Errorf("look at process %d: %w", pid, err)
		}
		if !strings.HasPrefix(string(b), initName) {
			return nil
		}
		if state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil && strings.Contains(string(state), ") Z ") {
			return nil // the command could not be executed; the monitor tells
		}
		time.Sleep(200 * time.Microsecond)
	}
	return nil
}

// initName is what libcontainer's stage in the container is called.
const initName = "runc:["
