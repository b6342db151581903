package kubelet

import (
	"fmt"
	"strings"
)

// metrics are the kubelet's own, in Prometheus' text format.
func (k *Kubelet) metrics() []byte {
	var b strings.Builder
	for _, g := range []struct {
		name, help string
		value      int
	}{
		{"skiff_kubelet_static_pod_errors", "Manifests of static pods that cannot be used; the log says why.", k.pods.StaticErrors()},
	} {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n%s %d\n", g.name, g.help, g.name, g.name, g.value)
	}
	k.puller.WriteMetrics(&b)
	return []byte(b.String())
}
