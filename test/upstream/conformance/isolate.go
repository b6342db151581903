package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// insideVariable marks the process that runs in namespaces of its own.
const insideVariable = "SKIFF_CONFORMANCE_INSIDE"

func inside() bool { return os.Getenv(insideVariable) != "" }

// isolate runs this command once more, in a network and a mount namespace of its own: a
// cluster on the host neither sees the one of the tests nor is disturbed by it.
// Signals are passed on, for the process inside has a cluster to take away.
func isolate(ctx context.Context) (exitCode int, err error) {
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

// hostAddress is the first node's. The registry is there, where all nodes reach it.
const hostAddress = "192.0.2.10"

// prepareNamespaces makes what a cluster expects of a host: shared mounts, a loopback, an
// address with a default route (so that cluster addresses are routed before they are
// translated), and the registries' names.
func prepareNamespaces(ctx context.Context, dir string, registries []string) error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	// The addresses are of TEST-NET-1 (RFC 5737); nobody answers behind the route.
	for _, args := range []string{
		"link set lo up",
		"link add eth0 type veth peer name outside",
		"addr add " + hostAddress + "/24 dev eth0",
		"link set eth0 up",
		"link set outside up",
		"route add default via 192.0.2.1",
	} {
		if out, err := exec.CommandContext(ctx, "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, strings.TrimSpace(string(out)))
		}
	}
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	hosts := filepath.Join(dir, "hosts")
	text := fmt.Sprintf("127.0.0.1 localhost\n::1 localhost\n%s %s\n%s %s\n", hostAddress, name, hostAddress, strings.Join(registries, " "))
	if err := os.WriteFile(hosts, []byte(text), 0o644); err != nil {
		return err
	}
	if err := syscall.Mount(hosts, "/etc/hosts", "", syscall.MS_BIND, ""); err != nil {
		return fmt.Errorf("lead the registries' names here: %w", err)
	}
	return nil
}
