// Command kinds checks that upstream's kube-apiserver and skiff's read what the other wrote:
// every kind, in both directions, field by field. Both run on one etcd of upstream's.
//
//	kinds -etcd BIN -upstream BIN -skiff BIN -out results.jsonl
//
// A difference is a failure unless deviations.txt gives a reason for it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "kinds:", err)
		os.Exit(1)
	}
}

func run() error {
	var bin binaries
	flag.StringVar(&bin.etcd, "etcd", "", "upstream's etcd")
	flag.StringVar(&bin.upstream, "upstream", "", "upstream's kube-apiserver")
	flag.StringVar(&bin.skiff, "skiff", "", "skiff")
	out := flag.String("out", "kinds.jsonl", "results, one a line")
	meant := flag.String("deviations", "kinds/deviations.txt", "differences that are meant")
	dir := flag.String("dir", "", "for data and logs; none: a temporary one that is removed")
	each := flag.Int("fill", 12, "random objects of each kind")
	seed := flag.Int64("seed", 1, "of the random objects")
	only := flag.String("only", "", "skiff-first, upstream-first or fill")
	flag.Parse()
	for name, b := range map[string]*string{"etcd": &bin.etcd, "upstream": &bin.upstream, "skiff": &bin.skiff} {
		if _, err := os.Stat(*b); err != nil {
			return fmt.Errorf("-%s: %w", name, err)
		}
		abs, err := filepath.Abs(*b)
		if err != nil {
			return err
		}
		*b = abs
	}
	if *dir == "" {
		tmp, err := os.MkdirTemp("", "kinds")
		if err != nil {
			return err
		}
		defer os.RemoveAll(tmp)
		*dir = tmp
	}
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	r := &report{}
	var err error
	if r.deviations, err = readDeviations(*meant); err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"skiff-first", func() error { return takeover(ctx, r, *dir, bin, "skiff", "upstream") }},
		{"upstream-first", func() error { return takeover(ctx, r, *dir, bin, "upstream", "skiff") }},
		{"fill", func() error { return fill(ctx, r, *dir, bin, *each, *seed) }},
	} {
		if *only != "" && *only != step.name {
			continue
		}
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	failed, err := r.write(*out)
	if err != nil {
		return err
	}
	if failed > 0 {
		return fmt.Errorf("%d differences; see %s", failed, *out)
	}
	return nil
}
