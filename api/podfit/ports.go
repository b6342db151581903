package podfit

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// HostPort is a port of the node that a container takes.
type HostPort struct {
	IP       string // "" and "0.0.0.0" mean every address
	Protocol v1.Protocol
	Port     int32
}

// HostPorts are the node's ports that the pod's containers take for as long as
// it runs: those of ordinary containers and of restartable init containers.
func HostPorts(spec *v1.PodSpec) []HostPort {
	var ports []HostPort
	for i := range spec.InitContainers {
		if Restartable(&spec.InitContainers[i]) {
			ports = appendHostPorts(ports, &spec.InitContainers[i])
		}
	}
	for i := range spec.Containers {
		ports = appendHostPorts(ports, &spec.Containers[i])
	}
	return ports
}

func appendHostPorts(ports []HostPort, c *v1.Container) []HostPort {
	for _, p := range c.Ports {
		if p.HostPort > 0 {
			ports = append(ports, HostPort{IP: p.HostIP, Protocol: p.Protocol, Port: p.HostPort})
		}
	}
	return ports
}

// Conflicts tells whether both ports cannot be taken on one node.
func (p HostPort) Conflicts(q HostPort) bool {
	return p.Port == q.Port && protocol(p) == protocol(q) &&
		(everyAddress(p.IP) || everyAddress(q.IP) || p.IP == q.IP)
}

func protocol(p HostPort) v1.Protocol {
	if p.Protocol == "" {
		return v1.ProtocolTCP
	}
	return p.Protocol
}

func everyAddress(ip string) bool {
	if ip == "" {
		return true
	}
	addr, err := netip.ParseAddr(ip)
	return err == nil && addr.Is4() && addr.IsUnspecified()
}

// Restartable tells whether an init container is a sidecar: it keeps running
// beside the ordinary containers (KEP-753).
func Restartable(c *v1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
}
