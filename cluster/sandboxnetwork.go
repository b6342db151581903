package cluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers"
	"github.com/skiff-k8s/skiff/network/bridge"
	"github.com/skiff-k8s/skiff/network/hostport"
)

// sandboxNetwork is the bridge and the host ports as the runtime sees them.
type sandboxNetwork struct {
	bridge *bridge.Bridge
	ports  *hostport.Ports
}

// Attach implements containers.Network.
func (n sandboxNetwork) Attach(ctx context.Context, s containers.Sandbox) (containers.Addresses, error) {
	mappings, err := hostPorts(s.PortMappings)
	if err != nil {
		return containers.Addresses{}, err
	}
	ips, err := n.bridge.Attach(ctx, s.ID, s.NetNSPath)
	if err != nil {
		return containers.Addresses{}, err
	}
	if err := n.ports.Set(s.ID, ips, mappings); err != nil {
		return containers.Addresses{}, errors.Join(err, n.Detach(ctx, s))
	}
	return containers.Addresses{IPs: ips}, nil
}

// Detach implements containers.Network.
func (n sandboxNetwork) Detach(ctx context.Context, s containers.Sandbox) error {
	if err := n.ports.Remove(s.ID); err != nil { // before the address is free for another
		return err
	}
	return n.bridge.Detach(ctx, s.ID)
}

// Ready implements containers.Network.
func (n sandboxNetwork) Ready(ctx context.Context) error { return n.bridge.Ready(ctx) }

var protocols = map[runtimeapi.Protocol]uint8{
	runtimeapi.Protocol_TCP: hostport.TCP, runtimeapi.Protocol_UDP: hostport.UDP, runtimeapi.Protocol_SCTP: hostport.SCTP,
}

// hostPorts reads CRI port mappings; those without a host port ask for nothing.
func hostPorts(all []*runtimeapi.PortMapping) ([]hostport.Mapping, error) {
	var out []hostport.Mapping
	for _, m := range all {
		if m.GetHostPort() == 0 {
			continue
		}
		protocol, ok := protocols[m.GetProtocol()]
		if !ok {
			return nil, fmt.Errorf("host port %d: unknown protocol %s; use TCP, UDP or SCTP", m.GetHostPort(), m.GetProtocol())
		}
		var ip netip.Addr
		if text := m.GetHostIp(); text != "" {
			var err error
			if ip, err = netip.ParseAddr(text); err != nil {
				return nil, fmt.Errorf("host port %d: hostIP %q is no IP address", m.GetHostPort(), text)
			}
		}
		out = append(out, hostport.Mapping{Protocol: protocol, HostIP: ip.Unmap(), HostPort: uint16(m.GetHostPort()), PodPort: uint16(m.GetContainerPort())})
	}
	return out, nil
}
