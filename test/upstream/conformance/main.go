// Command conformance runs Conformance tests of Kubernetes' end-to-end suite against a
// fresh cluster of skiff, keeps their merged results and computes docs/conformance.md.
//
//	conformance run  -skiff FILE -kubectl FILE -cache DIR -out DIR [-sig NAME] [-focus REGEX] [-list FILE]... [-parallel N] [-nodes N]
//	                 [-results FILE -causes FILE -page FILE -commit SHA]
//	conformance page -results FILE -causes FILE -page FILE
//
// It exits with 0 only if each chosen test ran and passed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/skiff-k8s/skiff/test/upstream/isolated"
	"github.com/skiff-k8s/skiff/test/upstream/outcome"
)

type options struct {
	tools
	out      string
	choice   choice
	parallel int
	nodes    int
	timeout  time.Duration
	record   outcome.Files
}

// tools are the programs and images that a run needs.
type tools struct{ skiff, kubectl, e2e, ginkgo, registry, images string }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := command(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func command(ctx context.Context, args []string) (exitCode int, err error) {
	if len(args) == 0 {
		return 1, errors.New("which of run and page?")
	}
	switch args[0] {
	case "run":
		o, err := parseRun(args[1:])
		if err != nil {
			return 1, err
		}
		if err := o.check(); err != nil {
			return 1, err
		}
		if !isolated.Inside() {
			return isolated.Again(ctx)
		}
		return run(ctx, o)
	case "page":
		var files outcome.Files
		flags := newFlags("conformance page")
		files.Flags(flags)
		if err := flags.Parse(args[1:]); err != nil {
			return 1, err
		}
		kept, err := outcome.Read(files.Results)
		if err != nil {
			return 1, err
		}
		return 0, files.WritePage(kept, page, os.Stdout)
	}
	return 1, fmt.Errorf("%q is neither run nor page", args[0])
}

// newFlags leaves errors to the caller, who shows each once.
func newFlags(name string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	return flags
}

func parseRun(args []string) (options, error) {
	var o options
	var cache string
	flags := newFlags("conformance run")
	flags.StringVar(&o.skiff, "skiff", "", "the skiff to test")
	flags.StringVar(&o.kubectl, "kubectl", "", "kubectl that tests call")
	flags.StringVar(&cache, "cache", "", "directory of e2e.test, ginkgo, registry and images")
	flags.StringVar(&o.out, "out", "", "directory for JUnit and logs; replaced")
	flags.StringVar(&o.choice.sig, "sig", "", "only tests of this SIG")
	flags.StringVar(&o.choice.focus, "focus", "", "only tests whose name matches this regular expression")
	flags.Func("list", "only tests that this file names, one a line; may be given several times", func(path string) error {
		names, err := readNames(path)
		o.choice.names = append(o.choice.names, names...)
		return err
	})
	flags.IntVar(&o.parallel, "parallel", 2, "tests at a time")
	flags.IntVar(&o.nodes, "nodes", 2, "nodes of the cluster; two tests want at least two")
	flags.DurationVar(&o.timeout, "timeout", time.Hour, "for each phase of the run")
	o.record.Flags(flags)
	flags.StringVar(&o.record.Commit, "commit", "unknown", "what the skiff was built from")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	for name, v := range map[string]*string{"-skiff": &o.skiff, "-kubectl": &o.kubectl, "-cache": &cache, "-out": &o.out} {
		if *v == "" {
			return o, fmt.Errorf("%s is required", name)
		}
		// The suite runs in a directory of its own.
		var err error
		if *v, err = filepath.Abs(*v); err != nil {
			return o, err
		}
	}
	if o.parallel < 1 {
		return o, fmt.Errorf("PARALLEL=%d: at least one test at a time", o.parallel)
	}
	if o.nodes < 1 {
		return o, fmt.Errorf("NODES=%d: a cluster has at least one", o.nodes)
	}
	o.e2e, o.ginkgo = filepath.Join(cache, "e2e.test"), filepath.Join(cache, "ginkgo")
	o.registry, o.images = filepath.Join(cache, "registry"), filepath.Join(cache, "images")
	return o, nil
}

// check finds what is missing before anything is started.
func (o options) check() error {
	if os.Geteuid() != 0 {
		return errors.New("needs root: it starts containers in namespaces of their own")
	}
	for what, path := range map[string]string{"skiff": o.skiff, "kubectl": o.kubectl, "the suite": o.e2e, "ginkgo": o.ginkgo,
		"the registry": o.registry, "the test images": filepath.Join(o.images, "index.json")} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("%s is missing (make conformance builds it): %w", what, err)
		}
	}
	return o.record.Check()
}
