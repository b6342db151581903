package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers"
	"github.com/skiff-k8s/skiff/network/bridge"
	"github.com/skiff-k8s/skiff/network/cni"
	"github.com/skiff-k8s/skiff/network/hostport"
	"github.com/skiff-k8s/skiff/network/policy"
)

// sandboxNetwork is the pod network as the runtime sees it: CNI plugins where there is a configuration
// of theirs or one was asked for, else the bridge; and host ports, unless the plugins map them.
type sandboxNetwork struct {
	bridge *bridge.Bridge
	ports  *hostport.Ports
	cni    *cni.Network // nil: never
	// policies are in force before anything runs in a sandbox; nil: none are.
	policies *policy.Enforcer
	// plugins tells that the bridge is no alternative.
	plugins bool
	// last tells that the node is going down: a plugin that can't take a sandbox off any more, as its
	// daemon or the API server has gone, must not keep it.
	last bool
}

// lastTimeout is how long a plugin may take then.
const lastTimeout = 5 * time.Second

// newSandboxNetwork takes up what an earlier process attached.
func newSandboxNetwork(n *NodeConfig, p Paths, log *slog.Logger) (sandboxNetwork, error) {
	plugins, err := cni.New(n.cniConfig(p, log))
	if err != nil {
		return sandboxNetwork{}, err
	}
	network := sandboxNetwork{cni: plugins, plugins: n.PodNetwork.CNIConfDir != ""}
	b := n.bridgeConfig(p)
	b.Logger, b.AddressOnly = log, network.usesPlugins()
	if network.bridge, err = bridge.New(b); err != nil {
		return sandboxNetwork{}, err
	}
	network.ports, err = hostport.New(n.hostPortConfig(p))
	return network, err
}

// usesPlugins tells who a new sandbox is attached by.
func (n sandboxNetwork) usesPlugins() bool {
	return n.cni != nil && (n.plugins || n.cni.Configured())
}

// byPlugins tells who a sandbox is, or is to be, attached by.
func (n sandboxNetwork) byPlugins(id string) bool {
	return n.cni != nil && (n.cni.Attached(id) || n.usesPlugins() && !n.bridge.Attached(id))
}

// Attach implements containers.Network.
func (n sandboxNetwork) Attach(ctx context.Context, s containers.Sandbox) (containers.Addresses, error) {
	mappings, err := hostPorts(s.PortMappings)
	if err != nil {
		return containers.Addresses{}, err
	}
	var ips []netip.Addr
	if n.byPlugins(s.ID) {
		if ips, err = n.attachByPlugins(ctx, s); n.cni.MapsPorts() {
			mappings = nil
		}
	} else if err = n.bridge.SetAddressOnly(false); err == nil {
		ips, err = n.bridge.Attach(ctx, s.ID, s.NetNSPath)
	}
	if err != nil {
		return containers.Addresses{}, err
	}
	err = n.ports.Set(s.ID, ips, mappings)
	if err == nil && n.policies != nil {
		err = n.policies.Admit(ctx, s.ID, s.Namespace, s.Name, s.UID, ips)
	}
	if err != nil {
		return containers.Addresses{}, errors.Join(err, n.Detach(context.WithoutCancel(ctx), s))
	}
	return containers.Addresses{IPs: ips}, nil
}

func (n sandboxNetwork) attachByPlugins(ctx context.Context, s containers.Sandbox) ([]netip.Addr, error) {
	c, err := cniSandbox(s)
	if err != nil {
		return nil, err
	}
	if err := n.bridge.SetAddressOnly(true); err != nil {
		return nil, err
	}
	return n.cni.Attach(ctx, c)
}

// Detach implements containers.Network.
func (n sandboxNetwork) Detach(ctx context.Context, s containers.Sandbox) error {
	if err := n.ports.Remove(s.ID); err != nil { // before the address is free for another
		return err
	}
	if n.policies != nil {
		n.policies.Forget(s.ID)
	}
	if n.cni != nil && n.cni.Attached(s.ID) {
		return n.detachByPlugins(ctx, s)
	}
	return n.bridge.Detach(ctx, s.ID)
}

func (n sandboxNetwork) detachByPlugins(ctx context.Context, s containers.Sandbox) error {
	if !n.last {
		return n.cni.Detach(ctx, s.ID, s.NetNSPath)
	}
	brief, cancel := context.WithTimeout(ctx, lastTimeout)
	defer cancel()
	if err := n.cni.Detach(brief, s.ID, s.NetNSPath); err != nil {
		return n.cni.Forget(s.ID)
	}
	return nil
}

// Ready implements containers.Network.
func (n sandboxNetwork) Ready(ctx context.Context) error {
	if n.usesPlugins() {
		return n.cni.Ready(ctx)
	}
	return n.bridge.Ready(ctx)
}

// Collect implements containers.Collector.
func (n sandboxNetwork) Collect(ctx context.Context, live []string) error {
	if n.cni == nil {
		return nil
	}
	return n.cni.Collect(ctx, live)
}

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
