//go:build linux && cgo

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"

	"github.com/opencontainers/runc/libcontainer"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// execRequest is the one line that the caller writes before anything else.
type execRequest struct {
	Process specs.Process `json:"process"`
	// Cgroups names, per controller ("" on cgroup v2), the directory of the
	// process's own child cgroup: killing that kills what it forked as well.
	Cgroups map[string]string `json:"cgroups,omitempty"`
}

// execIn runs one process in a running container. The caller closing its end
// of the control socket is the order to kill the process with all its children.
func execIn(root, id string) error {
	unix.CloseOnExec(controlFD)
	control := os.NewFile(controlFD, "control")
	in := bufio.NewReader(control)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("read request: %w", err)
	}
	var req execRequest
	if err := json.Unmarshal(line, &req); err != nil {
		return say(control, message{Error: fmt.Sprintf("parse request: %v", err)})
	}
	p, err := startIn(root, id, &req)
	if err != nil {
		return say(control, message{Error: err.Error()})
	}
	// The container's own descriptors are now the process's alone.
	for _, f := range []*os.File{os.Stdin, os.Stdout, os.Stderr} {
		_ = f.Close()
	}
	pid, err := p.Pid()
	if err != nil {
		return say(control, message{Error: err.Error()})
	}
	if err := say(control, message{PID: pid}); err != nil {
		return errors.Join(err, killTree(req.Cgroups, pid))
	}
	givenUp, killed := make(chan struct{}), make(chan error, 1)
	go func() {
		// Nothing more is ever sent: any return means that the caller is gone or gave up.
		_, _ = in.ReadByte()
		close(givenUp)
		killed <- killTree(req.Cgroups, pid)
	}()
	state, err := p.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return say(control, message{Error: fmt.Sprintf("wait: %v", err)})
	}
	select {
	case <-givenUp:
		// The process is dead; what it started must be, before we leave.
		return <-killed
	default:
	}
	ws, ok := state.Sys().(syscall.WaitStatus)
	if !ok {
		return say(control, message{Error: "wait: no wait status"})
	}
	code := ws.ExitStatus()
	if ws.Signaled() {
		code = 128 + int(ws.Signal())
	}
	return say(control, message{Exit: &code})
}

func startIn(root, id string, req *execRequest) (*libcontainer.Process, error) {
	c, err := libcontainer.Load(root, id)
	if err != nil {
		return nil, fmt.Errorf("load container %s: %w", id, err)
	}
	p, err := newProcess(&req.Process)
	if err != nil {
		return nil, err
	}
	paths := map[string]string{}
	for controller, dir := range req.Cgroups {
		paths[controller] = filepath.Base(dir)
	}
	p.SubCgroupPaths = paths
	if req.Process.Terminal {
		unix.CloseOnExec(consoleFD)
		p.ConsoleSocket = os.NewFile(consoleFD, "console")
	} else {
		p.Stdin, p.Stdout, p.Stderr = os.Stdin, os.Stdout, os.Stderr
	}
	if err := c.Run(p); err != nil {
		return nil, err
	}
	return p, nil
}
