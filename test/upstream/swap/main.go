// Command swap runs rows of the swap matrix: clusters in which some components are
// upstream's and the others skiff's. Each row brings a cluster up in network and mount
// namespaces of its own, goes through the deployment flow, and runs the Conformance tests
// that rowN.txt names. What came out stays in results/swap-N.json; docs/interop.md is
// computed from these files.
//
//	swap run -row 1 -cache DIR -skiff bin/skiff -kubectl bin/kubectl -results DIR -lists DIR
//	swap page -results DIR -out docs/interop.md
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// options say where things are.
type options struct {
	rows                                           string
	cache, skiff, kubectl, results, lists, scratch string
	procs                                          int
	flowOnly                                       bool
	commit                                         string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "swap:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return fmt.Errorf("say what to do: run or page")
	}
	var o options
	var out string
	flags := flag.NewFlagSet("swap "+args[0], flag.ContinueOnError)
	flags.StringVar(&o.rows, "row", "", "rows to run, by number, separated by commas; none: all")
	flags.StringVar(&o.cache, "cache", "", "directory of e2e.test, ginkgo, images and twins")
	flags.StringVar(&o.skiff, "skiff", "", "the skiff binary")
	flags.StringVar(&o.kubectl, "kubectl", "", "the kubectl binary")
	flags.StringVar(&o.results, "results", "", "directory of swap-N.json")
	flags.StringVar(&o.lists, "lists", "", "directory of rowN.txt")
	flags.StringVar(&o.scratch, "scratch", "/tmp", "directory for data of clusters; they are removed at the end")
	flags.IntVar(&o.procs, "procs", 2, "tests at a time")
	flags.BoolVar(&o.flowOnly, "flow-only", false, "leave the Conformance tests out; results are not kept")
	flags.StringVar(&o.commit, "commit", "unknown", "commit that the results are of")
	flags.StringVar(&out, "out", "", "the page to write")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	switch args[0] {
	case "run":
		return runRows(ctx, o)
	case "inside": // run in namespaces of its own, by runRows
		return runInside(ctx, o, o.rows)
	case "page":
		return writePage(o.results, out)
	}
	return fmt.Errorf("%q is neither run nor page", args[0])
}

// runRows runs each row in a process of its own and says at the end which were not green.
func runRows(ctx context.Context, o options) error {
	for _, p := range []*string{&o.cache, &o.skiff, &o.kubectl, &o.results, &o.lists} {
		if *p == "" {
			return fmt.Errorf("-cache, -skiff, -kubectl, -results and -lists are required")
		}
		abs, err := filepath.Abs(*p)
		if err != nil {
			return err
		}
		*p = abs
	}
	var failed []string
	for _, r := range matrix() {
		if !wanted(o.rows, r) {
			continue
		}
		if err := isolated(ctx, o, r.id()); err != nil {
			fmt.Fprintf(os.Stderr, "row %s: %v\n", r.id(), err)
			failed = append(failed, r.id())
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("not green: row %s", strings.Join(failed, ", "))
	}
	return nil
}

// wanted: a number alone means all parts of a row.
func wanted(list string, r row) bool {
	if list == "" {
		return true
	}
	for s := range strings.SplitSeq(list, ",") {
		if s = strings.TrimSpace(s); s == r.id() || s == strconv.Itoa(r.n) {
			return true
		}
	}
	return false
}
