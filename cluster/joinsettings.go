package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/skiff-k8s/skiff/host/netlink"
)

// readSettings takes the cluster's settings from where kubeadm keeps them.
func (n *NodeConfig) readSettings(ctx context.Context, client kubernetes.Interface, ca []byte) error {
	var cluster struct {
		ControlPlaneEndpoint string
		Networking           struct{ PodSubnet, ServiceSubnet, DNSDomain string }
	}
	var kubelet struct {
		ClusterDNS    []string
		ClusterDomain string
	}
	for _, m := range []struct {
		name, key string
		into      any
	}{
		{"kubeadm-config", "ClusterConfiguration", &cluster},
		{"kubelet-config", "kubelet", &kubelet},
	} {
		cm, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, m.name, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("read the cluster's settings (ConfigMap kube-system/%s): %w", m.name, err)
		}
		if err := yaml.Unmarshal([]byte(cm.Data[m.key]), m.into); err != nil {
			return fmt.Errorf("read the cluster's settings: ConfigMap kube-system/%s: %s: %w", m.name, m.key, err)
		}
	}
	var err error
	if n.PodCIDRs, err = subnets("podSubnet", cluster.Networking.PodSubnet); err != nil {
		return err
	}
	if n.ServiceCIDRs, err = subnets("serviceSubnet", cluster.Networking.ServiceSubnet); err != nil {
		return err
	}
	n.DNS = nil
	for _, s := range kubelet.ClusterDNS {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return fmt.Errorf("ConfigMap kube-system/kubelet-config: clusterDNS: %w", err)
		}
		n.DNS = append(n.DNS, a)
	}
	if n.Domain = kubelet.ClusterDomain; n.Domain == "" {
		n.Domain = cluster.Networking.DNSDomain
	}
	n.preferEndpoint(ctx, cluster.ControlPlaneEndpoint, ca)
	hashes, err := caHashes(ca)
	if err != nil {
		return err
	}
	n.ClusterID = strings.TrimPrefix(hashes[0], hashPrefix)[:16]
	return nil
}

func subnets(field, list string) ([]netip.Prefix, error) {
	if list == "" {
		return nil, fmt.Errorf("ConfigMap kube-system/kubeadm-config: networking.%s is empty; the cluster must say it", field)
	}
	out, err := parsePrefixes(strings.Split(list, ","))
	if err != nil {
		return nil, fmt.Errorf("ConfigMap kube-system/kubeadm-config: networking.%s: %w", field, err)
	}
	return out, nil
}

// followAddresses sets the node's addresses: those given, else those it has while the host
// has them too, else that by which the server is reached.
func (n *NodeConfig) followAddresses(given []netip.Addr) error {
	if len(given) > 0 {
		n.NodeIPs = given
	}
	lost := len(n.NodeIPs) == 0 || slices.ContainsFunc(n.NodeIPs, func(a netip.Addr) bool {
		has, err := netlink.HasAddress(a)
		return err == nil && !has
	})
	if !lost {
		return nil
	}
	if len(given) > 0 {
		return fmt.Errorf("--node-ip %s: this host has no such address", strings.Join(addressStrings(given), ","))
	}
	a, err := addressTowards(n.Server)
	if err != nil {
		return err
	}
	n.NodeIPs = []netip.Addr{a}
	n.addFamilies(netlink.DefaultAddressOf)
	return nil
}

// addFamilies gives the node an address of each family that pods have, in their order, where
// the host has one.
func (n *NodeConfig) addFamilies(of func(v6 bool) (netip.Addr, error)) {
	known := n.NodeIPs
	n.NodeIPs = nil
	for _, p := range n.PodCIDRs {
		v6 := p.Addr().Is6()
		if i := slices.IndexFunc(known, func(a netip.Addr) bool { return a.Is6() == v6 }); i >= 0 {
			n.NodeIPs = append(n.NodeIPs, known[i])
		} else if a, err := of(v6); err == nil {
			n.NodeIPs = append(n.NodeIPs, a)
		}
	}
	if len(n.NodeIPs) == 0 {
		n.NodeIPs = known // the server is reached, whatever pods are
	}
}

// addressTowards is the address that packets to a server leave with.
func addressTowards(server string) (netip.Addr, error) {
	u, err := url.Parse(server)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("--server: %w", err)
	}
	if conn, err := net.Dial("udp", u.Host); err == nil { // sends nothing
		local := conn.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
		if err := conn.Close(); err != nil {
			return netip.Addr{}, err
		}
		if !local.IsLoopback() {
			return local, nil
		}
	}
	a, err := HostAddress()
	if err != nil {
		return a, errors.Join(err, errors.New("give it with --node-ip"))
	}
	return a, nil
}
