// Package version is what this build calls itself and what it serves.
package version

const (
	// Skiff is skiff's own version (semver, with v).
	Skiff = "v0.1.0"
	// Kubernetes is the version of the API served; clients compare with it.
	Kubernetes = "v1.37.2"
	// KubernetesMajor and KubernetesMinor are its parts, as /version gives them.
	KubernetesMajor = "1"
	KubernetesMinor = "37"
)

// Commit is the commit built from; the Makefile sets it with -ldflags -X.
var Commit = "unknown"
