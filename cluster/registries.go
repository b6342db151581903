package cluster

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/skiff-k8s/skiff/containers/image"
)

// Registries says how the built-in runtime reaches registries. One of another kind has
// settings of its own (containerd: certs.d).
type Registries = image.Registries

// registries are all that the node was told about them.
func (n *NodeConfig) registries() image.Registries {
	var r image.Registries
	if n.Registries != nil {
		r = *n.Registries
	}
	r.PlainHTTP = append(append([]string(nil), r.PlainHTTP...), n.PlainHTTPRegistries...)
	return r
}

// builtinRuntime is what a user calls skiff's own runtime.
const builtinRuntime = "built-in"

// useRuntime has pods run by another runtime from now on.
func (c *Config) useRuntime(endpoint string) error {
	if endpoint == builtinRuntime {
		c.RuntimeEndpoint = ""
		return nil
	}
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok || !filepath.IsAbs(path) {
		return fmt.Errorf("--container-runtime-endpoint=%s: give a socket such as unix:///run/containerd/containerd.sock, or %s", endpoint, builtinRuntime)
	}
	c.RuntimeEndpoint = endpoint
	return nil
}
