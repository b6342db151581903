// Command bench compares skiff with upstream's components in one run, and writes docs/benchmarks.md.
//
//	bench run --skiff bin/skiff --twins DIR [--case REGEX] [--rounds 3] [--results DIR]
//	bench report [--results DIR] [--page FILE]
//
// run takes the stages of plan.go by turns on both sides, each in network and mount namespaces of
// its own (bench stage …), and keeps a JSON line for each case, side and round. report computes
// the page from those lines; it measures nothing.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

func main() {
	// Processes that a stage starts die with the thread that started them; that is this one.
	runtime.LockOSThread()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.New("a verb is missing: run or report")
	}
	switch args[0] {
	case "run":
		return runCommand(ctx, args[1:])
	case "stage":
		return stageCommand(ctx, args[1:])
	case "report":
		return reportCommand(args[1:])
	}
	return fmt.Errorf("no verb %q: run or report", args[0])
}
