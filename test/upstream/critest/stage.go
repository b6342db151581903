package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/skiff-k8s/skiff/test/upstream/isolated"
)

// registries are the hosts that the suite's images are named after.
var registries = []string{"registry.k8s.io", "gcr.io", "k8s.gcr.io"}

// stage is a registry and a runtime, in the namespaces of this process.
type stage struct {
	o        options
	root     string
	socket   string
	registry *exec.Cmd
	runtime  *exec.Cmd
}

// startStage makes what a runtime expects of a host, leads the registries' names to a registry
// of the suite's images, and serves CRI.
func startStage(ctx context.Context, o options) (s *stage, err error) {
	s = &stage{o: o}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
		}
	}()
	if err := isolated.Prepare(ctx, o.out, map[string][]string{"127.0.0.1": registries}); err != nil {
		return s, err
	}
	if s.registry, err = s.start("registry", o.registry(), "-layout", o.images(), "-listen", "127.0.0.1:80"); err != nil {
		return s, err
	}
	// Paths of sockets are short.
	if s.root, err = os.MkdirTemp("", "critest-"); err != nil {
		return s, err
	}
	s.socket = filepath.Join(s.root, "run", "cri.sock")
	if s.runtime, err = s.start("skiff", o.skiff, s.flags()...); err != nil {
		return s, err
	}
	return s, s.wait(ctx)
}

func (s *stage) flags() []string {
	return []string{"containers", "--root", s.root, "--bridge", "critst", "--cgroup-root", "/" + filepath.Base(s.root), "--plain-http-registry", strings.Join(registries, ",")}
}

func (s *stage) start(name, program string, args ...string) (*exec.Cmd, error) {
	log, err := os.Create(filepath.Join(s.o.out, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return cmd, nil
}

// wait returns once the runtime's socket is served.
func (s *stage) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.Dial("unix", s.socket)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the runtime does not serve; its log is %s: %w", filepath.Join(s.o.out, "skiff.log"), err)
		}
	}
}

// stop ends both and takes away what the runtime made. It fails if something is left.
func (s *stage) stop() error {
	var errs []error
	for _, cmd := range []*exec.Cmd{s.runtime, s.registry} {
		if cmd != nil {
			errs = append(errs, cmd.Process.Signal(syscall.SIGTERM))
			_ = cmd.Wait() // a signal ended it
		}
	}
	if s.runtime != nil {
		if out, err := exec.Command(s.o.skiff, append(s.flags(), "--down")...).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("take the runtime's work away: %w: %s", err, out))
		}
	}
	if s.root != "" {
		errs = append(errs, os.RemoveAll(s.root))
	}
	return errors.Join(errs...)
}
