//go:build upstream

// Package upstream pins the upstream commands that skiff is tested with and against.
package upstream

import (
	_ "github.com/onsi/ginkgo/v2/ginkgo"
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/images/agnhost"
)
