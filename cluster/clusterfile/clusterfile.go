// Package clusterfile reads cluster.yaml, the file that says what a cluster of `skiff up -f` is
// like (docs/cluster-file.md).
//
// Pure: bytes in, a checked File out. It is strict: what it does not know or what has another type is an
// error that says file, line and field. Must not: look at disks, hosts or clusters.
package clusterfile

import (
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// What a file calls itself.
const (
	APIVersion = "skiff.dev/v1alpha1"
	Kind       = "Cluster"
)

// File is the content of a cluster file. What is nil or zero was left out.
type File struct {
	APIVersion string `yaml:"apiVersion"`
	Kind       string `yaml:"kind"`
	// Name of the cluster.
	Name string `yaml:"name"`
	// Nodes are all nodes on this host; the first one is the host itself.
	Nodes      []Node      `yaml:"nodes"`
	Network    Network     `yaml:"network"`
	APIServer  APIServer   `yaml:"apiServer"`
	Ports      []Port      `yaml:"ports"`
	Registries *Registries `yaml:"registries"`
	// Manifests are files and directories to apply, Images archives to load; relative to the file.
	Manifests []string `yaml:"manifests"`
	Images    []string `yaml:"images"`

	decoder *decoder
}

// Node is one node, or Count alike.
type Node struct {
	Name   string            `yaml:"name"`
	Count  *int              `yaml:"count"`
	Labels map[string]string `yaml:"labels"`
	Taints []Taint           `yaml:"taints"`
}

// Taint of a node.
type Taint struct {
	Key    string `yaml:"key"`
	Value  string `yaml:"value"`
	Effect string `yaml:"effect"`
}

// Network of the cluster; lists have one entry a family.
type Network struct {
	PodCIDRs     []netip.Prefix `yaml:"podCIDRs"`
	ServiceCIDRs []netip.Prefix `yaml:"serviceCIDRs"`
	NodeIPs      []netip.Addr   `yaml:"nodeIPs"`
	// Policy says whether NetworkPolicies are enforced.
	Policy *bool `yaml:"policy"`
	// ProxyMode is what Services are programmed by.
	ProxyMode string `yaml:"proxyMode"`
	// LoadBalancerPools are CIDRs and ranges that Services of type LoadBalancer get addresses of.
	LoadBalancerPools []string `yaml:"loadBalancerPools"`
}

// APIServer of the cluster.
type APIServer struct {
	Port *uint16 `yaml:"port"`
	// ExtraArgs are flags of skiff kube-apiserver without their dashes.
	ExtraArgs map[string]Values `yaml:"extraArgs"`
}

// Port leads connections to a port of the host to one of a node.
type Port struct {
	HostPort uint16     `yaml:"hostPort"`
	NodePort uint16     `yaml:"nodePort"`
	Node     string     `yaml:"node"`
	Protocol string     `yaml:"protocol"`
	Listen   netip.Addr `yaml:"listenAddress"`
}

// Registries are where images come from.
type Registries struct {
	PlainHTTP []string            `yaml:"plainHTTP"`
	Mirrors   map[string][]string `yaml:"mirrors"`
	Auth      map[string]Auth     `yaml:"auth"`
	CAFile    string              `yaml:"caFile"`
}

// Auth is a user of a registry.
type Auth struct {
	Username string `yaml:"username"`
	Password string `yaml:"password"`
}

// Parse reads and checks a file. The error is one line.
func Parse(name string, data []byte) (*File, error) {
	d := &decoder{file: name, lines: map[string]int{}}
	root, err := d.parse(data)
	if err != nil {
		return nil, err
	}
	f := &File{decoder: d}
	if err := d.value(root, "", reflect.ValueOf(f).Elem()); err != nil {
		return nil, err
	}
	return f, f.check()
}

// Errorf is an error at a field, for what only others can check.
func (f *File) Errorf(path, format string, args ...any) error {
	return f.decoder.at(path, format, args...)
}

// Path is where a path that the file names is: relative ones begin where the file is.
func (f *File) Path(path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(filepath.Dir(f.decoder.file), path)
}

// Has says whether a field was given, be it empty.
func (f *File) Has(path string) bool {
	_, ok := f.decoder.lines[path]
	return ok
}

func (f *File) check() error {
	switch {
	case f.APIVersion != APIVersion:
		return f.Errorf("apiVersion", "want %s, not %q", APIVersion, f.APIVersion)
	case f.Kind != Kind:
		return f.Errorf("kind", "want %s, not %q", Kind, f.Kind)
	case f.Has("name"):
		if errs := validation.IsDNS1123Label(f.Name); len(errs) > 0 {
			return f.Errorf("name", "%q: %s", f.Name, strings.Join(errs, "; "))
		}
	}
	for _, check := range []func() error{f.checkNodes, f.checkNetwork, f.checkPorts, f.checkRegistries} {
		if err := check(); err != nil {
			return err
		}
	}
	if m := f.Network.ProxyMode; f.Has("network.proxyMode") && !slices.Contains(proxyModes, m) {
		return f.Errorf("network.proxyMode", "%q: want %s", m, strings.Join(proxyModes, ", "))
	}
	for i, p := range f.Manifests {
		if p == "" {
			return f.Errorf(fmt.Sprintf("manifests[%d]", i), "is empty")
		}
	}
	for i, p := range f.Images {
		if p == "" {
			return f.Errorf(fmt.Sprintf("images[%d]", i), "is empty")
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.APIServer.ExtraArgs)) {
		path, values := "apiServer.extraArgs."+name, f.APIServer.ExtraArgs[name]
		switch {
		case name == "" || strings.HasPrefix(name, "-"):
			return f.Errorf(path, "give the flag without its dashes")
		case len(values) == 0:
			return f.Errorf(path, "%s", errValues)
		}
	}
	return nil
}

var proxyModes = []string{"nftables", "iptables", "ipvs"}

// maxCount bounds a slip of the keyboard; a host's link has room for no more nodes.
const maxCount = 253

func (f *File) checkNodes() error {
	if f.Nodes != nil && len(f.Nodes) == 0 {
		return f.Errorf("nodes", "is empty; the first node is this host")
	}
	names := map[string]string{}
	for i, n := range f.Nodes {
		path := fmt.Sprintf("nodes[%d]", i)
		if f.Has(path + ".name") {
			if errs := validation.IsDNS1123Subdomain(n.Name); len(errs) > 0 {
				return f.Errorf(path+".name", "%q: %s", n.Name, strings.Join(errs, "; "))
			}
			if other, ok := names[n.Name]; ok {
				return f.Errorf(path+".name", "%s is the name of %s too", n.Name, other)
			}
			names[n.Name] = path
		}
		if n.Count != nil {
			switch {
			case *n.Count < 1 || *n.Count > maxCount:
				return f.Errorf(path+".count", "%d: want 1 to %d", *n.Count, maxCount)
			case *n.Count > 1 && n.Name != "":
				return f.Errorf(path+".count", "%d nodes cannot have one name; leave name or count out", *n.Count)
			}
		}
		for _, k := range slices.Sorted(maps.Keys(n.Labels)) {
			at, v := path+".labels."+k, n.Labels[k]
			if errs := validation.IsQualifiedName(k); len(errs) > 0 {
				return f.Errorf(at, "%q: %s", k, strings.Join(errs, "; "))
			}
			if errs := validation.IsValidLabelValue(v); len(errs) > 0 {
				return f.Errorf(at, "%q: %s", v, strings.Join(errs, "; "))
			}
		}
		if err := f.checkTaints(path, n.Taints); err != nil {
			return err
		}
	}
	return nil
}

func (f *File) checkTaints(node string, taints []Taint) error {
	effects := []string{string(corev1.TaintEffectNoSchedule), string(corev1.TaintEffectPreferNoSchedule), string(corev1.TaintEffectNoExecute)}
	for i, t := range taints {
		path := fmt.Sprintf("%s.taints[%d]", node, i)
		if errs := validation.IsQualifiedName(t.Key); len(errs) > 0 {
			return f.Errorf(path+".key", "%q: %s", t.Key, strings.Join(errs, "; "))
		}
		if errs := validation.IsValidLabelValue(t.Value); len(errs) > 0 {
			return f.Errorf(path+".value", "%q: %s", t.Value, strings.Join(errs, "; "))
		}
		if !slices.Contains(effects, t.Effect) {
			return f.Errorf(path+".effect", "%q: want %s", t.Effect, strings.Join(effects, ", "))
		}
		if slices.ContainsFunc(taints[:i], func(o Taint) bool { return o.Key == t.Key && o.Effect == t.Effect }) {
			return f.Errorf(path, "%s:%s is given twice", t.Key, t.Effect)
		}
	}
	return nil
}

func (f *File) checkNetwork() error {
	type named struct {
		path string
		p    netip.Prefix
	}
	var all []named
	for _, l := range []struct {
		field string
		cidrs []netip.Prefix
	}{{"network.podCIDRs", f.Network.PodCIDRs}, {"network.serviceCIDRs", f.Network.ServiceCIDRs}} {
		if f.Has(l.field) && len(l.cidrs) == 0 {
			return f.Errorf(l.field, "is empty; leave the field out for the default")
		}
		for i, p := range l.cidrs {
			path := fmt.Sprintf("%s[%d]", l.field, i)
			if p != p.Masked() {
				return f.Errorf(path, "%s has bits beyond its prefix; write %s", p, p.Masked())
			}
			for _, o := range all {
				if o.p.Overlaps(p) {
					return f.Errorf(path, "%s overlaps %s of %s", p, o.p, o.path)
				}
			}
			all = append(all, named{path, p})
		}
		if len(l.cidrs) > 2 || len(l.cidrs) == 2 && l.cidrs[0].Addr().Is4() == l.cidrs[1].Addr().Is4() {
			return f.Errorf(l.field, "want one, or one IPv4 and one IPv6")
		}
	}
	ips := f.Network.NodeIPs
	if f.Has("network.nodeIPs") && len(ips) == 0 {
		return f.Errorf("network.nodeIPs", "is empty; leave the field out for this host's address")
	}
	if len(ips) > 2 || len(ips) == 2 && ips[0].Is4() == ips[1].Is4() {
		return f.Errorf("network.nodeIPs", "want one, or one IPv4 and one IPv6")
	}
	for i, a := range ips {
		path := fmt.Sprintf("network.nodeIPs[%d]", i)
		if a.IsUnspecified() || a.IsLoopback() || a.IsMulticast() || a.Zone() != "" {
			return f.Errorf(path, "%s: want an address at which others reach this host", a)
		}
		for _, o := range all {
			if o.p.Contains(a) {
				return f.Errorf(path, "%s is in %s of %s", a, o.p, o.path)
			}
		}
	}
	return nil
}

func (f *File) checkPorts() error {
	for i := range f.Ports {
		p, path := &f.Ports[i], fmt.Sprintf("ports[%d]", i)
		switch {
		case p.HostPort == 0:
			return f.Errorf(path, "hostPort is missing")
		case p.NodePort == 0:
			return f.Errorf(path, "nodePort is missing")
		}
		switch p.Protocol {
		case "":
			p.Protocol = string(corev1.ProtocolTCP)
		case string(corev1.ProtocolTCP), string(corev1.ProtocolUDP):
		default:
			return f.Errorf(path+".protocol", "%q: want TCP or UDP", p.Protocol)
		}
		if p.Listen.Zone() != "" {
			return f.Errorf(path+".listenAddress", "%s has a zone", p.Listen)
		}
		for j, o := range f.Ports[:i] {
			everywhere := !o.Listen.IsValid() || o.Listen.IsUnspecified() || !p.Listen.IsValid() || p.Listen.IsUnspecified()
			if o.HostPort == p.HostPort && o.Protocol == p.Protocol && (everywhere || o.Listen == p.Listen) {
				return f.Errorf(path+".hostPort", "%d/%s is ports[%d]'s too", p.HostPort, p.Protocol, j)
			}
		}
	}
	return nil
}

func (f *File) checkRegistries() error {
	r := f.Registries
	if r == nil {
		return nil
	}
	host := func(path, h string) error {
		if h == "" || strings.ContainsAny(h, "/ ") {
			return f.Errorf(path, "%q: want a registry's host or host:port", h)
		}
		return nil
	}
	for i, h := range r.PlainHTTP {
		if err := host(fmt.Sprintf("registries.plainHTTP[%d]", i), h); err != nil {
			return err
		}
	}
	for _, h := range slices.Sorted(maps.Keys(r.Mirrors)) {
		path, urls := "registries.mirrors."+h, r.Mirrors[h]
		if err := host(path, h); err != nil {
			return err
		}
		for i, u := range urls {
			if !strings.HasPrefix(u, "http://") && !strings.HasPrefix(u, "https://") {
				return f.Errorf(fmt.Sprintf("%s[%d]", path, i), "%q: want http:// or https://", u)
			}
		}
	}
	for _, h := range slices.Sorted(maps.Keys(r.Auth)) {
		path, a := "registries.auth."+h, r.Auth[h]
		if err := host(path, h); err != nil {
			return err
		}
		if a.Username == "" || a.Password == "" {
			return f.Errorf(path, "username and password are both needed")
		}
	}
	return nil
}
