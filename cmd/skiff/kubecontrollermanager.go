package main

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/informers"

	"github.com/skiff-k8s/skiff/cluster"
	"github.com/skiff-k8s/skiff/controllers"
	"github.com/skiff-k8s/skiff/controllers/csr"
	"github.com/skiff-k8s/skiff/controllers/podautoscaler"
)

// controllerFlags are the flags of skiff kube-controller-manager.
type controllerFlags struct {
	client   client
	election election
	port     delegated

	controllers      []string
	ownAccounts      bool
	allocate         bool
	clusterCIDRs     []string
	serviceCIDRs     []string
	mask, maskV4     int
	maskV6           int
	tokenKey, rootCA string
	signing          map[string]*pair // by the part of the flag that names the signer
	signingDuration  time.Duration
	grace            time.Duration
	autoscaling      podautoscaler.Settings
}

// pair are the files of a certificate and its key.
type pair struct{ cert, key string }

// signers are the parts of the flags --cluster-signing-…-cert-file that name a signer.
var signers = []string{"", "kubelet-serving-", "kubelet-client-", "kube-apiserver-client-", "legacy-unknown-"}

func kubeControllerManagerCommand() *cobra.Command {
	return component{
		name: "kube-controller-manager", short: "Run the controllers alone, with upstream's flags",
		accepted: slices.Concat(delegatedAccepted, versionedAccepted, []others{
			{"each controller has one worker or as many as it needs", `concurrent-cron-job-syncs concurrent-daemonset-syncs concurrent-deployment-syncs
				concurrent-device-taint-eviction-syncs concurrent-disruption-syncs concurrent-endpoint-syncs concurrent-ephemeralvolume-syncs concurrent-gc-syncs
				concurrent-horizontal-pod-autoscaler-syncs concurrent-job-syncs concurrent-namespace-syncs concurrent-rc-syncs concurrent-replicaset-syncs
				concurrent-resource-quota-syncs concurrent-resourceclaim-syncs concurrent-service-endpoint-syncs concurrent-serviceaccount-token-syncs
				concurrent-statefulset-syncs concurrent-ttl-after-finished-syncs concurrent-validating-admission-policy-status-syncs mirroring-concurrent-service-endpoint-syncs`},
			{"controllers act on changes; nothing is synced by the clock", `attach-detach-reconcile-sync-period disable-attach-detach-reconcile-sync? min-resync-period namespace-sync-period
				pvclaimbinder-sync-period resource-quota-sync-period route-reconciliation-period endpoint-updates-batch-period endpointslice-updates-batch-period
				mirroring-endpointslice-updates-batch-period node-monitor-period controller-start-interval controller-shutdown-timeout`},
			{"evictions follow the taints of nodes at upstream's default rates", "node-eviction-rate secondary-node-eviction-rate large-cluster-size-threshold unhealthy-zone-threshold node-startup-grace-period"},
			{"slices hold 100 endpoints and the mirror takes 1000 a subset, upstream's defaults", "max-endpoints-per-slice mirroring-max-endpoints-per-subset"},
			{"finished pods are collected beyond upstream's default of 12500", "terminated-pod-gc-threshold"},
			{"volumes are not recycled", `pv-recycler-increment-timeout-nfs pv-recycler-minimum-timeout-hostpath pv-recycler-minimum-timeout-nfs
				pv-recycler-pod-template-filepath-hostpath pv-recycler-pod-template-filepath-nfs pv-recycler-timeout-increment-hostpath`},
			{"volumes are attached by their drivers", "disable-force-detach-on-timeout? flex-volume-plugin-dir enable-dynamic-provisioning?"},
			{"garbage is always collected", "enable-garbage-collector?"},
			{"tokens that Secrets hold are not cleaned up", "legacy-service-account-token-clean-up-period"},
			{"no cloud names its resources by the cluster", "cluster-name configure-cloud-routes?"},
		}),
		refused: slices.Concat(servingRefused, []others{
			{"there is no cloud provider", "cloud-provider cloud-config external-cloud-volume-plugin"},
			{"nodes get ranges of one cluster CIDR a family", "cidr-allocator-type"},
			{"leases do not migrate", "enable-leader-migration? leader-migration-config"},
			{"volumes are not provisioned on the host", "enable-hostpath-provisioner?"},
		}),
		bind: func(flags *pflag.FlagSet) func(*cobra.Command, *slog.Logger) error {
			f := controllerFlags{signing: map[string]*pair{}}
			f.bind(flags)
			return func(cmd *cobra.Command, log *slog.Logger) error {
				c, err := f.config(log)
				if err != nil {
					return err
				}
				return cluster.RunControllers(cmd.Context(), c)
			}
		},
	}.command()
}

func (f *controllerFlags) bind(flags *pflag.FlagSet) {
	f.client.bind(flags, 20, 30)
	f.client.bindMaster(flags)
	f.election.bind(flags, "kube-controller-manager")
	f.port.bind(flags, 10257)
	flags.StringSliceVar(&f.controllers, "controllers", []string{"*"}, "controllers to run: *, NAME, -NAME")
	flags.BoolVar(&f.ownAccounts, "use-service-account-credentials", false, "each controller acts as its own ServiceAccount")
	flags.BoolVar(&f.allocate, "allocate-node-cidrs", false, "nodes get ranges of the cluster CIDR")
	flags.StringSliceVar(&f.clusterCIDRs, "cluster-cidr", nil, "CIDR of pods, one a family")
	flags.StringSliceVar(&f.serviceCIDRs, "service-cluster-ip-range", nil, "CIDR of cluster IPs, which no node gets a part of")
	flags.IntVar(&f.mask, "node-cidr-mask-size", 0, "prefix length of a node's range; 0: 24 for IPv4, 64 for IPv6")
	flags.IntVar(&f.maskV4, "node-cidr-mask-size-ipv4", 0, "that of IPv4 where there are both")
	flags.IntVar(&f.maskV6, "node-cidr-mask-size-ipv6", 0, "that of IPv6 where there are both")
	flags.StringVar(&f.tokenKey, "service-account-private-key-file", "", "key that signs tokens for Secrets")
	flags.StringVar(&f.rootCA, "root-ca-file", "", "CA that is published to pods")
	for _, s := range signers {
		p := &pair{}
		f.signing[s] = p
		flags.StringVar(&p.cert, "cluster-signing-"+s+"cert-file", "", "CA that signs certificate requests")
		flags.StringVar(&p.key, "cluster-signing-"+s+"key-file", "", "its key")
	}
	flags.DurationVar(&f.signingDuration, "cluster-signing-duration", 8760*time.Hour, "how long certificates are good")
	flags.DurationVar(&f.grace, "node-monitor-grace-period", 50*time.Second, "how long a kubelet may be silent")
	bindAutoscaling(flags, &f.autoscaling)
}

func bindAutoscaling(flags *pflag.FlagSet, s *podautoscaler.Settings) {
	const prefix = "horizontal-pod-autoscaler-"
	*s = podautoscaler.DefaultSettings()
	flags.DurationVar(&s.SyncPeriod, prefix+"sync-period", s.SyncPeriod, "how often each autoscaler is looked at")
	flags.DurationVar(&s.DownscaleStabilization, prefix+"downscale-stabilization", s.DownscaleStabilization, "how long a recommendation keeps the target from shrinking below it")
	flags.Float64Var(&s.Tolerance, prefix+"tolerance", s.Tolerance, "how far from 1 the ratio of usage and target must be for a change")
	flags.DurationVar(&s.CPUInitialization, prefix+"cpu-initialization-period", s.CPUInitialization, "how long after a pod's start samples of its CPU may be left out")
	flags.DurationVar(&s.InitialReadiness, prefix+"initial-readiness-delay", s.InitialReadiness, "how long after a pod's start a change of its readiness counts as the first")
}

func (f *controllerFlags) config(log *slog.Logger) (cluster.ControllersConfig, error) {
	none := func(err error) (cluster.ControllersConfig, error) { return cluster.ControllersConfig{}, err }
	c := cluster.ControllersConfig{Config: controllers.Config{NodeGrace: f.grace, SigningDuration: f.signingDuration, Autoscaling: f.autoscaling, Logger: log}}
	err := f.autoscaling.Validate()
	if err != nil {
		return none(err)
	}
	if c.Disabled, err = disabledControllers(f.controllers); err != nil {
		return none(err)
	}
	if f.tokenKey != "" { // such tokens are not issued, but a wrong path is told
		if _, err := privateKey("service-account-private-key-file", f.tokenKey); err != nil {
			return none(err)
		}
	}
	if f.rootCA != "" {
		if c.RootCA, _, err = authorities("root-ca-file", f.rootCA); err != nil {
			return none(err)
		}
	}
	if err := f.ranges(&c.Config); err != nil {
		return none(err)
	}
	if err := f.signingCAs(&c.Config); err != nil {
		return none(err)
	}
	base, err := f.client.config()
	if err != nil {
		return none(err)
	}
	if c.Clients, err = cluster.RemoteClients(base); err != nil {
		return none(err)
	}
	c.Discovery = c.Kubernetes.Discovery()
	if f.ownAccounts {
		c.As = cluster.AccountClients(base, c.Kubernetes, log)
	}
	c.NewInformers = func() informers.SharedInformerFactory { return informers.NewSharedInformerFactory(c.Kubernetes, 0) }
	if c.Election, err = f.election.config(); err != nil {
		return none(err)
	}
	c.Serve, err = f.port.config("kube-controller-manager")
	return c, err
}

func (f *controllerFlags) ranges(c *controllers.Config) error {
	cidrs, err := prefixes("cluster-cidr", f.clusterCIDRs)
	if err != nil {
		return err
	}
	if _, err := prefixes("service-cluster-ip-range", f.serviceCIDRs); err != nil {
		return err
	}
	if !f.allocate {
		return nil
	}
	if len(cidrs) == 0 {
		return fmt.Errorf("--allocate-node-cidrs needs --cluster-cidr")
	}
	if err := onePerFamily("cluster-cidr", cidrs); err != nil {
		return err
	}
	c.ClusterCIDRs = cidrs
	for _, p := range cidrs {
		mask := 24
		own := f.maskV4
		if p.Addr().Is6() {
			mask, own = 64, f.maskV6
		}
		if own == 0 && len(cidrs) == 1 {
			own = f.mask
		}
		c.NodeMasks = append(c.NodeMasks, orElse(own, mask))
	}
	return nil
}

// signingCAs loads what signs; the flags of one signer count for more than those of all.
func (f *controllerFlags) signingCAs(c *controllers.Config) error {
	load := func(signer string) (csr.CA, error) {
		p := f.signing[signer]
		if p.cert == "" && p.key == "" {
			p, signer = f.signing[""], ""
		}
		loaded, err := certificatePair("cluster-signing-"+signer+"cert-file", p.cert, "cluster-signing-"+signer+"key-file", p.key)
		if err != nil || loaded == nil {
			return csr.CA{}, err
		}
		key, err := privateKey("cluster-signing-"+signer+"key-file", p.key)
		return csr.CA{Certificate: loaded.Leaf, Key: key}, err
	}
	var err error
	if c.ServingCA, err = load("kubelet-serving-"); err != nil {
		return err
	}
	if c.ClientCA, err = load("kubelet-client-"); err != nil {
		return err
	}
	for _, signer := range []string{"kube-apiserver-client-", "legacy-unknown-"} {
		if p := f.signing[signer]; *p != (pair{}) && *p != *f.signing["kubelet-client-"] && *p != *f.signing[""] {
			return fmt.Errorf("--cluster-signing-%scert-file: one CA signs all client certificates; use --cluster-signing-cert-file", signer)
		}
	}
	return nil
}

// formerNames are controllers' names before Kubernetes 1.28, which --controllers takes too.
var formerNames = map[string]string{
	"attachdetach": "persistentvolume-attach-detach-controller", "bootstrapsigner": "bootstrap-signer-controller",
	"clusterrole-aggregation": "clusterrole-aggregation-controller", "cronjob": "cronjob-controller",
	"csrapproving": "certificatesigningrequest-approving-controller", "csrcleaner": "certificatesigningrequest-cleaner-controller",
	"csrsigning": "certificatesigningrequest-signing-controller", "daemonset": "daemonset-controller", "deployment": "deployment-controller",
	"disruption": "disruption-controller", "endpoint": "endpoints-controller", "endpointslice": "endpointslice-controller",
	"endpointslicemirroring": "endpointslice-mirroring-controller", "ephemeral-volume": "ephemeral-volume-controller",
	"garbagecollector": "garbage-collector-controller", "horizontalpodautoscaling": "horizontal-pod-autoscaler-controller",
	"job": "job-controller", "namespace": "namespace-controller", "nodeipam": "node-ipam-controller", "nodelifecycle": "node-lifecycle-controller",
	"persistentvolume-binder": "persistentvolume-binder-controller", "persistentvolume-expander": "persistentvolume-expander-controller",
	"podgc": "pod-garbage-collector-controller", "pv-protection": "persistentvolume-protection-controller",
	"pvc-protection": "persistentvolumeclaim-protection-controller", "replicaset": "replicaset-controller",
	"replicationcontroller": "replicationcontroller-controller", "resourcequota": "resourcequota-controller",
	"root-ca-cert-publisher": "root-ca-certificate-publisher-controller", "serviceaccount": "serviceaccount-controller",
	"serviceaccount-token": "serviceaccount-token-controller", "statefulset": "statefulset-controller", "tokencleaner": "token-cleaner-controller",
	"ttl": "ttl-controller", "ttl-after-finished": "ttl-after-finished-controller",
}

// elsewhere are upstream's controllers that have no counterpart here.
var elsewhere = strings.Fields(`persistentvolume-attach-detach-controller persistentvolume-expander-controller
	serviceaccount-token-controller legacy-serviceaccount-token-cleaner-controller
	resourceclaim-controller validatingadmissionpolicy-status-controller service-lb-controller node-route-controller
	cloud-node-lifecycle-controller storageversion-garbage-collector-controller storage-version-migrator-controller
	selinux-warning-controller kube-apiserver-serving-clustertrustbundle-publisher-controller
	podcertificaterequest-cleaner-controller device-taint-eviction-controller`)

// disabledControllers reads --controllers as upstream does: "*" are those that run by
// default, "NAME" runs and "-NAME" does not.
func disabledControllers(list []string) ([]string, error) {
	table := controllers.Table()
	known := func(name string) bool {
		return slices.ContainsFunc(table, func(e controllers.Entry) bool { return e.Name == name })
	}
	star := slices.Contains(list, "*")
	on, off := map[string]bool{}, map[string]bool{}
	for _, item := range list {
		name, not := strings.CutPrefix(item, "-")
		if name == "*" {
			continue
		}
		name = orElse(formerNames[name], name)
		switch {
		case known(name):
		case slices.Contains(elsewhere, name) && not:
			continue
		case slices.Contains(elsewhere, name):
			return nil, fmt.Errorf("--controllers=%s: there is no such controller in skiff", item)
		default:
			return nil, fmt.Errorf("--controllers=%s: there is no such controller", item)
		}
		on[name], off[name] = !not, not
	}
	var disabled []string
	for _, e := range table {
		if off[e.Name] || !star && !on[e.Name] {
			disabled = append(disabled, e.Name)
		}
	}
	return disabled, nil
}
