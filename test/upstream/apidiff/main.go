// Command apidiff compares what api/ declares with the upstream API server's own
// code, which it links: defaults, printed rows, errors, warnings and what strategies
// make of objects.
//
//	apidiff fuzz [-n 1000] [-seed 1] [-only pods]   reports differences for random objects
//	apidiff cases api/core/testdata/*.txt           rewrites what the cases expect
//	apidiff served api/core/testdata                rewrites served.yaml from objects.yaml
//
// A difference is not always a fault: gates that upstream has off by default, and
// fields that the generic part of an API server sets, show as well.
package main

import (
	"flag"
	"fmt"
	"os"

	"k8s.io/kubernetes/pkg/capabilities"
)

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	// As kube-apiserver runs with --allow-privileged.
	capabilities.Initialize(capabilities.Capabilities{AllowPrivileged: true})
	var err error
	switch verb, args := os.Args[1], os.Args[2:]; verb {
	case "fuzz":
		flags := flag.NewFlagSet("fuzz", flag.ExitOnError)
		n := flags.Int("n", 1000, "objects of each kind")
		seed := flags.Int64("seed", 1, "of the random numbers")
		only := flags.String("only", "", "plural of one resource")
		_ = flags.Parse(args)
		err = fuzz(*n, *seed, *only)
	case "cases":
		for _, file := range args {
			if err = rewriteCases(file); err != nil {
				break
			}
		}
	case "served":
		if len(args) != 1 {
			usage()
		}
		err = rewriteServed(args[0])
	default:
		usage()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "apidiff:", err)
		os.Exit(1)
	}
}

func usage() {
	fmt.Fprintln(os.Stderr, "usage: apidiff fuzz [-n 1000] [-seed 1] [-only pods] | cases FILE… | served DIR")
	os.Exit(2)
}
