package baremetal

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// Config is what the provider is told, by flags or by a file.
type Config struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Region of machines that name none.
	Region string `json:"region"`
	// Pools are what load balancers' addresses are taken from, in this order.
	Pools []PoolConfig `json:"pools"`
	// Machines are those there are. If there are any here, a node that is silent and not among them
	// is deleted; if none, every node's machine exists.
	Machines []Machine `json:"machines"`
}

// PoolConfig is a pool of addresses.
type PoolConfig struct {
	Name string `json:"name"`
	// Addresses are CIDRs, ranges FIRST-LAST and single addresses.
	Addresses []string `json:"addresses"`
	// OnRequest keeps the pool for Services that ask for it or for one of its addresses.
	OnRequest bool `json:"onRequest"`
}

// Machine is one machine.
type Machine struct {
	// Name of its node.
	Name   string `json:"name"`
	Type   string `json:"type"`
	Zone   string `json:"zone"`
	Region string `json:"region"`
	// Addresses are the node's instead of those that its kubelet says.
	Addresses []string `json:"addresses"`
	// Labels are given to its node when it is initialized.
	Labels map[string]string `json:"labels"`
	// Shutdown taints the node while its kubelet is silent.
	Shutdown bool `json:"shutdown"`
}

const (
	apiVersion = "skiff.dev/v1alpha1"
	kind       = "BareMetal"
)

// ReadConfig reads a file, strictly.
func ReadConfig(path string) (Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read the provider's configuration: %w", err)
	}
	c, err := ParseConfig(text)
	if err != nil {
		return Config{}, fmt.Errorf("%s: %w", path, err)
	}
	return c, nil
}

// ParseConfig reads a configuration; an error is one line that names the field.
func ParseConfig(text []byte) (Config, error) {
	var c Config
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return Config{}, errors.New(strings.ReplaceAll(strings.TrimPrefix(err.Error(), "error unmarshaling JSON: while decoding JSON: "), "\n", " "))
	}
	if c.APIVersion != apiVersion {
		return Config{}, fmt.Errorf("apiVersion: want %s, not %q", apiVersion, c.APIVersion)
	}
	if c.Kind != kind {
		return Config{}, fmt.Errorf("kind: want %s, not %q", kind, c.Kind)
	}
	return c, c.check()
}

func (c *Config) check() error {
	if _, err := c.pools(); err != nil {
		return err
	}
	if err := labelValue("region", c.Region); err != nil {
		return err
	}
	for i, m := range c.Machines {
		at := fmt.Sprintf("machines[%d]", i)
		if errs := validation.IsDNS1123Subdomain(m.Name); len(errs) > 0 {
			return fmt.Errorf("%s.name: %q: %s", at, m.Name, strings.Join(errs, "; "))
		}
		if slices.ContainsFunc(c.Machines[:i], func(o Machine) bool { return o.Name == m.Name }) {
			return fmt.Errorf("%s.name: %s is another machine's too", at, m.Name)
		}
		for _, l := range []struct{ field, value string }{{"type", m.Type}, {"zone", m.Zone}, {"region", m.Region}} {
			if err := labelValue(at+"."+l.field, l.value); err != nil {
				return err
			}
		}
		for j, a := range m.Addresses {
			if _, err := netip.ParseAddr(a); err != nil {
				return fmt.Errorf("%s.addresses[%d]: %q is no IP address", at, j, a)
			}
		}
		for k, v := range m.Labels {
			if errs := validation.IsQualifiedName(k); len(errs) > 0 {
				return fmt.Errorf("%s.labels: %q: %s", at, k, strings.Join(errs, "; "))
			}
			if err := labelValue(at+".labels."+k, v); err != nil {
				return err
			}
		}
	}
	return nil
}

func labelValue(field, value string) error {
	if errs := validation.IsValidLabelValue(value); len(errs) > 0 {
		return fmt.Errorf("%s: %q: %s", field, value, strings.Join(errs, "; "))
	}
	return nil
}

// pools reads the pools' addresses.
func (c *Config) pools() ([]pool, error) {
	var out []pool
	for i, p := range c.Pools {
		at := fmt.Sprintf("pools[%d]", i)
		if errs := validation.IsDNS1123Label(p.Name); len(errs) > 0 {
			return nil, fmt.Errorf("%s.name: %q: %s", at, p.Name, strings.Join(errs, "; "))
		}
		if slices.ContainsFunc(c.Pools[:i], func(o PoolConfig) bool { return o.Name == p.Name }) {
			return nil, fmt.Errorf("%s.name: %s is another pool's too", at, p.Name)
		}
		if len(p.Addresses) == 0 {
			return nil, fmt.Errorf("%s.addresses: is empty; want a CIDR or FIRST-LAST", at)
		}
		made := pool{name: p.Name, onRequest: p.OnRequest}
		for j, text := range p.Addresses {
			field := fmt.Sprintf("%s.addresses[%d]", at, j)
			s, err := ParseSpan(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", field, err)
			}
			for _, o := range append(slices.Clone(out), made) {
				if other, ok := o.overlaps(s); ok {
					return nil, fmt.Errorf("%s: %s overlaps %s of pool %s", field, text, other, o.name)
				}
			}
			made.spans = append(made.spans, s)
		}
		out = append(out, made)
	}
	return out, nil
}
