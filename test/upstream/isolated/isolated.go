// Package isolated runs a command once more in namespaces of its own, and makes there what a node
// expects of a host.
//
// Owns: network and mount namespace of a run of upstream's suites. Must not: know what is run in them.
package isolated

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// insideVariable marks the process that runs in namespaces of its own.
const insideVariable = "SKIFF_SUITE_INSIDE"

// Inside says whether this process is the one that Again started.
func Inside() bool { return os.Getenv(insideVariable) != "" }

// Again runs this command once more, in a network and a mount namespace of its own: what runs on
// the host neither sees the tests nor is disturbed by them. Signals are passed on, for the process
// inside has something to take away.
func Again(ctx context.Context) (exitCode int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 1, err
	}
	cmd := exec.Command(self, os.Args[1:]...)
	cmd.Env = append(os.Environ(), insideVariable+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS,
		Setpgid:    true, // a terminal's interrupt comes once: from here
	}
	if err := cmd.Start(); err != nil {
		return 1, fmt.Errorf("start in namespaces of its own: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err = <-ended:
	case <-ctx.Done():
		_ = cmd.Process.Signal(syscall.SIGTERM)
		err = <-ended
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return max(1, exit.ExitCode()), nil
	}
	return 0, err
}

// Address is that of the host inside, of TEST-NET-1 (RFC 5737).
const Address = "192.0.2.10"

// Prepare makes what a node expects of a host: shared mounts, a loopback, an address with a
// default route, behind which nobody answers (so that cluster addresses are routed before they are
// translated), and an /etc/hosts, kept in dir, with names for addresses beside localhost.
func Prepare(ctx context.Context, dir string, names map[string][]string) error {
	for _, flag := range []uintptr{syscall.MS_PRIVATE, syscall.MS_SHARED} {
		if err := syscall.Mount("", "/", "", syscall.MS_REC|flag, ""); err != nil {
			return fmt.Errorf("set the mounts' propagation: %w", err)
		}
	}
	for _, args := range []string{
		"link set lo up",
		"link add eth0 type veth peer name outside",
		"addr add " + Address + "/24 dev eth0",
		"link set eth0 up",
		"link set outside up",
		"route add default via 192.0.2.1",
	} {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, strings.TrimSpace(string(out)))
		}
	}
	hosts := filepath.Join(dir, "hosts")
	text := "127.0.0.1 localhost\n::1 localhost\n"
	for _, address := range slices.Sorted(maps.Keys(names)) {
		text += address + " " + strings.Join(names[address], " ") + "\n"
	}
	if err := os.WriteFile(hosts, []byte(text), 0o644); err != nil {
		return err
	}
	if err := syscall.Mount(hosts, "/etc/hosts", "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("lead names here: %w", err)
	}
	return nil
}
