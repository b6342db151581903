package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/skiff-k8s/skiff/cluster/addons"
	"github.com/skiff-k8s/skiff/network/bridge"
	"github.com/skiff-k8s/skiff/network/dns"
	"github.com/skiff-k8s/skiff/network/hostport"
	"github.com/skiff-k8s/skiff/network/routes"
)

const (
	// dnsServiceIndex is which address of the service CIDR cluster DNS has.
	dnsServiceIndex = 10
	dnsPort         = 53
)

func (n *NodeConfig) bridgeConfig(p Paths) bridge.Config {
	return bridge.Config{Name: n.Bridge, StateDir: p.Network(), ClusterCIDRs: n.PodCIDRs}
}

func (n *NodeConfig) hostPortConfig(p Paths) hostport.Config {
	return hostport.Config{Table: n.Bridge + "-hostports", StateDir: p.Network(), Link: n.Bridge}
}

// servicesTable is the name of the proxy's nftables table.
func (n *NodeConfig) servicesTable() string { return n.Bridge + "-services" }

// podNetwork gives the bridge the pod CIDRs of this node as the API has them, serves DNS at the
// bridge's addresses, and leads to the pods of other nodes.
type podNetwork struct {
	node   string
	bridge *bridge.Bridge
	dns    *dns.Server
	nodes  informers.SharedInformerFactory
	routes *routes.Router
	notice dnsNotice
	zone   func(string) // told the node's zone
	log    *slog.Logger
}

// newPodNetwork watches the nodes through a factory of its own, which Run starts.
func newPodNetwork(n *NodeConfig, client kubernetes.Interface, b *bridge.Bridge, server *dns.Server, zone func(string), log *slog.Logger) (*podNetwork, error) {
	nodes := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(podNetworkNode))
	r, err := newRoutes(n, client, nodes, b, log)
	if err != nil {
		return nil, err
	}
	notice := dnsNotice{publish: func(ctx context.Context, text string) error {
		return annotateNode(ctx, client, n.NodeName, addons.DNSAnnotation, text)
	}}
	return &podNetwork{node: n.NodeName, bridge: b, dns: server, zone: zone, log: log, nodes: nodes, routes: r, notice: notice}, nil
}

// Run blocks until ctx ends.
func (n *podNetwork) Run(ctx context.Context) error {
	seen := make(chan ownNode, 1)
	latest := func(o any) {
		node, ok := o.(*corev1.Node)
		if !ok || node.Name != n.node {
			return
		}
		n.zone(node.Labels[corev1.LabelTopologyZone])
		parsed, err := parsePrefixes(node.Spec.PodCIDRs)
		if err != nil {
			n.log.Error("read pod CIDRs of the node", "err", err)
			return
		}
		select { // only the newest counts; this is the one sender
		case <-seen:
		default:
		}
		seen <- ownNode{cidrs: parsed, dns: node.Annotations[addons.DNSAnnotation]}
	}
	inf := n.nodes.Core().V1().Nodes().Informer()
	if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: latest, UpdateFunc: func(_, o any) { latest(o) }}); err != nil {
		return fmt.Errorf("watch node: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer n.nodes.Shutdown()
	defer cancel()
	n.nodes.StartWithContext(ctx)

	routed := make(chan error, 1)
	go func() { routed <- n.routes.Run(ctx) }()
	err := n.follow(ctx, seen, routed)
	cancel()
	return errors.Join(err, <-routed)
}

// ownNode is what the pod network reads of this machine's Node.
type ownNode struct {
	cidrs []netip.Prefix
	dns   string
}

// follow the pod CIDRs of this node until ctx ends, or the routes fail.
func (n *podNetwork) follow(ctx context.Context, seen <-chan ownNode, routed chan error) error {
	servers := newServers(n.dns, n.log)
	defer servers.stop()
	if err := servers.follow(ctx, n.bridge.Gateways()); err != nil { // as the last run left it
		n.log.Error("serve DNS", "err", err)
	}
	var set []netip.Prefix
	for {
		var retry <-chan time.Time
		if len(set) > 0 {
			if err := errors.Join(n.bridge.SetPodCIDRs(set), servers.follow(ctx, n.bridge.Gateways())); err != nil {
				n.log.Error("set up the pod network", "err", err)
				retry = time.After(time.Second)
			} else {
				set = nil
			}
		}
		if err := n.notice.tell(ctx, servers.addresses()); err != nil && ctx.Err() == nil {
			n.log.Warn("publish where DNS is served", "err", err)
			retry = time.After(time.Second)
		}
		select {
		case own := <-seen:
			n.notice.known(own.dns)
			if len(own.cidrs) > 0 && !samePrefixes(own.cidrs, n.bridge.PodCIDRs()) {
				set = own.cidrs
			}
		case <-retry:
		case err := <-routed:
			routed <- err
			return nil // err is Run's to tell
		case <-ctx.Done():
			return nil
		}
		select { // the routes know the MTU
		case <-n.routes.First():
		case err := <-routed:
			routed <- err
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

func samePrefixes(a, b []netip.Prefix) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].Masked() != b[i].Masked() {
			return false
		}
	}
	return true
}

func parsePrefixes(ss []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range ss {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

// upstreamResolvers are the host's, as address:port.
func upstreamResolvers(path string) ([]string, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the host's resolvers: %w", err)
	}
	var out []string
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "nameserver" {
			if a, err := netip.ParseAddr(f[1]); err == nil {
				out = append(out, netip.AddrPortFrom(a, dnsPort).String())
			}
		}
	}
	return out, nil
}
