package cluster

import (
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/cluster/clusterfile"
	"github.com/skiff-k8s/skiff/cluster/manifests"
	"github.com/skiff-k8s/skiff/cluster/process"
	"github.com/skiff-k8s/skiff/containers/image"
)

// fileFields are the fields of a cluster file that flags set too; errors about the one are told
// of the other.
var fileFields = map[string]string{
	"--name": "name", "--api-port": "apiServer.port", "--pod-cidr": "network.podCIDRs", "--service-cidr": "network.serviceCIDRs",
	"--node-ip": "network.nodeIPs", "--node-name": "nodes[0].name",
}

// inFile says of which field of the file an error is; others stay as they are.
func inFile(f *clusterfile.File, err error) error {
	if f == nil || err == nil {
		return err
	}
	for flag, field := range fileFields {
		if rest, ok := strings.CutPrefix(err.Error(), flag); ok && f.Has(field) && rest != "" && strings.ContainsAny(rest[:1], "= ") {
			return f.Errorf(field, "%s", rest[1:])
		}
	}
	return err
}

// fileOptions are the options of Up that a cluster file sets.
func fileOptions(o *UpOptions, fresh bool) {
	f := o.File
	if f == nil {
		return
	}
	if f.APIServer.Port != nil {
		o.Wanted.APIPort = *f.APIServer.Port
	}
	if f.Network.PodCIDRs != nil {
		o.Wanted.PodCIDRs = f.Network.PodCIDRs
	}
	if f.Network.ServiceCIDRs != nil {
		o.Wanted.ServiceCIDRs = f.Network.ServiceCIDRs
	}
	if fresh {
		o.Reach.NodeIPs = f.Network.NodeIPs
		if len(f.Nodes) > 0 {
			o.Reach.NodeName = f.Nodes[0].Name
		}
	}
}

// checkFile refuses what a cluster cannot change any more, and what cannot be on this host. It
// changes nothing; running says whether the cluster's own processes may have its ports.
func (c *Config) checkFile(f *clusterfile.File, fresh, running bool) error {
	if f == nil {
		return nil
	}
	if !fresh {
		if err := c.refuseOtherFirst(f); err != nil {
			return err
		}
	}
	nodes, _, err := c.nodesOf(f, fresh)
	if err != nil {
		return err
	}
	first := c.NodeName
	if fresh && len(f.Nodes) > 0 && f.Nodes[0].Name != "" {
		first = f.Nodes[0].Name
	}
	for i, m := range f.Ports {
		path := fmt.Sprintf("ports[%d]", i)
		if m.Node != "" && m.Node != first && !slices.ContainsFunc(nodes, func(s NodeSpec) bool { return s.Name == m.Node }) {
			return f.Errorf(path+".node", "there is no node %s on this host; give it a name in nodes", m.Node)
		}
		for _, own := range c.ports() {
			if m.Protocol == string(corev1.ProtocolTCP) && m.HostPort == own {
				return f.Errorf(path+".hostPort", "%d is a port of the cluster itself", m.HostPort)
			}
		}
		if running && slices.ContainsFunc(c.Ports, func(o PortMapping) bool { return o.HostPort == m.HostPort && o.Protocol == m.Protocol }) {
			continue // it is this cluster that listens there
		}
		if err := PortMapping(m).to(netip.IPv6Unspecified()).Free(); err != nil {
			return f.Errorf(path+".hostPort", "%s (what listens there: ss -lnp 'sport = :%d')", err, m.HostPort)
		}
	}
	for i, path := range f.Images {
		if _, err := os.Stat(f.Path(path)); err != nil {
			return f.Errorf(fmt.Sprintf("images[%d]", i), "%s", unwrapPath(err, f.Path(path)))
		}
	}
	if f.Registries != nil && f.Registries.CAFile != "" {
		path := f.Path(f.Registries.CAFile)
		text, err := os.ReadFile(path)
		if err != nil {
			return f.Errorf("registries.caFile", "%s", unwrapPath(err, path))
		}
		if !x509.NewCertPool().AppendCertsFromPEM(text) {
			return f.Errorf("registries.caFile", "%s holds no PEM certificate", path)
		}
	}
	_, err = manifestsOf(f)
	return err
}

// unwrapPath names the path once.
func unwrapPath(err error, path string) error {
	var p interface{ Unwrap() error }
	if errors.As(err, &p) {
		return fmt.Errorf("%s: %w", path, p.Unwrap())
	}
	return err
}

// refuseOtherFirst says what of the first node stays.
func (c *Config) refuseOtherFirst(f *clusterfile.File) error {
	if f.Network.NodeIPs != nil && !slices.Equal(f.Network.NodeIPs, c.NodeIPs) {
		return f.Errorf("network.nodeIPs", "cluster %q was made with %s, which stays; leave it out", c.Name, joinStrings(c.NodeIPs))
	}
	if len(f.Nodes) == 0 {
		return nil
	}
	n := f.Nodes[0]
	if n.Name != "" && n.Name != c.NodeName {
		return f.Errorf("nodes[0].name", "the first node is %s, which stays; leave it out", c.NodeName)
	}
	return c.sameAsRegistered(f, "nodes[0]", NodeSpec{Name: c.NodeName, Labels: c.Labels, Taints: c.Taints}, n)
}

// sameAsRegistered refuses labels and taints that a node was not registered with.
func (c *Config) sameAsRegistered(f *clusterfile.File, path string, have NodeSpec, want clusterfile.Node) error {
	if f.Has(path+".labels") && !maps.Equal(have.Labels, want.Labels) {
		return f.Errorf(path+".labels", "node %s was registered with others; change them with kubectl label node %s", have.Name, have.Name)
	}
	if f.Has(path+".taints") && !slices.Equal(have.Taints, taintsOf(want.Taints)) {
		return f.Errorf(path+".taints", "node %s was registered with others; change them with kubectl taint node %s", have.Name, have.Name)
	}
	return nil
}

func taintsOf(in []clusterfile.Taint) []corev1.Taint {
	var out []corev1.Taint
	for _, t := range in {
		out = append(out, corev1.Taint{Key: t.Key, Value: t.Value, Effect: corev1.TaintEffect(t.Effect)})
	}
	return out
}

func joinStrings[T fmt.Stringer](in []T) string {
	var out []string
	for _, s := range in {
		out = append(out, s.String())
	}
	return strings.Join(out, ",")
}

// nodesOf are the further nodes that a file wants, and those there are that it does not. A file
// without nodes wants what there is. Nodes without a name are any that are alike.
func (c *Config) nodesOf(f *clusterfile.File, fresh bool) (want []NodeSpec, surplus []string, err error) {
	if f.Nodes == nil {
		return c.Nodes, nil, nil
	}
	left := c.staying()
	take := func(match func(NodeSpec) bool) *NodeSpec {
		i := slices.IndexFunc(left, match)
		if i < 0 {
			return nil
		}
		s := left[i]
		left = slices.Delete(left, i, i+1)
		return &s
	}
	type place struct {
		path string
		node clusterfile.Node
	}
	var named, others []place
	for i, n := range f.Nodes {
		p := place{fmt.Sprintf("nodes[%d]", i), n}
		count := 1
		if n.Count != nil {
			count = *n.Count
		}
		if i == 0 {
			count--
		}
		switch {
		case n.Name != "" && i > 0:
			named = append(named, p)
		default:
			for range count {
				others = append(others, p)
			}
		}
	}
	for _, p := range named {
		if p.node.Name == c.NodeName && !fresh {
			return nil, nil, f.Errorf(p.path+".name", "%s is the first node", c.NodeName)
		}
		spec := NodeSpec{Name: p.node.Name, Labels: p.node.Labels, Taints: taintsOf(p.node.Taints)}
		if s := take(func(s NodeSpec) bool { return s.Name == p.node.Name }); s != nil {
			if err := c.sameAsRegistered(f, p.path, *s, p.node); err != nil {
				return nil, nil, err
			}
			spec = *s
		}
		want = append(want, spec)
	}
	for _, p := range others {
		spec := NodeSpec{Labels: p.node.Labels, Taints: taintsOf(p.node.Taints)}
		if s := take(func(s NodeSpec) bool { return maps.Equal(s.Labels, spec.Labels) && slices.Equal(s.Taints, spec.Taints) }); s != nil {
			spec = *s
		}
		want = append(want, spec)
	}
	for _, s := range left {
		surplus = append(surplus, s.Name)
	}
	return want, surplus, nil
}

// takeFile makes it the cluster's. Nodes that it does not want stay until they are drained.
func (c *Config) takeFile(f *clusterfile.File, fresh bool) error {
	if f == nil {
		return nil
	}
	want, _, err := c.nodesOf(f, fresh)
	if err != nil {
		return err
	}
	if f.Nodes != nil {
		for _, s := range c.Nodes { // those that leave, or will
			if !slices.ContainsFunc(want, func(w NodeSpec) bool { return w.Name == s.Name }) {
				want = append(want, s)
			}
		}
		c.Nodes = nil
		for _, s := range want {
			if s.Name != "" {
				c.Nodes = append(c.Nodes, s)
			}
		}
		for _, s := range want {
			if s.Name == "" {
				s.Name = c.freeNodeName()
				c.Nodes = append(c.Nodes, s)
			}
		}
		if fresh {
			c.Labels, c.Taints = f.Nodes[0].Labels, taintsOf(f.Nodes[0].Taints)
		}
	}
	if f.Has("apiServer.extraArgs") {
		c.APIServerArgs = map[string][]string{}
		for name, v := range f.APIServer.ExtraArgs {
			c.APIServerArgs[name] = v
		}
	}
	if f.Has("ports") {
		c.Ports = nil
		for _, m := range f.Ports {
			c.Ports = append(c.Ports, PortMapping(m))
		}
	}
	if on := f.Network.Policy; on != nil {
		c.PodNetwork.NoPolicy = !*on
	}
	if m := f.Network.ProxyMode; m != "" {
		c.PodNetwork.ProxyMode = ProxyMode(m)
	}
	if pools := f.Network.LoadBalancerPools; f.Has("network.loadBalancerPools") {
		if i, err := c.checkPools(pools); err != nil {
			return f.Errorf(fmt.Sprintf("network.loadBalancerPools[%d]", i), "%s", err)
		}
		c.LoadBalancerPools = pools
	}
	if r := f.Registries; r != nil {
		c.Registries = &Registries{PlainHTTP: r.PlainHTTP, Mirrors: r.Mirrors}
		if r.CAFile != "" {
			if c.Registries.CAFile, err = filepath.Abs(f.Path(r.CAFile)); err != nil {
				return f.Errorf("registries.caFile", "%s", err)
			}
		}
		if r.Auth != nil {
			c.Registries.Auth = map[string]image.Auth{}
			for host, a := range r.Auth {
				c.Registries.Auth[host] = image.Auth{Username: a.Username, Password: a.Password}
			}
		}
	}
	return nil
}

// manifestsOf reads the files that a cluster file names, by where they are put.
func manifestsOf(f *clusterfile.File) (map[string][]byte, error) {
	out := map[string][]byte{}
	for i, name := range f.Manifests {
		path, at := f.Path(name), fmt.Sprintf("manifests[%d]", i)
		info, err := os.Stat(path)
		if err != nil {
			return nil, f.Errorf(at, "%s", unwrapPath(err, path))
		}
		files := []string{""}
		if info.IsDir() {
			if files, err = manifests.Find(path); err != nil {
				return nil, f.Errorf(at, "%s", err)
			}
			if len(files) == 0 {
				return nil, f.Errorf(at, "%s holds no .yaml, .yml or .json file", path)
			}
		} else if !manifests.IsManifest(path) {
			return nil, f.Errorf(at, "%s: want a .yaml, .yml or .json file, or a directory", path)
		}
		for _, file := range files {
			text, err := os.ReadFile(filepath.Join(path, file))
			if err == nil {
				_, err = manifests.Parse(filepath.Join(path, file), text)
			}
			if err != nil {
				return nil, f.Errorf(at, "%s", err)
			}
			out[filepath.Join(fmt.Sprintf("%02d-%s", i, filepath.Base(path)), file)] = text
		}
	}
	return out, nil
}

// FileManifests is where the manifests that a cluster file names are copied to.
func (p Paths) FileManifests() string { return filepath.Join(p.Manifests(), "cluster-file") }

// copyManifests makes the directory hold what the file names, and nothing else. A file that
// says nothing of manifests leaves them.
func copyManifests(f *clusterfile.File, p Paths) error {
	if f == nil || !f.Has("manifests") {
		return nil
	}
	want, err := manifestsOf(f)
	if err != nil {
		return err
	}
	dir := p.FileManifests()
	have, err := manifests.Find(dir)
	if err != nil {
		return err
	}
	for name, text := range want {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("copy manifests: %w", err)
		}
		if err := writeIfChanged(path, text, 0o600); err != nil {
			return err
		}
	}
	for _, name := range have {
		if _, ok := want[name]; !ok {
			if err := os.Remove(filepath.Join(dir, name)); err != nil {
				return fmt.Errorf("copy manifests: %w", err)
			}
		}
	}
	return nil
}

// outdated are the roles that run with other settings than the configuration has now.
func (r *Running) outdated() ([]program, error) {
	var out []program
	for _, role := range []Role{ControlPlane, Node} {
		if told, err := os.ReadFile(r.Paths.settings(role)); err == nil && string(told) != r.Config.settings(role) || err != nil && r.Config.settings(role) != (&Config{}).settings(role) {
			out = append(out, r.role(role))
		}
	}
	for _, s := range r.Config.staying() {
		n, err := LoadNode(r.Paths.NodeDir(s.Name).Dir)
		if err == nil && (!sameSettings(n.Registries, r.Config.Registries) || n.PodNetwork.NoPolicy != r.Config.PodNetwork.NoPolicy || n.PodNetwork.proxyMode() != r.Config.PodNetwork.proxyMode()) {
			out = append(out, r.agent(s))
		}
	}
	running := out[:0]
	for _, p := range out {
		pid, err := process.Running(p.lock)
		if err != nil {
			return nil, err
		}
		if pid != 0 {
			running = append(running, p)
		}
	}
	return running, nil
}

// Surplus are the further nodes that a running cluster has and a file does not want.
func Surplus(f *clusterfile.File, dir string) ([]string, error) {
	c, err := Load(dir)
	if err != nil {
		return nil, err
	}
	_, surplus, err := c.nodesOf(f, false)
	return surplus, err
}
