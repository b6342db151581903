package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/skiff-k8s/skiff/containers/monitor"
	"github.com/skiff-k8s/skiff/containers/record"
)

const pauseVersion = 1

// pauseRecord names the pod's pid 1.
type pauseRecord struct {
	record.Header
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
}

func readPause(dir string) (*pauseRecord, error) {
	var p pauseRecord
	if err := record.Load(filepath.Join(dir, "pause.json"), &p, pauseVersion); err != nil {
		return nil, err
	}
	return &p, nil
}

func makeNamespaces(cfg Config) error {
	if cfg.PID || len(cfg.UIDs) > 0 {
		return fromProcess(cfg)
	}
	if !cfg.Net && !cfg.IPC {
		return nil
	}
	flags := 0
	if cfg.Net {
		flags |= unix.CLONE_NEWNET | unix.CLONE_NEWUTS
	}
	if cfg.IPC {
		flags |= unix.CLONE_NEWIPC
	}
	return onThread(func(tid int) error {
		if err := unix.Unshare(flags); err != nil {
			return fmt.Errorf("make namespaces: %w", err)
		}
		if err := pin(cfg, fmt.Sprintf("/proc/self/task/%d/ns", tid)); err != nil {
			return err
		}
		return configure(cfg)
	})
}

// onThread runs f on a thread that is thrown away afterwards, together with
// the namespaces it has entered.
func onThread(f func(tid int) error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- f(unix.Gettid())
	}()
	return <-done
}

// fromProcess takes the namespaces from a new process: user and process
// namespaces cannot be entered by a thread of ours.
func fromProcess(cfg Config) error {
	var flags uintptr
	if cfg.Net {
		flags |= unix.CLONE_NEWNET | unix.CLONE_NEWUTS
	}
	if cfg.IPC {
		flags |= unix.CLONE_NEWIPC
	}
	if cfg.PID {
		flags |= unix.CLONE_NEWPID
	}
	attr := &syscall.SysProcAttr{Setsid: true}
	if len(cfg.UIDs) > 0 {
		flags |= unix.CLONE_NEWUSER
		attr.UidMappings, attr.GidMappings = mappings(cfg.UIDs), mappings(cfg.GIDs)
		attr.GidMappingsEnableSetgroups = true
	}
	attr.Cloneflags = flags
	cmd := exec.Command(cfg.Pause, "pause")
	cmd.Env, cmd.Dir, cmd.SysProcAttr = []string{}, "/", attr
	// It ends with this pipe unless it is told that its record is on disk.
	wait, confirm, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	defer confirm.Close()
	cmd.ExtraFiles = []*os.File{wait}
	err = cmd.Start()
	wait.Close()
	if err != nil {
		return fmt.Errorf("make namespaces: %w", err)
	}
	pid := cmd.Process.Pid
	end := func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	start, err := monitor.StartTime(pid)
	if err == nil && cfg.PID {
		// On disk before anything can fail, so that it can always be found again.
		err = record.Save(filepath.Join(cfg.Dir, "pause.json"), pauseRecord{record.Header{Version: pauseVersion}, pid, start}, false)
	}
	if err == nil && cfg.PID {
		_, err = confirm.Write([]byte{1})
	}
	if err == nil {
		err = pin(cfg, "/proc/"+strconv.Itoa(pid)+"/ns")
	}
	if err == nil {
		err = onThread(func(int) error {
			if err := enter(cfg); err != nil {
				return err
			}
			return configure(cfg)
		})
	}
	if err != nil || !cfg.PID {
		end() // it only lent its namespaces
		return err
	}
	go func() { _ = cmd.Wait() }()
	return nil
}

func mappings(in []Mapping) []syscall.SysProcIDMap {
	var out []syscall.SysProcIDMap
	for _, m := range in {
		out = append(out, syscall.SysProcIDMap{ContainerID: int(m.Container), HostID: int(m.Host), Size: int(m.Length)})
	}
	return out
}

// pin bind-mounts the namespaces of a process, which keeps them alive.
func pin(cfg Config, from string) error {
	p := Layout(cfg)
	for _, ns := range []struct{ name, path string }{{"net", p.Net}, {"ipc", p.IPC}, {"uts", p.UTS}, {"pid", p.PID}, {"user", p.User}} {
		if ns.path == "" {
			continue
		}
		f, err := os.OpenFile(ns.path, os.O_RDONLY|os.O_CREATE|os.O_EXCL, 0o444)
		if err != nil {
			return fmt.Errorf("pin %s namespace: %w", ns.name, err)
		}
		if err := f.Close(); err != nil {
			return fmt.Errorf("pin %s namespace: %w", ns.name, err)
		}
		if err := unix.Mount(filepath.Join(from, ns.name), ns.path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("pin %s namespace: %w", ns.name, err)
		}
	}
	return nil
}

func enter(cfg Config) error {
	p := Layout(cfg)
	for _, ns := range []string{p.Net, p.IPC, p.UTS} {
		if ns == "" {
			continue
		}
		if err := setns(ns); err != nil {
			return err
		}
	}
	return nil
}

func setns(path string) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open namespace %s: %w", path, err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Setns(fd, 0); err != nil {
		return fmt.Errorf("enter namespace %s: %w", path, err)
	}
	return nil
}

// InNetwork runs f on a thread in the network namespace at path.
func InNetwork(path string, f func() error) error {
	return onThread(func(int) error {
		if err := setns(path); err != nil {
			return err
		}
		return f()
	})
}

// configure runs inside the new namespaces.
func configure(cfg Config) error {
	if cfg.Net {
		if cfg.Hostname != "" {
			if err := unix.Sethostname([]byte(cfg.Hostname)); err != nil {
				return fmt.Errorf("set hostname %q: %w", cfg.Hostname, err)
			}
		}
		if err := loopbackUp(); err != nil {
			return err
		}
		// As containerd has it since 2.0: the namespace is the pod's alone,
		// low ports and ping need no privilege there.
		defaults := map[string]string{"net.ipv4.ip_unprivileged_port_start": "0"}
		if len(cfg.UIDs) == 0 {
			defaults["net.ipv4.ping_group_range"] = "0 2147483647"
		}
		for key, value := range defaults {
			if _, given := cfg.Sysctls[key]; given {
				continue
			}
			if err := setSysctl(key, value); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	for key, value := range cfg.Sysctls {
		if !namespaced(key, cfg) {
			return fmt.Errorf("sysctls: %s is not of a namespace that this pod has to itself", key)
		}
		if err := setSysctl(key, value); err != nil {
			return err
		}
	}
	return nil
}

// namespaced keeps a pod from setting what is the host's.
func namespaced(key string, cfg Config) bool {
	k := strings.ReplaceAll(key, "/", ".")
	switch {
	case strings.HasPrefix(k, "net."):
		return cfg.Net
	case strings.HasPrefix(k, "fs.mqueue."), strings.HasPrefix(k, "kernel.msg"), strings.HasPrefix(k, "kernel.shm"), k == "kernel.sem":
		return cfg.IPC
	}
	return false
}

func setSysctl(key, value string) error {
	// With a slash as separator, dots belong to names (net/ipv4/conf/eth0.1/…).
	file := key
	if !strings.Contains(key, "/") {
		file = strings.ReplaceAll(key, ".", "/")
	}
	file = filepath.Join("/proc/sys", filepath.Clean("/"+file))
	if err := os.WriteFile(file, []byte(value), 0); err != nil {
		return fmt.Errorf("sysctls: set %s to %q: %w", key, value, err)
	}
	return nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	defer func() { _ = unix.Close(fd) }()
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	req.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, req); err != nil {
		return fmt.Errorf("bring loopback up: %w", err)
	}
	return nil
}
