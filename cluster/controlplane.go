package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/skiff-k8s/skiff/apiserver/authn"
	"github.com/skiff-k8s/skiff/cluster/process"
	"github.com/skiff-k8s/skiff/component"
)

// APIServerArgs changes the configuration of a cluster's API server as flags of
// skiff kube-apiserver say.
type APIServerArgs func(c *APIServerConfig, args map[string][]string) error

// RunControlPlane runs etcd, the API server, the scheduler and the controllers of the
// cluster in dir until ctx ends.
func RunControlPlane(ctx context.Context, dir string, args APIServerArgs) error {
	c, err := Load(dir)
	if err != nil {
		return err
	}
	p := Paths{dir}
	lock, err := process.Lock(p.Lock(ControlPlane))
	if err != nil {
		return err
	}
	defer lock.Close()
	creds, err := EnsureCredentials(dir, c)
	if err != nil {
		return err
	}
	if err := c.noteSettings(p, ControlPlane); err != nil {
		return err
	}
	log := newLogger()
	cp, err := newControlPlane(c, p, creds, args, log)
	if err != nil {
		return err
	}
	return cp.Run(ctx)
}

// newControlPlane composes the control plane; nothing runs before the group does.
func newControlPlane(c *Config, p Paths, creds *Credentials, args APIServerArgs, log *slog.Logger) (*component.Group, error) {
	if c.lacks(APIServer) {
		return newRemoteAddons(c, p, creds, log)
	}
	api, err := c.apiServerConfig(p, creds, log)
	if err != nil {
		return nil, err
	}
	if err := args(&api, c.APIServerArgs); err != nil {
		return nil, fmt.Errorf("extra arguments of the API server: %w", err)
	}
	s, err := newAPIServer(api)
	if err != nil {
		return nil, err
	}
	managers, err := newManagers(c, creds, s, log)
	if err != nil {
		return nil, err
	}
	group := component.NewGroup(log)
	files, err := newOwnManifests(p, s, log.With("component", "manifests"))
	if err != nil {
		return nil, err
	}
	for _, m := range append(s.members, managers...) {
		group.Add(m)
	}
	group.Add(component.Member{Name: "manifests", Component: files, Background: true})
	group.Add(trim())
	return group, nil
}

// apiServerConfig is the API server of the cluster on this host.
func (c *Config) apiServerConfig(p Paths, creds *Credentials, log *slog.Logger) (APIServerConfig, error) {
	serving, err := certificate(creds.APIServer)
	if err != nil {
		return APIServerConfig{}, err
	}
	kubelets, err := certificate(creds.KubeletClient)
	if err != nil {
		return APIServerConfig{}, err
	}
	extensions, err := certificate(creds.FrontProxyClient)
	if err != nil {
		return APIServerConfig{}, err
	}
	auditor, err := c.Audit.auditor(log.With("component", "audit"))
	if err != nil {
		return APIServerConfig{}, err
	}
	ca, frontProxyCA := x509.NewCertPool(), x509.NewCertPool()
	ca.AppendCertsFromPEM(creds.CA.Cert)
	frontProxyCA.AppendCertsFromPEM(creds.FrontProxyCA.Cert)
	return APIServerConfig{
		Store:     StoreConfig{DataDir: p.Etcd(), Name: c.NodeName, Quorum: c.quorum(p), Socket: p.EtcdSocket(), External: c.Etcd},
		Bind:      netip.AddrPortFrom(netip.IPv6Unspecified(), c.APIPort),
		Advertise: c.advertise(),
		Serving:   &tls.Config{Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12},
		ClientCA:  creds.CA.Cert, FrontProxyCA: creds.FrontProxyCA.Cert,
		FrontProxy: &authn.FrontProxy{
			CAs: frontProxyCA, Names: []string{"front-proxy-client"},
			UserHeaders: []string{"X-Remote-User"}, UIDHeaders: []string{"X-Remote-Uid"},
			GroupHeaders: []string{"X-Remote-Group"}, ExtraPrefixes: []string{"X-Remote-Extra-"},
		},
		Anonymous: true, BootstrapTokens: true, ResourceMetrics: true, Policy: c.policy(),
		TokenKey: creds.TokenKey, Issuer: "https://kubernetes.default.svc." + c.Domain,
		ServiceCIDRs:     c.ServiceCIDRs,
		Kubelets:         &tls.Config{Certificates: []tls.Certificate{kubelets}, RootCAs: ca, MinVersion: tls.VersionTLS12},
		ExtensionServers: extensions, Audit: auditor, Profiling: true,
		Logger: log,
	}, nil
}
