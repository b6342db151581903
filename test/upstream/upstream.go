//go:build upstream

// Package upstream pins the upstream commands that skiff is tested with and against.
package upstream

import (
	_ "k8s.io/kubernetes/cmd/kubectl"
	_ "k8s.io/kubernetes/test/e2e"
	_ "k8s.io/kubernetes/test/images/agnhost"
)
