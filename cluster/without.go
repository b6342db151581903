package cluster

import (
	"fmt"
	"slices"
	"strings"
)

// Components that a cluster can be brought up without, so that others run them: upstream's,
// or skiff's own by the command of the same name.
const (
	APIServer         = "kube-apiserver"
	Scheduler         = "kube-scheduler"
	ControllerManager = "kube-controller-manager"
	Kubelet           = "kubelet"
	Proxy             = "kube-proxy"
)

var separable = []string{APIServer, Scheduler, ControllerManager, Kubelet, Proxy}

// checkWithout refuses names of no component and what cannot be left out alone.
func checkWithout(names []string) error {
	for _, n := range names {
		if !slices.Contains(separable, n) {
			return fmt.Errorf("--without=%s: there is no such component; there are %s", n, strings.Join(separable, ", "))
		}
	}
	if !slices.Contains(names, APIServer) {
		return nil
	}
	for _, n := range []string{Scheduler, ControllerManager} {
		if !slices.Contains(names, n) {
			return fmt.Errorf("--without=%s: %s runs in its process; leave out %s too and run skiff %s", APIServer, n, n, n)
		}
	}
	return nil
}

// lacks says whether others run a component.
func (c *Config) lacks(component string) bool { return slices.Contains(c.Without, component) }

// ports are those that the cluster's own processes listen on.
func (c *Config) ports() []uint16 {
	var out []uint16
	if !c.lacks(APIServer) {
		out = append(out, c.APIPort)
	}
	if !c.lacks(Kubelet) {
		out = append(out, c.KubeletPort)
	}
	if c.severalMembers() {
		out = append(out, etcdPeerPort, etcdClientPort)
	}
	return out
}
