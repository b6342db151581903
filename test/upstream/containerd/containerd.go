//go:build upstream

// Package containerd pins the runtime that upstream's kubelet runs pods with.
package containerd

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
)
