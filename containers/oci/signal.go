package oci

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Second names of signals that the kernel's table gives only one.
var aliases = map[string]string{"SIGIOT": "SIGABRT", "SIGPOLL": "SIGIO", "SIGCLD": "SIGCHLD", "SIGUNUSED": "SIGSYS"}

// Real-time signals as the C library numbers them, which is what images mean.
const (
	sigRTMin = 34
	sigRTMax = 64
)

// ParseSignal reads a signal as images name them: 15, TERM, SIGTERM, SIGRTMIN+3.
func ParseSignal(s string) (syscall.Signal, error) {
	if n, err := strconv.Atoi(s); err == nil {
		if n < 1 || n > sigRTMax {
			return 0, fmt.Errorf("signal %d does not exist", n)
		}
		return syscall.Signal(n), nil
	}
	name := strings.ToUpper(s)
	if !strings.HasPrefix(name, "SIG") {
		name = "SIG" + name
	}
	if canonical, ok := aliases[name]; ok {
		name = canonical
	}
	if sig := unix.SignalNum(name); sig != 0 {
		return sig, nil
	}
	for prefix, base := range map[string]int{"SIGRTMIN": sigRTMin, "SIGRTMAX": sigRTMax} {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		n := 0
		if rest != "" {
			var err error
			if n, err = strconv.Atoi(rest); err != nil {
				break
			}
		}
		if base+n >= sigRTMin && base+n <= sigRTMax {
			return syscall.Signal(base + n), nil
		}
	}
	return 0, fmt.Errorf("signal %q is not known", s)
}
