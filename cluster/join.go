package cluster

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skiff-k8s/skiff/host/netlink"
	"github.com/skiff-k8s/skiff/kubelet/certificates"
)

// JoinOptions say which cluster a machine joins, and as what.
type JoinOptions struct {
	// Dir is the node's data directory.
	Dir string
	// Server is the API server: a URL, or host[:port].
	Server string
	// Token as skiff token create makes it. A node that has joined needs none.
	Token string
	// CAHash is that of the CA where the token has none; SkipCA joins without it.
	CAHash string
	SkipCA bool

	// NodeName and NodeIPs default to the host's name and to the address that reaches the server.
	NodeName string
	NodeIPs  []netip.Addr
	Labels   map[string]string
	Taints   []corev1.Taint
	// Capacity is the node's share of the machine; nil: all of it.
	Capacity            corev1.ResourceList
	PlainHTTPRegistries []string
	// PodNetwork changes how pods are connected where given.
	PodNetwork PodNetworkChange
	// CgroupRoot is the parent of the node's cgroups; empty: one that is new.
	CgroupRoot string
	// RuntimeEndpoint is the CRI socket of another runtime; empty: the built-in one.
	RuntimeEndpoint string

	// Progress gets lines about what is waited for.
	Progress io.Writer
	Logger   *slog.Logger
}

// Join makes the data directory of a node of another machine's cluster, or takes it up as it
// is: who has joined has an identity of its own and needs no token again. A server that
// cannot be reached is tried until ctx ends.
func Join(ctx context.Context, o JoinOptions) (*NodeConfig, error) {
	server, err := serverURL(o.Server)
	if err != nil {
		return nil, err
	}
	n, err := LoadNode(o.Dir)
	if err == nil {
		return rejoin(ctx, o, n, server)
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := unused(o.Dir); err != nil {
		return nil, err
	}
	token, err := o.token()
	if err != nil {
		return nil, err
	}
	if n, err = o.newNode(server); err != nil {
		return nil, err
	}
	return n, o.enroll(ctx, n, token)
}

// rejoin takes up a node that has joined; flags count for more than what is stored.
func rejoin(ctx context.Context, o JoinOptions, n *NodeConfig, server string) (*NodeConfig, error) {
	if o.NodeName != "" && o.NodeName != n.NodeName {
		return nil, fmt.Errorf("--data-dir %s is node %q, not %q; use another --data-dir", o.Dir, n.NodeName, o.NodeName)
	}
	if server != "" {
		n.Server = server
	}
	if err := n.followAddresses(o.NodeIPs); err != nil {
		return nil, err
	}
	if o.RuntimeEndpoint != "" {
		n.RuntimeEndpoint = o.RuntimeEndpoint
	}
	if o.PlainHTTPRegistries != nil {
		n.PlainHTTPRegistries = o.PlainHTTPRegistries
	}
	if _, err := n.PodNetwork.change(o.PodNetwork); err != nil {
		return nil, err
	}
	cert, err := (Paths{o.Dir}).clientStore().Load()
	switch {
	case err == nil && time.Now().Before(cert.Leaf.NotAfter):
		return n, n.save(o.Dir)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	case o.Token == "" && err == nil:
		return nil, fmt.Errorf("the certificate of node %q ended at %s, while the node was off; %s (if that time is still to come, set this machine's clock right instead)",
			n.NodeName, cert.Leaf.NotAfter.UTC().Format(time.RFC3339), joinAgain(o.Dir))
	}
	if o.Server == "" {
		o.Server = n.Server // it is known; a new token is all that it takes
	}
	token, err := o.token()
	if err != nil {
		return nil, err
	}
	return n, o.enroll(ctx, n, token)
}

// joinAgain is what mends that a node's certificate has ended.
func joinAgain(dir string) string {
	return "join again: run skiff token create on the server, then skiff agent --token TOKEN --data-dir " + dir + " here"
}

// unused refuses a directory that is something else's.
func unused(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--data-dir: %w", err)
	}
	for _, e := range entries {
		switch e.Name() {
		case "cluster.json":
			return fmt.Errorf("--data-dir %s holds a cluster of its own; use another directory to join one", dir)
		case "log", "lost+found", "run":
		default:
			return fmt.Errorf("--data-dir %s holds %q but no node.json: not a skiff data directory; use an empty or new one", dir, e.Name())
		}
	}
	return nil
}

// serverURL reads what --server says.
func serverURL(s string) (string, error) {
	if s == "" {
		return "", nil
	}
	if !strings.Contains(s, "://") {
		s = "https://" + s
	}
	u, err := url.Parse(s)
	if err != nil || u.Hostname() == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return "", fmt.Errorf("--server %q is no server such as https://192.0.2.1:6443", s)
	}
	if u.Scheme != "https" {
		return "", fmt.Errorf("--server %q: the API is served by https only", s)
	}
	port := u.Port()
	if port == "" {
		port = fmt.Sprint(defaultAPIPort)
	}
	return "https://" + net.JoinHostPort(u.Hostname(), port), nil
}

// token reads the token, whose CA's hash may be a flag of its own.
func (o *JoinOptions) token() (Token, error) {
	if o.Server == "" {
		return Token{}, errors.New("--server is required: the URL that skiff token create prints on the server")
	}
	if o.Token == "" {
		return Token{}, errors.New("--token is required: skiff token create makes one on the server")
	}
	t, err := ParseToken(o.Token)
	if err != nil {
		return Token{}, fmt.Errorf("--token %w", err)
	}
	if o.CAHash != "" {
		hash, err := ParseCAHash(o.CAHash)
		if err != nil {
			return Token{}, fmt.Errorf("--ca-cert-hash %w", err)
		}
		if t.CAHash != "" && t.CAHash != hash {
			return Token{}, errors.New("--ca-cert-hash differs from the hash in --token; leave one of them out")
		}
		t.CAHash = hash
	}
	if t.CAHash == "" && !o.SkipCA {
		return Token{}, errors.New("--token has no hash of the cluster's CA, without which anyone can pass for the server: use the whole token of skiff token create, add --ca-cert-hash, or take the risk with --insecure-skip-ca-verification")
	}
	return t, nil
}

// newNode is the node before it knows the cluster.
func (o *JoinOptions) newNode(server string) (*NodeConfig, error) {
	n := &NodeConfig{
		NodeName: o.NodeName, NodeIPs: o.NodeIPs, Server: server, KubeletPort: defaultKubeletPort,
		Labels: o.Labels, Taints: o.Taints, Capacity: o.Capacity,
		PlainHTTPRegistries: o.PlainHTTPRegistries, CgroupRoot: o.CgroupRoot, RuntimeEndpoint: o.RuntimeEndpoint,
	}
	if _, err := n.PodNetwork.change(o.PodNetwork); err != nil {
		return nil, err
	}
	var err error
	if n.NodeName == "" {
		if n.NodeName, err = hostNodeName(); err != nil {
			return nil, err
		}
	} else if errs := validation.IsDNS1123Subdomain(n.NodeName); len(errs) > 0 {
		return nil, fmt.Errorf("--node-name %q: %s", n.NodeName, strings.Join(errs, "; "))
	}
	id, err := randomID()
	if err != nil {
		return nil, err
	}
	n.Bridge = "sk" + id[:4]
	if n.CgroupRoot == "" {
		n.CgroupRoot = "/skiff-" + id[:8]
	}
	return n, n.followAddresses(o.NodeIPs)
}

// enroll gets the node its identity and the cluster's settings; what it writes last makes it
// one that has joined.
func (o *JoinOptions) enroll(ctx context.Context, n *NodeConfig, token Token) error {
	ca, err := o.discover(ctx, n.Server, token)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: n.Server, UserAgent: "skiff", BearerToken: token.Bearer(), TLSClientConfig: rest.TLSClientConfig{CAData: ca}, Timeout: time.Minute,
	})
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	if err := nameFree(ctx, client, n.NodeName); err != nil {
		return explain(n.Server, err)
	}
	if err := n.readSettings(ctx, client, ca); err != nil {
		return explain(n.Server, err)
	}
	if len(o.NodeIPs) == 0 {
		n.addFamilies(netlink.DefaultAddressOf)
	}
	if err := n.check(); err != nil {
		return err
	}
	fmt.Fprintf(o.Progress, "the cluster knows the token; waiting for the certificate of node %s\n", n.NodeName)
	cert, key, err := certificates.Request(ctx, client, &x509.CertificateRequest{Subject: nodeSubject(n.NodeName)},
		certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.UsageClientAuth, o.Logger)
	if err != nil {
		return explain(n.Server, err)
	}
	p := Paths{o.Dir}
	if err := os.MkdirAll(p.NodePKI(), 0o700); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	if err := writeDurably(p.NodeCA(), ca, 0o644); err != nil {
		return err
	}
	if err := n.save(o.Dir); err != nil {
		return err
	}
	return p.clientStore().Save(cert, key)
}

// nameFree refuses the name of another node that lives. One that is there but silent is
// taken up again by whoever has its name, as with upstream.
func nameFree(ctx context.Context, client kubernetes.Interface, name string) error {
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for node %s: %w", name, err)
	}
	if i := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady }); i >= 0 && node.Status.Conditions[i].Status != corev1.ConditionUnknown {
		return fmt.Errorf("node name %q is taken by a node that lives (machine %s); choose another with --node-name, or take that one away first: kubectl delete node %s",
			name, node.Status.NodeInfo.MachineID, name)
	}
	return nil
}

// check refuses what cannot work together.
func (n *NodeConfig) check() error {
	for _, ip := range n.NodeIPs {
		for _, l := range []struct {
			what  string
			cidrs []netip.Prefix
		}{{"pods", n.PodCIDRs}, {"Services", n.ServiceCIDRs}} {
			for _, c := range l.cidrs {
				if c.Contains(ip) {
					return fmt.Errorf("the node's address %s is among those of the cluster's %s (%s): give another with --node-ip, or make the cluster with other CIDRs", ip, l.what, c)
				}
			}
		}
	}
	return nil
}

// pinned returns the certificates of a bundle whose hash is the token's.
func pinned(bundle []byte, hash, server string) ([]byte, error) {
	hashes, err := caHashes(bundle)
	if err != nil {
		return nil, err
	}
	i := slices.Index(hashes, hash)
	if i < 0 {
		return nil, fmt.Errorf("%s has another CA than the token says (%s, not %s): it is another cluster, or something between it and this machine; use the join command of this cluster (skiff token create)",
			server, strings.Join(hashes, " "), hash)
	}
	for ; ; i-- {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); i == 0 {
			return pem.EncodeToMemory(block), nil
		}
	}
}
