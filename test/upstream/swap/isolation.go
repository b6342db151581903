package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"syscall"
)

// isolated runs a row in a process with network and mount namespaces of its own, so that
// neither the host's network nor another cluster's is touched.
func isolated(ctx context.Context, o options, row string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	args := []string{"inside", "-row", row, "-cache", o.cache, "-skiff", o.skiff, "-kubectl", o.kubectl,
		"-results", o.results, "-lists", o.lists, "-scratch", o.scratch, "-procs", strconv.Itoa(o.procs), "-commit", o.commit}
	if o.flowOnly {
		args = append(args, "-flow-only")
	}
	cmd := exec.CommandContext(ctx, self, args...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGTERM}
	// Asked to end, it takes its cluster away first.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	return cmd.Run()
}

// nodeAddress is the address of the first node in its namespace.
const nodeAddress = "192.168.77.1"

// prepareNamespace gives the namespaces what a host has: loopback, a link with an address, a
// default route (so that packets for cluster IPs leave, and are translated on the way) and
// mounts that propagate to containers.
func prepareNamespace() error {
	for _, argv := range [][]string{
		{"mount", "--make-rprivate", "/"},
		{"mount", "--make-rshared", "/"},
		{"ip", "link", "set", "lo", "up"},
		{"ip", "link", "add", "swap0", "type", "veth", "peer", "name", "swap1"},
		{"ip", "addr", "add", nodeAddress + "/24", "dev", "swap0"},
		{"ip", "link", "set", "swap0", "up"},
		{"ip", "link", "set", "swap1", "up"},
		{"ip", "route", "add", "default", "via", "192.168.77.2"},
	} {
		if text, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%v: %w: %s", argv, err, text)
		}
	}
	return nil
}

// roomy is the share of a disk that must be free for a cluster's data: at a tenth the kubelet
// reports disk pressure, takes no pods, and removes images and pods that it has.
const roomy = 0.2

// inMemoryIfFull mounts a tmpfs on dir where its disk is nearly full. It is gone with this
// process's mount namespace, or when the function that is returned unmounts it.
func inMemoryIfFull(dir string) (func() error, error) {
	none := func() error { return nil }
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return none, fmt.Errorf("look at the disk of %s: %w", dir, err)
	}
	if float64(s.Bavail) >= roomy*float64(s.Blocks) {
		return none, nil
	}
	if err := syscall.Mount("swap", dir, "tmpfs", 0, "size=8g"); err != nil {
		return none, fmt.Errorf("the disk of %s is nearly full and a tmpfs cannot be mounted: %w", dir, err)
	}
	fmt.Println("the disk is nearly full: the cluster's data is in memory")
	return func() error { return syscall.Unmount(dir, 0) }, nil
}
