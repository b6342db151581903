package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net/netip"

	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/kubelet"
)

func (c *Config) newKubelet(p Paths, creds *Credentials, log *slog.Logger) (component.Component, error) {
	client, err := c.client(creds, creds.Kubelet)
	if err != nil {
		return nil, err
	}
	// Heartbeats have connections and limits of their own.
	heartbeat, err := c.client(creds, creds.Kubelet)
	if err != nil {
		return nil, err
	}
	serving, err := certificate(creds.KubeletServing)
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(creds.CA.Cert)
	return kubelet.New(kubelet.Config{
		NodeName: c.NodeName, Client: client, HeartbeatClient: heartbeat,
		RuntimeEndpoint: "unix://" + p.CRISocket(),
		RootDir:         p.Kubelet(), PodLogsDir: p.PodLogs(), ContainerLogsDir: p.ContainerLogs(), ManifestDir: p.StaticPods(),
		NodeIPs:        []string{c.NodeIP.String()},
		ListenAddr:     netip.AddrPortFrom(netip.IPv6Unspecified(), c.KubeletPort).String(),
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &serving, nil },
		ClientCA:       clients,
		ClusterDNS:     []string{c.ServiceIP(dnsServiceIndex).String()}, ClusterDomain: c.Domain,
		CgroupRoot: c.cgroupRoot(), Profiling: true, Logger: log,
	})
}
