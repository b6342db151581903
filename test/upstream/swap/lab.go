package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// lab is a cluster of a row: a data directory of skiff's and processes beside it.
type lab struct {
	options
	dir   string // data directory of the cluster
	work  string // everything else: logs, kubeconfigs, data of twins
	procs []*process
	up    chan error // the end of skiff up
	tidy  []func() error
	flags []string // further ones of skiff up
	nodes []string // where pods are to run, if there are several
	// fail ends the row when a process ends that should not.
	fail context.CancelCauseFunc
}

type process struct {
	name string
	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error
	// stopping says that its end is wanted.
	stopping bool
}

// twin is the path of an upstream binary.
func (l *lab) twin(name string) string { return filepath.Join(l.cache, "twins", name) }

// pki is a file of the cluster's pki directory, under kubeadm's names.
func (l *lab) pki(name string) string { return filepath.Join(l.dir, "pki", name) }

func (l *lab) adminKubeconfig() string { return filepath.Join(l.dir, "kubeconfig") }

// bring starts skiff up without some components and returns once certificates are there, so
// that others can start while it waits for them; ready waits for its end.
func (l *lab) bring(ctx context.Context, without ...string) error {
	argv := []string{l.skiff, "up", "--detach", "--name", "swap", "--data-dir", l.dir}
	argv = append(argv, l.flags...)
	if len(without) > 0 {
		argv = append(argv, "--without", strings.Join(without, ","))
	}
	p, err := l.start("skiff-up", argv...)
	if err != nil {
		return err
	}
	p.stopping = true // it ends by itself
	l.up = make(chan error, 1)
	go func() {
		<-p.done
		if p.err != nil {
			p.err = fmt.Errorf("skiff up: %w: %s", p.err, tail(p.log))
		}
		l.up <- p.err
	}()
	return wait(ctx, time.Minute, "certificates", func() error {
		_, err := os.Stat(l.adminKubeconfig())
		return err
	})
}

// ready returns when skiff up has seen the API, the node and DNS.
func (l *lab) ready(ctx context.Context) error {
	select {
	case err := <-l.up:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// start runs a program until the row ends; its end before that fails the row.
func (l *lab) start(name string, argv ...string) (*process, error) {
	log, err := os.Create(filepath.Join(l.work, name+".log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	p := &process{name: name, cmd: exec.Command(argv[0], argv[1:]...), log: log.Name(), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if strings.HasPrefix(name, "skiff-up") {
		p.cmd.SysProcAttr.Pdeathsig = 0 // the cluster's processes end by skiff down
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	l.procs = append(l.procs, p)
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
		if !p.stopping {
			l.fail(fmt.Errorf("%s ended (%v): %s", name, p.cmd.ProcessState, tail(p.log)))
		}
	}()
	return p, nil
}

func (p *process) stop() {
	p.stopping = true
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	select {
	case <-p.done:
	case <-time.After(15 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

// close ends everything and takes the cluster away; logs of a failed row stay.
func (l *lab) close(failed bool) error {
	var errs []error
	_, err := os.Stat(l.dir)
	made := err == nil
	if !made {
		// The row was about something else.
	} else if text, err := exec.Command(l.skiff, "down", "--data-dir", l.dir).CombinedOutput(); err != nil {
		errs = append(errs, fmt.Errorf("skiff down: %w: %s", err, text))
	}
	for _, p := range slices.Backward(l.procs) {
		p.stop()
	}
	for _, f := range slices.Backward(l.tidy) {
		errs = append(errs, f())
	}
	if failed {
		errs = append(errs, os.RemoveAll(l.keptLogs()), os.MkdirAll(filepath.Dir(l.keptLogs()), 0o755), exec.Command("cp", "-r", filepath.Join(l.dir, "log"), l.work).Run(), exec.Command("cp", "-r", l.work, l.keptLogs()).Run())
	}
	if !made {
		return errors.Join(append(errs, os.RemoveAll(l.work))...)
	}
	if text, err := exec.Command(l.skiff, "down", "--purge", "--data-dir", l.dir).CombinedOutput(); err != nil {
		errs = append(errs, fmt.Errorf("skiff down --purge: %w: %s", err, text))
	}
	return errors.Join(append(errs, os.RemoveAll(l.work))...)
}

// keptLogs is where the logs of a failed row are.
func (l *lab) keptLogs() string { return filepath.Join(l.cache, "results", "swap", "row"+l.rows) }

// loadImages gives the test images to skiff's runtime.
func (l *lab) loadImages(ctx context.Context) error {
	images, err := filepath.EvalSymlinks(filepath.Join(l.cache, "images"))
	if err != nil {
		return err
	}
	text, err := exec.CommandContext(ctx, l.skiff, "image", "load", "--data-dir", l.dir, images).CombinedOutput()
	if err != nil {
		return fmt.Errorf("load test images: %w: %s", err, text)
	}
	return nil
}

// kube runs kubectl as the cluster's administrator and returns what it printed.
func (l *lab) kube(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, l.kubectl, append([]string{"--kubeconfig", l.adminKubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var said strings.Builder // warnings too, which are no part of the answer
	cmd.Stderr = &said
	text, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s%s", strings.Join(args, " "), err, said.String(), text)
	}
	return strings.TrimSpace(string(text)), err
}

// wait tries until it works. What it asks is another process, so there is nothing to wait on.
func wait(ctx context.Context, most time.Duration, what string, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			if cause := context.Cause(ctx); !errors.Is(cause, context.DeadlineExceeded) {
				return cause
			}
			return fmt.Errorf("waited %s for %s: %w", most, what, err)
		}
	}
}

// tail is the last line of a log.
func tail(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}
