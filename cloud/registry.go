package cloud

import (
	"k8s.io/cloud-provider/names"

	"github.com/skiff-k8s/skiff/cloud/cloudnode"
	"github.com/skiff-k8s/skiff/cloud/nodelifecycle"
	"github.com/skiff-k8s/skiff/cloud/noderoute"
	"github.com/skiff-k8s/skiff/cloud/servicelb"
	"github.com/skiff-k8s/skiff/controllers/controller"
)

// Entry is one controller of the table.
type Entry struct {
	// Name as in upstream's --controllers, and Former the one it had before Kubernetes 1.28.
	Name, Former string
	// Account is the ServiceAccount in kube-system that it acts as, Source whom its events name.
	Account, Source string
	// skip says why the configuration does not need it; "" for needed.
	skip func(c *Config) string
	make func(c *Config, base controller.Config) (controller.Controller, error)
}

// Table returns all controllers.
func Table() []Entry {
	return []Entry{
		{Name: names.CloudNodeController, Former: "cloud-node", Account: "node-controller", Source: "cloud-node-controller",
			skip: lacksInstances,
			make: func(c *Config, base controller.Config) (controller.Controller, error) {
				return cloudnode.New(cloudnode.Config{Config: base, Provider: c.Provider, StatusEvery: c.NodeStatusEvery,
					Workers: c.NodeWorkers, StatusWorkers: c.NodeStatusWorkers, Metrics: c.Metrics})
			}},
		{Name: names.CloudNodeLifecycleController, Former: "cloud-node-lifecycle", Account: "node-controller", Source: "cloud-node-lifecycle-controller",
			skip: lacksInstances,
			make: func(c *Config, base controller.Config) (controller.Controller, error) {
				return nodelifecycle.New(nodelifecycle.Config{Config: base, Provider: c.Provider, Every: c.NodeMonitorEvery,
					Workers: c.NodeLifecycleWorkers, Metrics: c.Metrics})
			}},
		{Name: names.ServiceLBController, Former: "service", Account: "service-controller", Source: "service-controller",
			skip: func(c *Config) string {
				if _, ok := c.Provider.LoadBalancer(); !ok {
					return "the provider has no load balancers"
				}
				return ""
			},
			make: func(c *Config, base controller.Config) (controller.Controller, error) {
				return servicelb.New(servicelb.Config{Config: base, Provider: c.Provider, ClusterName: c.ClusterName,
					Workers: c.ServiceWorkers, Metrics: c.Metrics})
			}},
		{Name: names.NodeRouteController, Former: "route", Account: "route-controller", Source: "route_controller",
			skip: func(c *Config) string {
				if !c.Routes {
					return "routes are not to be configured"
				}
				if _, ok := c.Provider.Routes(); !ok {
					return "the provider has no routes"
				}
				return ""
			},
			make: func(c *Config, base controller.Config) (controller.Controller, error) {
				return noderoute.New(noderoute.Config{Config: base, Provider: c.Provider, ClusterName: c.ClusterName,
					ClusterCIDRs: c.ClusterCIDRs, Every: c.RoutesEvery, Metrics: c.Metrics})
			}},
	}
}

func lacksInstances(c *Config) string {
	if _, ok := c.Provider.InstancesV2(); ok {
		return ""
	}
	if _, ok := c.Provider.Instances(); ok {
		return ""
	}
	return "the provider has no instances"
}
