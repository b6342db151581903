//go:build linux && cgo

package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runc/libcontainer/specconv"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// message is what the helper says on its control descriptor, one JSON object a
// line. Fields are only ever added: a newer runtime may talk to an older helper.
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
// The process becomes an orphan when the helper ends, and so a child of the
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
	return p.Pid()
}
