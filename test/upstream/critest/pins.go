//go:build upstream

package main

// The suite and the program that runs it in parallel.
import (
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	_ "sigs.k8s.io/cri-tools/pkg/validate"
)
