//go:build linux && cgo

package main

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"unsafe"

	_ "github.com/opencontainers/cgroups/devices" // device rules for cgroup v1 and v2
	"github.com/opencontainers/runc/libcontainer"
	_ "github.com/opencontainers/runc/libcontainer/nsenter" // the C constructor behind "init"
	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// Descriptors that the caller passes beside standard input, output and error.
const (
	controlFD = 3
	consoleFD = 4
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "init" {
		// Re-entered by libcontainer inside the new namespaces; replaces this
		// process by the container's.
		libcontainer.Init()
	}
	// A signal that is ignored here (a shell does that to what it runs in the
	// background) would be ignored by the container's process as well; one that
	// is handled goes back to its default.
	signal.Notify(make(chan os.Signal, 1))
	defaultInternalSignals()
	unix.Umask(0o022)
	// Standard error is the container's: libcontainer's warnings do not belong there.
	logrus.SetOutput(io.Discard)
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "skiff-launcher: %v\n", err)
		os.Exit(1)
	}
}

// defaultInternalSignals undoes what posix_spawn(3) of glibc does to its children: it has them
// ignore the signals that glibc keeps for itself (32 and 33), which neither Go nor
// sigaction(3) would touch again.
func defaultInternalSignals() {
	var action struct {
		handler, flags, restorer, mask uintptr // zero is SIG_DFL
	}
	for sig := uintptr(32); sig <= 33; sig++ {
		_, _, _ = unix.RawSyscall6(unix.SYS_RT_SIGACTION, sig, uintptr(unsafe.Pointer(&action)), 0, unsafe.Sizeof(action.mask), 0, 0)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("usage: skiff-launcher create|exec STATE-ROOT ID [SPEC]")
	}
	switch {
	case args[0] == "create" && len(args) == 4:
		return create(args[1], args[2], args[3])
	case args[0] == "exec" && len(args) == 3:
		return execIn(args[1], args[2])
	}
	return fmt.Errorf("unknown command %q with %d arguments", args[0], len(args)-1)
}
