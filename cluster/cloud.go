package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/names"

	"github.com/skiff-k8s/skiff/apiserver/bootstrap"
	"github.com/skiff-k8s/skiff/apiserver/inproc"
	"github.com/skiff-k8s/skiff/cloud"
	"github.com/skiff-k8s/skiff/cloud/baremetal"
	"github.com/skiff-k8s/skiff/cluster/addons"
	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/network/announce"
	"github.com/skiff-k8s/skiff/network/routes"
)

// CloudControllerManager is the name of the component, its Lease and its user.
const CloudControllerManager = "cloud-controller-manager"

// CloudConfig is the cloud's controllers and how they reach the API.
type CloudConfig struct {
	cloud.Config
	// NewProvider makes the provider that they lead; called when they lead.
	NewProvider CloudProvider
	// NewInformers makes those that they read; called when they lead.
	NewInformers func() informers.SharedInformerFactory
	Election     Election
	// Serve is their secure port.
	Serve ServeConfig
}

// RunCloudControllers runs the cloud's controllers alone until ctx ends.
func RunCloudControllers(ctx context.Context, c CloudConfig) error {
	m, err := newCloudControllers(c)
	if err != nil {
		return err
	}
	return runServed(ctx, CloudControllerManager, m, c.Serve, c.Logger)
}

func newCloudControllers(c CloudConfig) (component.Component, error) {
	return c.Election.lead(c.Kubernetes, c.Logger, func(ctx context.Context) error {
		cfg := c.Config
		cfg.Informers = c.NewInformers()
		var err error
		if cfg.Provider, err = c.NewProvider(c.Logger); err != nil {
			return err
		}
		m, err := cloud.New(cfg)
		if err != nil {
			return err
		}
		return m.Run(ctx)
	})
}

// CloudAccountClients gives each of the cloud's controllers clients that act as its ServiceAccount.
func CloudAccountClients(base *rest.Config, issuer kubernetes.Interface, log *slog.Logger) func(account string) (cloud.Clients, error) {
	as := AccountClients(base, issuer, log)
	return func(account string) (cloud.Clients, error) {
		return cloud.Clients{Kubernetes: as(account).Kubernetes, REST: base}, nil
	}
}

// newOwnBalancers gives addresses of the cluster's pools to Services; nil where there are none. Of
// the cloud's controllers only that of Services has something to do: nodes register complete.
func newOwnBalancers(c *Config, s *apiServer, log *slog.Logger) (component.Component, error) {
	if len(c.LoadBalancerPools) == 0 {
		return nil, nil
	}
	as := func(account string) (cloud.Clients, error) {
		u := accountUser("kube-system", account)
		cfg, hc := inProcess(s.server, u)
		client, err := kubernetes.NewForConfigAndClient(cfg, hc)
		if err != nil {
			return cloud.Clients{}, fmt.Errorf("make client (%s): %w", account, err)
		}
		cfg.Transport = s.server.Transport(u)
		return cloud.Clients{Kubernetes: client, REST: cfg}, nil
	}
	base, err := clientsOf(s.server, systemUser("system:"+CloudControllerManager))
	if err != nil {
		return nil, err
	}
	return newCloudControllers(CloudConfig{
		Config: cloud.Config{
			Clients: cloud.Clients{Kubernetes: base.Kubernetes}, As: as, Logger: log,
			Disabled: []string{names.CloudNodeController, names.CloudNodeLifecycleController},
		},
		NewProvider: BareMetal(c.balancers()), Election: c.election(CloudControllerManager),
		NewInformers: func() informers.SharedInformerFactory {
			return inproc.NewInformerFactory(s.caches, base.Kubernetes, 0)
		},
	})
}

// policy is what is granted besides upstream's roles.
func (c *Config) policy() bootstrap.Policy {
	if len(c.LoadBalancerPools) == 0 {
		return addons.Policy()
	}
	return addons.WithCloudControllers(addons.Policy())
}

// balancers is the provider's configuration from the cluster's pools.
func (c *Config) balancers() baremetal.Config {
	return baremetal.Config{Pools: []baremetal.PoolConfig{{Name: "default", Addresses: c.LoadBalancerPools}}}
}

// noPools, given alone, says that there are no pools any more.
const noPools = "none"

// takePools makes pools that are given the cluster's.
func (c *Config) takePools(pools []string) error {
	if len(pools) == 0 {
		return nil
	}
	if len(pools) == 1 && pools[0] == noPools {
		c.LoadBalancerPools = nil
		return nil
	}
	if i, err := c.checkPools(pools); err != nil {
		return fmt.Errorf("--load-balancer-pool=%s: %w", pools[i], err)
	}
	c.LoadBalancerPools = pools
	return nil
}

// checkPools says which pool cannot be, and why.
func (c *Config) checkPools(pools []string) (int, error) {
	var spans []baremetal.Span
	for i, text := range pools {
		s, err := baremetal.ParseSpan(text)
		if err != nil {
			return i, err
		}
		for j, o := range spans {
			if o.Contains(s.First) || s.Contains(o.First) {
				return i, fmt.Errorf("it overlaps %s", pools[j])
			}
		}
		spans = append(spans, s)
		for _, x := range []struct {
			what  string
			cidrs []netip.Prefix
		}{{"pods", c.PodCIDRs}, {"cluster IPs", c.ServiceCIDRs}} {
			for _, p := range x.cidrs {
				if s.Contains(p.Addr()) || p.Contains(s.First) || p.Contains(s.Last) {
					return i, fmt.Errorf("it overlaps %s, the range of %s", p, x.what)
				}
			}
		}
		for _, ip := range c.NodeIPs {
			if s.Contains(ip) {
				return i, fmt.Errorf("it has %s in it, this node's own address; leave that out by FIRST-LAST", ip)
			}
		}
	}
	return 0, nil
}

// CloudProvider makes a provider; it is called when the controllers lead.
type CloudProvider func(log *slog.Logger) (cloudprovider.Interface, error)

// BareMetal is the provider of cloud/baremetal.
func BareMetal(cfg baremetal.Config) CloudProvider {
	return func(log *slog.Logger) (cloudprovider.Interface, error) {
		return baremetal.New(baremetal.Options{Config: cfg, OnLink: onLink, Logger: log.With("provider", baremetal.ProviderName)})
	}
}

// onLink tells whether a node says that it sees an address on a link.
func onLink(n *corev1.Node, a netip.Addr) bool {
	return routes.OnLink(n.Annotations[routes.Annotation], a)
}

// CloudProviders are those that --cloud-provider takes. Another of the interface is one line here,
// and one of its own that reads its configuration file.
func CloudProviders() map[string]func(configFile string) (CloudProvider, error) {
	return map[string]func(string) (CloudProvider, error){
		baremetal.ProviderName: func(file string) (CloudProvider, error) {
			if file == "" {
				return BareMetal(baremetal.Config{}), nil
			}
			cfg, err := baremetal.ReadConfig(file)
			return BareMetal(cfg), err
		},
	}
}

// newAnnouncer has a node answer for addresses of load balancers that are given to it.
func newAnnouncer(n *NodeConfig, shared informers.SharedInformerFactory, log *slog.Logger) (*announce.Announcer, error) {
	return announce.New(announce.Config{
		NodeName: n.NodeName, Annotation: baremetal.NodeAnnotation, Services: shared.Core().V1().Services().Informer(),
		Table: n.announceTable(), PodLink: n.Bridge, NodeIPs: n.NodeIPs, Logger: log,
	})
}

// announceTable is the name of the nftables tables of load balancers' addresses.
func (n *NodeConfig) announceTable() string { return n.Bridge + "-balancers" }

// FindCloudProvider reads the configuration file of a provider that is named.
func FindCloudProvider(name, configFile string) (CloudProvider, error) {
	all := CloudProviders()
	read, ok := all[name]
	if !ok {
		return nil, fmt.Errorf("there is no such provider; use %s", strings.Join(slices.Sorted(maps.Keys(all)), " or "))
	}
	return read(configFile)
}
