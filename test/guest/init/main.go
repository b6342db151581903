// Command init is the guest's first process: it makes a system of the initramfs, runs the plan,
// reports how each step ended and switches the machine off.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"
)

func main() {
	var err error
	if os.Getpid() == 1 {
		err = first()
		fmt.Println("guest: init:", err) // first does not return otherwise
		off()
	}
	if err = run(); err != nil {
		fmt.Println("guest:", err)
		os.Exit(1)
	}
}

// first sets the system up, leaves the plan to a child, and adopts and buries what others leave behind.
func first() error {
	if err := leaveInitramfs(); err != nil {
		return err
	}
	if err := mountAll(); err != nil {
		return err
	}
	if err := setUp(); err != nil {
		return err
	}
	child := exec.Command("/init")
	child.Stdout, child.Stderr = os.Stdout, os.Stdout
	if err := child.Start(); err != nil {
		return err
	}
	for {
		pid, err := unix.Wait4(-1, nil, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid == child.Process.Pid {
			off()
		}
	}
}

func off() {
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {} // the first process must not end
}
