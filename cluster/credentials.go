package cluster

import (
	"crypto"
	"crypto/tls"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/skiff-k8s/skiff/cluster/addons"
	"github.com/skiff-k8s/skiff/cluster/pki"
	"github.com/skiff-k8s/skiff/version"
)

// Credentials are the certificates and keys of a cluster on this host.
type Credentials struct {
	CA, FrontProxyCA *pki.Authority
	// TokenKey signs ServiceAccount tokens.
	TokenKey crypto.Signer

	APIServer        pki.Pair // serving
	KubeletClient    pki.Pair // API server → kubelet
	FrontProxyClient pki.Pair // API server → extension API servers
	Kubelet          pki.Pair // node → API server, system:node:<name>
	KubeletServing   pki.Pair
	Admin            pki.Pair

	// EtcdCA signs what etcd's members and their clients show; nil: there is one member.
	EtcdCA *pki.Authority
}

// File names of the first node's certificates.
const (
	kubeletClientName  = "kubelet-client"
	kubeletServingName = "kubelet"
)

// EnsureCredentials loads, makes or renews everything under the pki directory, and
// writes the admin kubeconfig.
func EnsureCredentials(dir string, c *Config) (*Credentials, error) {
	p := Paths{dir}
	d := pki.Dir{Path: p.PKI()}
	var k Credentials
	var err error
	if k.CA, err = d.Authority("ca", "kubernetes"); err != nil {
		return nil, err
	}
	if k.FrontProxyCA, err = d.Authority("front-proxy-ca", "front-proxy-ca"); err != nil {
		return nil, err
	}
	if k.TokenKey, err = d.SigningKey("sa"); err != nil {
		return nil, err
	}
	if err := c.ensureEtcdCertificates(d, &k); err != nil {
		return nil, err
	}
	names, ips := c.servingNames()
	for _, l := range []struct {
		out  *pki.Pair
		ca   *pki.Authority
		name string
		leaf pki.Leaf
	}{
		{&k.APIServer, k.CA, "apiserver", pki.Leaf{
			CommonName: "kube-apiserver", Server: true,
			DNSNames: names, IPs: ips,
		}},
		{&k.KubeletClient, k.CA, "apiserver-kubelet-client", pki.Leaf{CommonName: addons.KubeletClientUser, Client: true}},
		{&k.FrontProxyClient, k.FrontProxyCA, "front-proxy-client", pki.Leaf{CommonName: "front-proxy-client", Client: true}},
		{&k.Admin, k.CA, "admin", pki.Leaf{CommonName: "kubernetes-admin", Organizations: []string{"system:masters"}, Client: true}},
		{&k.Kubelet, k.CA, kubeletClientName, pki.Leaf{CommonName: "system:node:" + c.NodeName, Organizations: []string{"system:nodes"}, Client: true}},
		{&k.KubeletServing, k.CA, kubeletServingName, pki.Leaf{CommonName: "system:node:" + c.NodeName, Organizations: []string{"system:nodes"}, Server: true, DNSNames: []string{c.NodeName}, IPs: c.NodeIPs}},
	} {
		if *l.out, err = d.Leaf(l.ca, l.name, l.leaf); err != nil {
			return nil, err
		}
	}
	return &k, writeKubeconfig(p.Kubeconfig(), c, k.CA.Cert, k.Admin)
}

// Server is the API server's address as processes of this host use it.
func (c *Config) Server() string {
	return "https://" + netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), c.APIPort).String()
}

// advertise is the address by which other machines reach the API server.
func (c *Config) advertise() netip.Addr {
	if c.AdvertiseAddress.IsValid() {
		return c.AdvertiseAddress
	}
	return c.NodeIPs[0]
}

// PublicServer is the API server's URL as other machines use it.
func (c *Config) PublicServer() string {
	if c.ControlPlaneEndpoint != "" {
		return "https://" + c.ControlPlaneEndpoint
	}
	return "https://" + netip.AddrPortFrom(c.advertise(), c.APIPort).String()
}

// servingNames are what the API server's certificate is for.
func (c *Config) servingNames() (names []string, ips []netip.Addr) {
	names = []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + c.Domain, "localhost", c.NodeName}
	ips = []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	ips = append(append(ips, c.NodeIPs...), c.serviceIPs(1)...)
	if a := c.advertise(); !slices.Contains(ips, a) {
		ips = append(ips, a)
	}
	for _, s := range append(c.endpointNames(), c.TLSSANs...) {
		if a, err := netip.ParseAddr(s); err == nil {
			ips = append(ips, a)
		} else {
			names = append(names, s)
		}
	}
	return names, ips
}

// join is what nodes must know to join the cluster.
func (c *Config) join(creds *Credentials) addons.Join {
	n := c.node()
	return addons.Join{
		ClusterName: c.Name, Server: c.PublicServer(), CA: creds.CA.Cert,
		PodCIDRs: n.PodCIDRs, ServiceCIDRs: n.ServiceCIDRs, DNS: n.DNS, Domain: n.Domain, Version: version.Kubernetes,
	}
}

func writeKubeconfig(path string, c *Config, ca []byte, user pki.Pair) error {
	name := "skiff"
	if c.Name != "default" {
		name += "-" + c.Name
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[name] = &clientcmdapi.Cluster{Server: c.kubeconfigServer(), CertificateAuthorityData: ca}
	cfg.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: user.Cert, ClientKeyData: user.Key}
	cfg.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	cfg.CurrentContext = name
	text, err := clientcmd.Write(*cfg)
	if err != nil {
		return fmt.Errorf("encode %s: %w", filepath.Base(path), err)
	}
	if have, err := readIfExists(path); err == nil && slices.Equal(have, text) {
		return nil
	}
	return writeDurably(path, text, 0o600)
}

// certificate makes a tls.Certificate of a pair.
func certificate(p pki.Pair) (tls.Certificate, error) {
	cert, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("load certificate: %w", err)
	}
	return cert, nil
}
