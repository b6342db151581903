//go:build upstream

// Package critools pins critest and the program that runs it in parallel.
package critools

import (
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	_ "sigs.k8s.io/cri-tools/pkg/validate"
)
