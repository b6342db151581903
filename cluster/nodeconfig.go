package cluster

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/connrotation"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/cluster/pki"
	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/kubelet/certificates"
)

// NodeConfig is what one node process needs to know. The first node of a cluster derives
// it from cluster.json, a node that joined keeps it in its data directory.
type NodeConfig struct {
	// ClusterID tells clusters apart; it is in the names of what the node makes in the kernel.
	ClusterID string `json:"clusterID"`
	NodeName  string `json:"nodeName"`
	// NodeIPs are the node's addresses, the primary one first: one, or one of each family.
	NodeIPs []netip.Addr `json:"nodeIPs"`
	// Server is the URL of the API server.
	Server      string `json:"server"`
	KubeletPort uint16 `json:"kubeletPort"`
	// PodCIDRs and ServiceCIDRs are those of the whole cluster, one or one of each family.
	PodCIDRs     []netip.Prefix `json:"podCIDRs"`
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs"`
	// PodNetwork is how pods are connected.
	PodNetwork PodNetworkConfig `json:"podNetwork,omitzero"`
	// DNS are the addresses that pods are given as their resolvers.
	DNS    []netip.Addr `json:"dns"`
	Domain string       `json:"domain"`
	// Bridge is the name of the pod network's bridge, and begins the names of the node's tables.
	Bridge string `json:"bridge"`
	// CgroupRoot is the parent of all cgroups that the node makes.
	CgroupRoot string `json:"cgroupRoot"`
	// PlainHTTPRegistries are registry hosts to pull from without TLS.
	PlainHTTPRegistries []string `json:"plainHTTPRegistries,omitempty"`
	// Registries says how registries are reached; nil: as they call themselves.
	Registries *Registries `json:"registries,omitempty"`
	// Without are the node's components that others run.
	Without []string `json:"without,omitempty"`
	// Labels and Taints are those that the node registers with.
	Labels map[string]string `json:"labels,omitempty"`
	Taints []corev1.Taint    `json:"taints,omitempty"`
	// Capacity is the node's share of the machine; nil: all of it.
	Capacity corev1.ResourceList `json:"capacity,omitempty"`
	// RuntimeEndpoint is the CRI socket (unix:///…) of a runtime that others run; empty: the built-in one.
	RuntimeEndpoint string `json:"runtimeEndpoint,omitempty"`
	// PartOf is the id of the cluster on this host that the node is a further node of: it lives in
	// a network namespace, which goes with the node. Empty: the node has the host's.
	PartOf string `json:"partOf,omitempty"`
}

// NodeCredentials are who a node is. It has one identity, system:node:NAME, for all that
// it runs: kubelet, proxy, DNS and pod network.
type NodeCredentials struct {
	// CA verifies the API server and the kubelet's clients, as PEM.
	CA []byte
	// ClientCert and ClientKey are files: who renews the certificate replaces them, and
	// connections made from then on use the new one.
	ClientCert, ClientKey string
	// GetCertificate is what the kubelet serves with.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)

	// client and serving are where renewed certificates are kept; nil: others renew them.
	client, serving certificates.Store
	// conns are those to the API server, which are made anew with a new certificate.
	conns *connrotation.Dialer
	// mend is what to do once the client's certificate has ended.
	mend string
	// clock says when that is; nil: the real one.
	clock clock.WithTicker
}

// node is the first node of the cluster.
func (c *Config) node() *NodeConfig {
	return &NodeConfig{
		ClusterID: c.ID, NodeName: c.NodeName, NodeIPs: c.NodeIPs,
		Server: c.Server(), KubeletPort: c.KubeletPort,
		PodCIDRs: c.PodCIDRs, ServiceCIDRs: c.ServiceCIDRs,
		DNS: []netip.Addr{c.ServiceIP(dnsServiceIndex)}, Domain: c.Domain,
		Bridge: c.Bridge, CgroupRoot: "/skiff-" + c.ID[:8],
		RuntimeEndpoint: c.RuntimeEndpoint, PlainHTTPRegistries: c.PlainHTTPRegistries, Registries: c.Registries, Without: c.Without, PodNetwork: c.PodNetwork,
		Labels: ownLabels(c.Labels), Taints: c.Taints,
	}
}

// nodeCredentials are those of the first node, from the cluster's own directory.
func (k *Credentials) nodeCredentials(p Paths) (*NodeCredentials, error) {
	serving, err := certificate(k.KubeletServing)
	if err != nil {
		return nil, err
	}
	dir := pki.Dir{Path: p.PKI()}
	cert, key := dir.Files(kubeletClientName)
	servingCert, servingKey := dir.Files(kubeletServingName)
	return &NodeCredentials{
		CA: k.CA.Cert, ClientCert: cert, ClientKey: key, GetCertificate: Fixed(serving),
		client: certificates.Pair{Cert: cert, Key: key}, serving: certificates.Pair{Cert: servingCert, Key: servingKey},
		conns: newConnections(),
	}, nil
}

// newConnections tracks connections to the API server.
func newConnections() *connrotation.Dialer {
	return connrotation.NewDialer((&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext)
}

// filesRead is after how long client-go is sure to read a certificate's files again.
const filesRead = 2 * time.Second

// renewal keeps the node's certificates good while it runs; the kubelet serves with the newest.
func (k *NodeCredentials) renewal(n *NodeConfig, client kubernetes.Interface, log *slog.Logger) ([]component.Member, error) {
	subject := nodeSubject(n.NodeName)
	own := &x509.CertificateRequest{Subject: subject}
	server := &x509.CertificateRequest{Subject: subject, DNSNames: []string{n.NodeName}}
	for _, ip := range n.NodeIPs {
		server.IPAddresses = append(server.IPAddresses, ip.AsSlice())
	}
	var members []component.Member
	if k.client != nil {
		identity, err := certificates.New(certificates.Config{
			Client: client, Store: k.client, Signer: certificatesv1.KubeAPIServerClientKubeletSignerName, Purpose: certificatesv1.UsageClientAuth,
			Request: func() *x509.CertificateRequest { return own }, Renewed: k.conns.CloseAll, Settle: filesRead, Mend: k.mend, Clock: k.clock, Logger: log,
		})
		if err != nil {
			return nil, err
		}
		members = append(members, component.Member{Name: "client certificate", Component: identity})
	}
	if k.serving != nil {
		serving, err := certificates.New(certificates.Config{
			Client: client, Store: k.serving, Signer: certificatesv1.KubeletServingSignerName, Purpose: certificatesv1.UsageServerAuth,
			Request: func() *x509.CertificateRequest { return server }, Clock: k.clock, Logger: log,
		})
		if err != nil {
			return nil, err
		}
		k.GetCertificate = serving.GetCertificate
		members = append(members, component.Member{Name: "serving certificate", Component: serving})
	}
	return members, nil
}

// nodeSubject is who a node is.
func nodeSubject(name string) pkix.Name {
	return pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}
}

// lacks says whether others run a component of the node.
func (n *NodeConfig) lacks(component string) bool { return slices.Contains(n.Without, component) }

// runtimeEndpoint is the CRI socket that the kubelet uses.
func (n *NodeConfig) runtimeEndpoint(p Paths) string {
	if n.RuntimeEndpoint != "" {
		return n.RuntimeEndpoint
	}
	return "unix://" + p.CRISocket()
}
