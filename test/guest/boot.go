package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/skiff-k8s/skiff/test/guest/plan"
)

// boot runs the guest to its end and returns what it reported; all else that it says is passed on.
func boot(ctx context.Context, image, initramfs, disk string, memory int) ([]plan.Result, error) {
	// No hardware virtualization: this has to run where there is none.
	// The clock is the HPET: a time stamp counter that is measured while the host is busy runs fast.
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-machine", "q35", "-cpu", "max", "-smp", "2",
		"-m", fmt.Sprint(memory), "-display", "none", "-monitor", "none", "-nic", "none", "-no-reboot", "-serial", "stdio",
		"-drive", "if=virtio,format=raw,cache=unsafe,file="+disk,
		"-kernel", image, "-initrd", initramfs, "-append", "console=ttyS0 quiet panic=-1 rdinit=/init clocksource=hpet tsc=unstable")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start qemu-system-x86_64 (Debian's package qemu-system-x86): %w", err)
	}
	var results []plan.Result
	in := bufio.NewReader(out)
	for {
		line, err := in.ReadString('\n')
		if _, text, ok := strings.Cut(line, plan.Mark); ok {
			var r plan.Result
			if err := json.Unmarshal([]byte(text), &r); err != nil {
				fmt.Fprintf(os.Stderr, "guest: %q: %v\n", text, err)
			} else {
				results = append(results, r)
			}
		} else {
			fmt.Print(line)
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return results, errors.Join(err, cmd.Process.Kill(), cmd.Wait())
		}
	}
	err = cmd.Wait()
	if ctx.Err() != nil {
		err = fmt.Errorf("the guest was ended: %w", ctx.Err())
	}
	return results, err
}

// report prints how each step ended; an error says that not everything is well.
func report(w io.Writer, steps []plan.Step, results []plan.Result) error {
	bad := 0
	passed := 0
	for _, s := range steps {
		r := plan.Result{Name: s.Name, Error: "nothing was heard of it"}
		for _, have := range results {
			if have.Name == s.Name {
				r = have
			}
		}
		verdict := "ok"
		if r.Error != "" || r.Failed > 0 || len(r.Skipped) > 0 || r.Passed == 0 {
			verdict = "FAILED"
			bad++
		}
		passed += r.Passed
		fmt.Fprintf(w, "%-7s %-24s %4d passed %3d failed %3d skipped %7.1f s  %s\n", verdict, s.Name, r.Passed, r.Failed, len(r.Skipped), r.Seconds, r.Error)
		for _, skip := range r.Skipped {
			fmt.Fprintf(w, "        skipped: %s\n", skip)
		}
	}
	if bad > 0 {
		return fmt.Errorf("%d of %d steps failed", bad, len(steps))
	}
	fmt.Fprintf(w, "%d tests passed in %d steps on cgroup v2\n", passed, len(steps))
	return nil
}
