// Command critest runs critest, the validation suite of the Container Runtime Interface
// (sigs.k8s.io/cri-tools), on skiff's container runtime alone, keeps the newest outcome of each
// test and computes docs/critest.md.
//
//	critest pin  -images DIR -suite FILE
//	critest run  -skiff FILE -cache DIR -out DIR [-focus REGEX] [-parallel N] [-results FILE -causes FILE -page FILE -commit SHA]
//	critest page -results FILE -causes FILE -page FILE
//
// It exits with 0 only if each chosen test passed, skipped itself, or fails for a cause that
// the causes' file gives.
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
	skiff, cache, out, focus string
	parallel                 int
	timeout                  time.Duration
	record                   outcome.Files
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := command(ctx, os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "critest:", err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func command(ctx context.Context, args []string) (int, error) {
	if len(args) == 0 {
		return 1, errors.New("which of pin, run and page?")
	}
	flags := flag.NewFlagSet("critest "+args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard) // errors are shown once, by main
	switch args[0] {
	case "pin":
		var images, suite string
		flags.StringVar(&images, "images", "", "OCI layout of the suite's images")
		flags.StringVar(&suite, "suite", "", "the built suite, which is changed")
		if err := flags.Parse(args[1:]); err != nil {
			return 1, err
		}
		return 0, pin(images, suite)
	case "run":
		var o options
		flags.StringVar(&o.skiff, "skiff", "", "the skiff to test")
		flags.StringVar(&o.cache, "cache", "", "directory of critest.test, critest-ginkgo, registry and critest-images")
		flags.StringVar(&o.out, "out", "", "directory for JUnit and logs; replaced")
		flags.StringVar(&o.focus, "focus", "", "only tests whose name matches this regular expression")
		flags.IntVar(&o.parallel, "parallel", 4, "tests at a time; those that are serial come last, one by one")
		flags.DurationVar(&o.timeout, "timeout", 20*time.Minute, "for all")
		o.record.Flags(flags)
		flags.StringVar(&o.record.Commit, "commit", "unknown", "what the skiff was built from")
		if err := flags.Parse(args[1:]); err != nil {
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
		files.Flags(flags)
		if err := flags.Parse(args[1:]); err != nil {
			return 1, err
		}
		kept, err := outcome.Read(files.Results)
		if err != nil {
			return 1, err
		}
		return 0, files.WritePage(kept, page, os.Stderr)
	}
	return 1, fmt.Errorf("%q is none of pin, run and page", args[0])
}

// check makes paths absolute and finds what is missing before anything is started.
func (o *options) check() error {
	if os.Geteuid() != 0 {
		return errors.New("needs root: it starts containers in namespaces of their own")
	}
	for name, v := range map[string]*string{"-skiff": &o.skiff, "-cache": &o.cache, "-out": &o.out} {
		if *v == "" {
			return fmt.Errorf("%s is required", name)
		}
		var err error
		if *v, err = filepath.Abs(*v); err != nil { // the suite runs in a directory of its own
			return err
		}
	}
	if o.parallel < 1 {
		return fmt.Errorf("-parallel %d: at least one test at a time", o.parallel)
	}
	for _, path := range []string{o.skiff, o.suite(), o.ginkgo(), o.registry(), filepath.Join(o.images(), "index.json")} {
		if _, err := os.Stat(path); err != nil {
			return fmt.Errorf("%w (make critest builds it)", err)
		}
	}
	return o.record.Check()
}

func (o *options) suite() string    { return filepath.Join(o.cache, "critest.test") }
func (o *options) ginkgo() string   { return filepath.Join(o.cache, "critest-ginkgo") }
func (o *options) registry() string { return filepath.Join(o.cache, "registry") }
func (o *options) images() string   { return filepath.Join(o.cache, "critest-images") }
