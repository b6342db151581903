package cluster

import (
	"crypto/x509"
	"log/slog"
	"net/netip"

	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/kubelet"
)

func newKubelet(n *NodeConfig, p Paths, creds *NodeCredentials, log *slog.Logger) (component.Component, error) {
	client, err := n.client(creds)
	if err != nil {
		return nil, err
	}
	// Heartbeats have connections and limits of their own.
	heartbeat, err := n.client(creds)
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(creds.CA)
	return kubelet.New(kubelet.Config{
		NodeName: n.NodeName, Client: client, HeartbeatClient: heartbeat,
		RuntimeEndpoint: n.runtimeEndpoint(p), Owner: n.owner(),
		RootDir: p.Kubelet(), PodLogsDir: p.PodLogs(), ContainerLogsDir: p.ContainerLogs(), ManifestDir: p.StaticPods(),
		NodeIPs:        addressStrings(n.NodeIPs),
		ListenAddr:     netip.AddrPortFrom(netip.IPv6Unspecified(), n.KubeletPort).String(),
		GetCertificate: creds.GetCertificate,
		ClientCA:       clients,
		ClusterDNS:     addressStrings(n.DNS), ClusterDomain: n.Domain,
		Labels: n.Labels, Taints: n.Taints, Capacity: n.Capacity, Share: func() int64 { return machineShare(p, log) },
		ResolvConf: n.resolvConf(),
		CgroupRoot: n.CgroupRoot, Profiling: true, Logger: log,
	})
}

func addressStrings(list []netip.Addr) []string {
	var out []string
	for _, a := range list {
		out = append(out, a.String())
	}
	return out
}
