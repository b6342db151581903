package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/cluster/process"
)

// Reach is how other machines reach the first node of a cluster and its API server. What is
// empty stays as it is.
type Reach struct {
	NodeName string
	NodeIPs  []netip.Addr
	// Advertise is where the API server is reached; default: the node's primary address.
	Advertise netip.Addr
	// Endpoint is what stands in front of this and further API servers: a name or address,
	// with a port unless that is the API server's.
	Endpoint string
	// TLSSANs are further names and addresses in its certificate.
	TLSSANs []string
	// SigningDuration is how long certificates of the cluster's signers last.
	SigningDuration time.Duration
}

// minSigning is the shortest life of certificates that nodes can live with.
const minSigning = 10 * time.Minute

// take makes it the cluster's.
func (c *Config) take(r Reach, p Paths) error {
	before := *c
	if r.NodeName != "" && r.NodeName != c.NodeName {
		if errs := validation.IsDNS1123Subdomain(r.NodeName); len(errs) > 0 {
			return fmt.Errorf("--node-name %q: %s", r.NodeName, strings.Join(errs, "; "))
		}
		if _, err := os.Stat(p.Etcd()); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("--node-name %q: this cluster's node is %q, and its name is not changed; leave it out", r.NodeName, c.NodeName)
		}
		c.NodeName = r.NodeName
	}
	if len(r.NodeIPs) > 0 {
		n := c.node()
		if err := n.followAddresses(r.NodeIPs); err != nil {
			return err
		}
		if err := c.setNodeIPs(n.NodeIPs); err != nil {
			return err
		}
	}
	if r.Advertise.IsValid() {
		c.AdvertiseAddress = r.Advertise
	}
	if r.Endpoint != "" {
		endpoint, err := parseEndpoint(r.Endpoint, c.APIPort)
		if err != nil {
			return err
		}
		if c.Joined != nil && endpoint != c.ControlPlaneEndpoint {
			return fmt.Errorf("--control-plane-endpoint=%s: the cluster that this machine joined has %s; leave it out", r.Endpoint, c.ControlPlaneEndpoint)
		}
		c.ControlPlaneEndpoint = endpoint
	}
	for _, s := range r.TLSSANs {
		if _, err := netip.ParseAddr(s); err != nil && len(validation.IsDNS1123Subdomain(strings.TrimPrefix(s, "*."))) > 0 {
			return fmt.Errorf("--tls-san %q is neither a host name nor an address", s)
		}
	}
	if r.TLSSANs != nil {
		c.TLSSANs = r.TLSSANs
	}
	if r.SigningDuration != 0 {
		if r.SigningDuration < minSigning {
			return fmt.Errorf("--cluster-signing-duration=%s is too short for nodes to renew in time; give at least %s", r.SigningDuration, minSigning)
		}
		c.SigningDuration.Duration = r.SigningDuration
	}
	if before.SigningDuration == c.SigningDuration && before.NodeName == c.NodeName && slices.Equal(before.node().NodeIPs, c.node().NodeIPs) && before.AdvertiseAddress == c.AdvertiseAddress && before.ControlPlaneEndpoint == c.ControlPlaneEndpoint && slices.Equal(before.TLSSANs, c.TLSSANs) {
		return nil
	}
	return c.save(p.Dir)
}

// Token makes a bootstrap token of the cluster that is up.
func (r *Running) Token(ctx context.Context, ttl time.Duration, description string) (Token, error) {
	cfg, err := AdminConfig(r.Paths)
	if err != nil {
		return Token{}, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return Token{}, fmt.Errorf("make client: %w", err)
	}
	return CreateToken(ctx, client, r.Paths, ttl, description)
}

// Halt ends the processes of a cluster or node, those of further nodes on this host included; containers go on.
func Halt(ctx context.Context, dir string) error {
	p := Paths{dir}
	var errs []error
	if c, err := Load(dir); err == nil { // else a node that joined
		for _, s := range c.Nodes {
			errs = append(errs, process.Stop(ctx, p.NodeDir(s.Name).Lock(Node), 20*time.Second))
		}
	}
	return errors.Join(append(errs, process.Stop(ctx, p.Lock(Node), 20*time.Second), process.Stop(ctx, p.Lock(ControlPlane), 20*time.Second))...)
}
