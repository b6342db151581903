// Package sandbox makes what the containers of a pod share: network, IPC and
// UTS namespaces held by bind mounts instead of a pause process, shared memory,
// and the pod's hosts, hostname and resolver files. A pod that shares its
// process namespace gets a tiny pid 1.
//
// It must not know CRI services, addresses or images; the network plugs in
// from outside, by the path of the network namespace.
package sandbox

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/skiff-k8s/skiff/containers/monitor"
	"github.com/skiff-k8s/skiff/containers/snapshot"
)

// Mapping maps IDs of a user namespace.
type Mapping struct{ Container, Host, Length uint32 }

// Config says what a sandbox needs of its own; what it does not is the host's.
type Config struct {
	Dir      string // for everything of this sandbox; on a file system that may vanish at reboot
	Hostname string
	Net      bool // own network and UTS namespace
	IPC      bool // own IPC namespace and shared memory
	PID      bool // process namespace shared by the pod
	UIDs     []Mapping
	GIDs     []Mapping
	Sysctls  map[string]string
	DNS      DNS
	Pause    string // the program that is pid 1 of a shared process namespace
}

// DNS is the pod's resolver configuration; empty means the host's.
type DNS struct{ Servers, Searches, Options []string }

// Paths are where containers find the sandbox; "" where it is the host's.
type Paths struct {
	Net, IPC, UTS, PID, User         string
	Shm, Hosts, Hostname, ResolvConf string
}

// Layout returns the paths of a sandbox made with cfg, made yet or not.
func Layout(cfg Config) Paths {
	in := func(on bool, name string) string {
		if !on {
			return ""
		}
		return filepath.Join(cfg.Dir, name)
	}
	p := Paths{
		Net: in(cfg.Net, "ns/net"), UTS: in(cfg.Net, "ns/uts"), IPC: in(cfg.IPC, "ns/ipc"),
		PID: in(cfg.PID, "ns/pid"), User: in(len(cfg.UIDs) > 0, "ns/user"),
		Shm: "/dev/shm", Hosts: in(true, "hosts"), Hostname: in(true, "hostname"), ResolvConf: in(true, "resolv.conf"),
	}
	if cfg.IPC {
		p.Shm = in(true, "shm")
	}
	return p
}

// Create makes the sandbox. On failure nothing is left.
func Create(cfg Config) (err error) {
	defer func() {
		if err != nil {
			err = errors.Join(err, Remove(cfg.Dir))
		}
	}()
	if err := os.MkdirAll(filepath.Join(cfg.Dir, "ns"), 0o700); err != nil {
		return fmt.Errorf("make sandbox directory: %w", err)
	}
	if err := writeFiles(cfg); err != nil {
		return err
	}
	if cfg.IPC {
		if err := mountShm(filepath.Join(cfg.Dir, "shm")); err != nil {
			return err
		}
	}
	return makeNamespaces(cfg)
}

func mountShm(dir string) error {
	if err := os.MkdirAll(dir, 0o1777); err != nil {
		return fmt.Errorf("make shared memory: %w", err)
	}
	if err := unix.Mount("shm", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=1777,size=65536k"); err != nil {
		return fmt.Errorf("mount shared memory: %w", err)
	}
	return nil
}

func writeFiles(cfg Config) error {
	hostname := cfg.Hostname
	if hostname == "" {
		h, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("read hostname: %w", err)
		}
		hostname = h
	}
	resolv, err := resolvConf(cfg.DNS)
	if err != nil {
		return err
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read the host's hosts file: %w", err)
	}
	for name, content := range map[string]string{"hostname": hostname + "\n", "resolv.conf": resolv, "hosts": string(hosts)} {
		path := filepath.Join(cfg.Dir, name)
		err := os.WriteFile(path, []byte(content), 0o644)
		if err == nil {
			err = os.Chmod(path, 0o644) // for every user of the pod, whatever the umask is
		}
		if err != nil {
			return fmt.Errorf("write sandbox file: %w", err)
		}
	}
	return nil
}

func resolvConf(d DNS) (string, error) {
	if len(d.Servers)+len(d.Searches)+len(d.Options) == 0 {
		b, err := os.ReadFile("/etc/resolv.conf")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("read the host's resolv.conf: %w", err)
		}
		return string(b), nil
	}
	var b strings.Builder
	if len(d.Searches) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(d.Searches, " "))
	}
	for _, s := range d.Servers {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if len(d.Options) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(d.Options, " "))
	}
	return b.String(), nil
}

// Intact says whether the sandbox's namespaces are still held, as they are not
// after a reboot.
func Intact(cfg Config) bool {
	p := Layout(cfg)
	for _, ns := range []string{p.Net, p.IPC, p.UTS, p.PID, p.User} {
		if ns == "" {
			continue
		}
		var st unix.Statfs_t
		if err := unix.Statfs(ns, &st); err != nil || st.Type != unix.NSFS_MAGIC {
			return false
		}
	}
	return true
}

// Release gives the namespaces back, and ends the pod's pid 1: the end of a
// sandbox whose files stay readable. It may be called again.
func Release(dir string) error {
	errs := []error{endPause(dir)}
	for _, ns := range []string{"net", "ipc", "uts", "pid", "user"} {
		errs = append(errs, snapshot.Unmount(filepath.Join(dir, "ns", ns)))
	}
	errs = append(errs, snapshot.Unmount(filepath.Join(dir, "shm")))
	return errors.Join(errs...)
}

// Remove releases the sandbox and deletes its directory.
func Remove(dir string) error {
	if err := Release(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove sandbox directory: %w", err)
	}
	return nil
}

func endPause(dir string) error {
	s, err := readPause(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return monitor.Kill(&monitor.State{PID: s.PID, Start: s.Start})
}
