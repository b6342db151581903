// Package cluster is the composition root: which parts run on this host, from which
// files, in what order, and how they are started, watched over and taken away.
//
// Owns: the data directory's layout, cluster.json, the two processes (control plane,
// node). Must not: hold behaviour of any component.
package cluster

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/skiff-k8s/skiff/host/netlink"
	"github.com/skiff-k8s/skiff/version"
)

// Config is what a cluster on this host is. It is written once, to cluster.json, and
// read by both processes; what is not in it has one value for all clusters.
type Config struct {
	// Format is the version of the data directory; see dataFormat.
	Format int `json:"format"`
	// Name is what the user calls the cluster.
	Name string `json:"name"`
	// ID tells clusters of the same name apart.
	ID string `json:"id"`
	// CreatedBy is the skiff version that made the data directory.
	CreatedBy string `json:"createdBy"`

	NodeName string `json:"nodeName"`
	// NodeIPs, PodCIDRs and ServiceCIDRs are one, or one of each family in the same order;
	// the first is of the primary family. See configFile for how they are written.
	NodeIPs      []netip.Addr   `json:"nodeIPs"`
	APIPort      uint16         `json:"apiPort"`
	KubeletPort  uint16         `json:"kubeletPort"`
	PodCIDRs     []netip.Prefix `json:"podCIDRs"`
	ServiceCIDRs []netip.Prefix `json:"serviceCIDRs"`
	Domain       string         `json:"domain"`
	// PodNetwork is how pods are connected.
	PodNetwork PodNetworkConfig `json:"podNetwork,omitzero"`
	// Bridge is the name of the pod network's bridge.
	Bridge string `json:"bridge"`
	// RuntimeEndpoint is the CRI socket of a runtime that others run; empty: the built-in one.
	RuntimeEndpoint string `json:"runtimeEndpoint,omitempty"`
	// PlainHTTPRegistries are registry hosts to pull from without TLS.
	PlainHTTPRegistries []string `json:"plainHTTPRegistries,omitempty"`
	// Registries says how registries are reached by the built-in runtime; nil: as they call themselves.
	Registries *Registries `json:"registries,omitempty"`
	// Without are components that others run.
	Without []string `json:"without,omitempty"`
	// AdvertiseAddress is where other machines reach the API server; invalid: at NodeIP.
	AdvertiseAddress netip.Addr `json:"advertiseAddress,omitzero"`
	// ControlPlaneEndpoint is the host and port of what stands in front of the API servers, of
	// which there may be several then; empty: there is one.
	ControlPlaneEndpoint string `json:"controlPlaneEndpoint,omitempty"`
	// Joined is set for a control plane that joined others.
	Joined *JoinedFrom `json:"joined,omitempty"`
	// TLSSANs are further names and addresses in the API server's certificate.
	TLSSANs []string `json:"tlsSANs,omitempty"`
	// SigningDuration is how long the cluster's signers' certificates last; 0: a year.
	SigningDuration metav1.Duration `json:"signingDuration,omitzero"`
	// APIServerArgs are flags of skiff kube-apiserver that the API server is given besides.
	APIServerArgs map[string][]string `json:"apiServerArgs,omitempty"`
	// Ports of this host lead to ports of nodes.
	Ports []PortMapping `json:"ports,omitempty"`
	// LoadBalancerPools are what Services of type LoadBalancer get addresses of: CIDRs and ranges.
	LoadBalancerPools []string `json:"loadBalancerPools,omitempty"`
	// Etcd is where the cluster keeps its state instead of a member of its own.
	Etcd *ExternalEtcd `json:"etcd,omitempty"`
	// Audit says which requests are recorded, and where.
	Audit AuditConfig `json:"audit,omitzero"`
	// Labels and Taints are the first node's.
	Labels map[string]string `json:"labels,omitempty"`
	Taints []corev1.Taint    `json:"taints,omitempty"`
	// Nodes are the further nodes on this host, and NodeSubnets the link's that joins them
	// to it, one a family; none before there are further nodes.
	Nodes       []NodeSpec     `json:"nodes,omitempty"`
	NodeSubnets []netip.Prefix `json:"nodeSubnets,omitempty"`
}

// AuditConfig is the audit log of a cluster; without a policy there is none.
type AuditConfig struct {
	// PolicyFile holds an audit.k8s.io/v1 Policy, LogPath takes the events.
	PolicyFile string `json:"policyFile,omitempty"`
	LogPath    string `json:"logPath,omitempty"`
}

// dataFormat is the version of the data directory that this build reads and writes.
const dataFormat = 1

const (
	defaultAPIPort     = 6443
	defaultKubeletPort = 10250
)

// Paths is the layout of a data directory.
type Paths struct{ Dir string }

// Files of the data directory.
func (p Paths) Config() string        { return filepath.Join(p.Dir, "cluster.json") }
func (p Paths) Kubeconfig() string    { return filepath.Join(p.Dir, "kubeconfig") }
func (p Paths) PKI() string           { return filepath.Join(p.Dir, "pki") }
func (p Paths) Etcd() string          { return filepath.Join(p.Dir, "etcd") }
func (p Paths) EtcdSocket() string    { return filepath.Join(p.Run(), "db.sock") } // no longer than the CRI socket's, whose length is checked
func (p Paths) Logs() string          { return filepath.Join(p.Dir, "log") }
func (p Paths) PodLogs() string       { return filepath.Join(p.Dir, "log", "pods") }
func (p Paths) ContainerLogs() string { return filepath.Join(p.Dir, "log", "containers") }
func (p Paths) Kubelet() string       { return filepath.Join(p.Dir, "kubelet") }
func (p Paths) StaticPods() string    { return filepath.Join(p.Dir, "static-pods") }
func (p Paths) Containers() string    { return filepath.Join(p.Dir, "containers") }
func (p Paths) Network() string       { return filepath.Join(p.Dir, "network") }
func (p Paths) Run() string           { return filepath.Join(p.Dir, "run") }
func (p Paths) CRISocket() string     { return filepath.Join(p.Run(), "cri.sock") }
func (p Paths) Lock(role Role) string { return filepath.Join(p.Run(), string(role)+".lock") }
func (p Paths) Log(role Role) string  { return filepath.Join(p.Logs(), string(role)+".log") }

// DefaultDir is where a cluster's data is when no directory is given.
func DefaultDir(name string) string { return filepath.Join("/var/lib/skiff", name) }

// maxSocketPath is sizeof(sun_path) less the final NUL.
const maxSocketPath = 107

// Validate checks what a user can get wrong about a data directory and name.
func Validate(name, dir string) error {
	if errs := validation.IsDNS1123Label(name); len(errs) > 0 {
		return fmt.Errorf("--name %q: %s", name, strings.Join(errs, "; "))
	}
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("--data-dir %q: must be absolute", dir)
	}
	if s := (Paths{dir}).CRISocket(); len(s) > maxSocketPath {
		return fmt.Errorf("--data-dir %q: too long by %d bytes for a unix socket below it; choose a shorter path", dir, len(s)-maxSocketPath)
	}
	return nil
}

// Load reads the configuration of an existing cluster; fs.ErrNotExist if dir holds none.
func Load(dir string) (*Config, error) {
	path := (Paths{dir}).Config()
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read cluster configuration: %w", err)
	}
	var c Config
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("%s is damaged (%w); restore it from a backup or use another --data-dir", path, err)
	}
	if c.Format > dataFormat || c.Format < 1 {
		return nil, fmt.Errorf("%s has format %d, written by skiff %s; this skiff %s reads formats up to %d: use a newer skiff",
			path, c.Format, c.CreatedBy, version.Skiff, dataFormat)
	}
	return &c, nil
}

// LoadOrCreate reads the configuration of dir, or makes a new cluster's in an empty or
// missing directory.
func LoadOrCreate(name, dir string) (*Config, error) {
	c, fresh, err := loadOrNew(name, dir)
	if err != nil || !fresh {
		return c, err
	}
	return c, c.save(dir)
}

// loadOrNew reads the configuration of dir, or makes a new cluster's for an empty or
// missing directory, which is not written yet.
func loadOrNew(name, dir string) (c *Config, fresh bool, err error) {
	c, err = Load(dir)
	if err == nil {
		if c.Name != name {
			return nil, false, fmt.Errorf("--data-dir %s belongs to cluster %q, not %q; use --name %s or another --data-dir", dir, c.Name, name, c.Name)
		}
		return c, false, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, false, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, false, fmt.Errorf("--data-dir: %w", err)
	}
	for _, e := range entries {
		if e.Name() != "log" && e.Name() != "lost+found" && e.Name() != "run" {
			return nil, false, fmt.Errorf("--data-dir %s holds %q but no cluster.json: not a skiff data directory; use an empty or new one", dir, e.Name())
		}
	}
	c, err = newConfig(name)
	return c, true, err
}

func newConfig(name string) (*Config, error) {
	node, err := hostNodeName()
	if err != nil {
		return nil, err
	}
	ip, err := netlink.DefaultAddress()
	if err != nil {
		return nil, fmt.Errorf("find this host's address: %w", err)
	}
	id, err := randomID()
	if err != nil {
		return nil, err
	}
	return &Config{
		Format: dataFormat, Name: name, ID: id, CreatedBy: version.Skiff,
		NodeName: node, NodeIPs: []netip.Addr{ip}, APIPort: defaultAPIPort, KubeletPort: defaultKubeletPort,
		PodCIDRs:     []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")},
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")},
		Domain:       "cluster.local",
		Bridge:       "sk" + id[:4],
	}, nil
}

// hostNodeName names a node after its host.
func hostNodeName() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find the host's name: %w", err)
	}
	node := strings.ToLower(host)
	if errs := validation.IsDNS1123Subdomain(node); len(errs) > 0 {
		return "", fmt.Errorf("the host's name %q cannot name a node: %s; change it with hostnamectl set-hostname, or give --node-name", host, strings.Join(errs, "; "))
	}
	return node, nil
}

// randomID tells clusters, and nodes on one host, apart.
func randomID() (string, error) {
	raw := make([]byte, 8)
	if _, err := rand.Read(raw); err != nil {
		return "", fmt.Errorf("make an id: %w", err)
	}
	return hex.EncodeToString(raw), nil
}

// followAddress takes another address when the host has lost one that the cluster knows
// (DHCP, a moved disk); certificates and endpoints follow at the next start.
func (c *Config) followAddress(dir string) error {
	changed := false
	for i, ip := range c.NodeIPs {
		has, err := netlink.HasAddress(ip)
		if err != nil {
			return err
		}
		if has {
			continue
		}
		if c.NodeIPs[i], err = netlink.DefaultAddressOf(ip.Is6()); err != nil {
			return fmt.Errorf("find this host's address: %w", err)
		}
		changed = true
	}
	if !changed {
		return nil
	}
	return c.save(dir)
}

func (c *Config) save(dir string) error {
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode cluster configuration: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	return writeDurably((Paths{dir}).Config(), append(text, '\n'), 0o600)
}

// ServiceIP is the n-th address of the primary service CIDR: 1 is the API server's, 10 DNS's.
func (c *Config) ServiceIP(n int) netip.Addr { return nthAddress(c.ServiceCIDRs[0], n) }

// serviceIPs are the n-th addresses of all service CIDRs.
func (c *Config) serviceIPs(n int) []netip.Addr {
	var out []netip.Addr
	for _, p := range c.ServiceCIDRs {
		out = append(out, nthAddress(p, n))
	}
	return out
}

func nthAddress(p netip.Prefix, n int) netip.Addr {
	a := p.Masked().Addr()
	for range n {
		a = a.Next()
	}
	return a
}

func writeDurably(path string, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}

// Ports are those that the cluster in dir uses; a new one takes what is free.
func Ports(dir string) []uint16 {
	c, err := Load(dir)
	if err != nil {
		return nil
	}
	return c.ports()
}
