package main

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/informers"

	"github.com/skiff-k8s/skiff/cloud"
	"github.com/skiff-k8s/skiff/cloud/metrics"
	"github.com/skiff-k8s/skiff/cluster"
)

// cloudFlags are the flags of skiff cloud-controller-manager.
type cloudFlags struct {
	client   client
	election election
	port     delegated

	controllers            []string
	provider, file         string
	clusterName            string
	clusterCIDRs           []string
	ownAccounts, routes    bool
	allocate               bool
	routesEvery            time.Duration
	statusEvery, nodeEvery time.Duration
	services, nodes        int
	statuses, lifecycles   int
}

func cloudControllerManagerCommand() *cobra.Command {
	return component{
		name: cluster.CloudControllerManager, short: "Run the controllers of a cloud provider alone, with upstream's flags",
		accepted: slices.Concat(delegatedAccepted, versionedAccepted, []others{
			{"controllers act on changes; nothing is synced by the clock", "min-resync-period node-sync-period controller-start-interval"},
			{"providers without a cluster id run as well", "allow-untagged-cloud?"},
			{"node-ipam-controller allocates, which kube-controller-manager runs", "cidr-allocator-type"},
		}),
		refused: slices.Concat(servingRefused, []others{
			{"leases do not migrate", "enable-leader-migration? leader-migration-config"},
			{"volumes are provisioned by their drivers", "external-cloud-volume-plugin"},
			{"there are no webhooks of providers", `webhooks webhook-bind-address webhook-secure-port webhook-disable-http2-serving? webhook-cert-dir
				webhook-tls-cert-file webhook-tls-private-key-file webhook-tls-cipher-suites webhook-tls-curve-preferences webhook-tls-min-version`},
		}),
		bind: func(flags *pflag.FlagSet) func(*cobra.Command, *slog.Logger) error {
			f := cloudFlags{}
			f.bind(flags)
			return func(cmd *cobra.Command, log *slog.Logger) error {
				c, err := f.config(log)
				if err != nil {
					return err
				}
				return cluster.RunCloudControllers(cmd.Context(), c)
			}
		},
	}.command()
}

func (f *cloudFlags) bind(flags *pflag.FlagSet) {
	f.client.bind(flags, 20, 30)
	f.client.bindMaster(flags)
	f.election.bind(flags, cluster.CloudControllerManager)
	f.port.bind(flags, 10258)
	flags.StringSliceVar(&f.controllers, "controllers", []string{"*"}, "controllers to run: *, NAME, -NAME")
	flags.StringVar(&f.provider, "cloud-provider", "", "the provider: baremetal")
	flags.StringVar(&f.file, "cloud-config", "", "its configuration file (docs/loadbalancers.md)")
	flags.StringVar(&f.clusterName, "cluster-name", "kubernetes", "what the provider is told of the cluster")
	flags.StringSliceVar(&f.clusterCIDRs, "cluster-cidr", nil, "CIDR of pods, one a family")
	flags.BoolVar(&f.allocate, "allocate-node-cidrs", false, "nodes get ranges of the cluster CIDR, by node-ipam-controller")
	flags.BoolVar(&f.routes, "configure-cloud-routes", true, "make routes to pod CIDRs where the provider has routes")
	flags.DurationVar(&f.routesEvery, "route-reconciliation-period", 10*time.Second, "how often all routes are looked at")
	flags.BoolVar(&f.ownAccounts, "use-service-account-credentials", false, "each controller acts as its own ServiceAccount")
	flags.DurationVar(&f.statusEvery, "node-status-update-frequency", 5*time.Minute, "how often the provider is asked for nodes' addresses")
	flags.DurationVar(&f.nodeEvery, "node-monitor-period", 5*time.Second, "how often nodes are looked at that are silent")
	flags.IntVar(&f.services, "concurrent-service-syncs", 1, "load balancers that are looked at at a time")
	flags.IntVar(&f.nodes, "concurrent-node-syncs", 1, "nodes that are initialized at a time")
	flags.IntVar(&f.statuses, "concurrent-node-status-updates", 1, "nodes whose addresses are asked for at a time")
	flags.IntVar(&f.lifecycles, "concurrent-node-lifecycle-syncs", 1, "silent nodes that are looked at at a time")
}

func (f *cloudFlags) config(log *slog.Logger) (cluster.CloudConfig, error) {
	none := func(err error) (cluster.CloudConfig, error) { return cluster.CloudConfig{}, err }
	c := cluster.CloudConfig{Config: cloud.Config{
		ClusterName: f.clusterName, Routes: f.routes, RoutesEvery: f.routesEvery, NodeStatusEvery: f.statusEvery, NodeMonitorEvery: f.nodeEvery,
		ServiceWorkers: f.services, NodeWorkers: f.nodes, NodeStatusWorkers: f.statuses, NodeLifecycleWorkers: f.lifecycles,
		Metrics: metrics.New(), Logger: log,
	}}
	for _, n := range []struct {
		flag  string
		value int
	}{{"concurrent-service-syncs", f.services}, {"concurrent-node-syncs", f.nodes}, {"concurrent-node-status-updates", f.statuses}, {"concurrent-node-lifecycle-syncs", f.lifecycles}} {
		if n.value < 1 {
			return none(fmt.Errorf("--%s=%d: must be 1 or more", n.flag, n.value))
		}
	}
	if f.provider == "" {
		return none(fmt.Errorf("--cloud-provider is required"))
	}
	var err error
	if c.NewProvider, err = cluster.FindCloudProvider(f.provider, f.file); err != nil {
		return none(fmt.Errorf("--cloud-provider=%s: %w", f.provider, err))
	}
	if c.Disabled, err = disabledCloudControllers(f.controllers); err != nil {
		return none(err)
	}
	if c.ClusterCIDRs, err = prefixes("cluster-cidr", f.clusterCIDRs); err != nil {
		return none(err)
	}
	if err := onePerFamily("cluster-cidr", c.ClusterCIDRs); err != nil {
		return none(err)
	}
	base, err := f.client.config()
	if err != nil {
		return none(err)
	}
	clients, err := cluster.RemoteClients(base)
	if err != nil {
		return none(err)
	}
	c.Clients = cloud.Clients{Kubernetes: clients.Kubernetes, REST: base}
	if f.ownAccounts {
		c.As = cluster.CloudAccountClients(base, clients.Kubernetes, log)
	}
	c.NewInformers = func() informers.SharedInformerFactory {
		return informers.NewSharedInformerFactory(clients.Kubernetes, 0)
	}
	if c.Election, err = f.election.config(); err != nil {
		return none(err)
	}
	c.Serve, err = f.port.config(cluster.CloudControllerManager)
	c.Serve.Metrics = c.Metrics.Write
	return c, err
}

// disabledCloudControllers reads --controllers as upstream does.
func disabledCloudControllers(list []string) ([]string, error) {
	star := slices.Contains(list, "*")
	on, off := map[string]bool{}, map[string]bool{}
	for _, item := range list {
		name, not := item, false
		if item == "*" {
			continue
		}
		if item[:min(1, len(item))] == "-" {
			name, not = item[1:], true
		}
		i := slices.IndexFunc(cloud.Table(), func(e cloud.Entry) bool { return e.Name == name || e.Former == name })
		if i < 0 {
			return nil, fmt.Errorf("--controllers=%s: there is no such controller", item)
		}
		name = cloud.Table()[i].Name
		on[name], off[name] = !not, not
	}
	var disabled []string
	for _, e := range cloud.Table() {
		if off[e.Name] || !star && !on[e.Name] {
			disabled = append(disabled, e.Name)
		}
	}
	return disabled, nil
}
