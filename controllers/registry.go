// Package controllers is the table of all controllers and the manager that runs them.
//
// Each controller is a folder of its own; what they share is in controller/, ownership/
// and expectations/. Must not: hold any controller's logic.
package controllers

import (
	"github.com/skiff-k8s/skiff/controllers/bootstraptokens"
	"github.com/skiff-k8s/skiff/controllers/clusterroleaggregation"
	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/cronjob"
	"github.com/skiff-k8s/skiff/controllers/csr"
	"github.com/skiff-k8s/skiff/controllers/daemonset"
	"github.com/skiff-k8s/skiff/controllers/deployment"
	"github.com/skiff-k8s/skiff/controllers/disruption"
	"github.com/skiff-k8s/skiff/controllers/endpoints"
	"github.com/skiff-k8s/skiff/controllers/endpointslice"
	"github.com/skiff-k8s/skiff/controllers/endpointslicemirroring"
	"github.com/skiff-k8s/skiff/controllers/ephemeralvolume"
	"github.com/skiff-k8s/skiff/controllers/garbagecollector"
	"github.com/skiff-k8s/skiff/controllers/job"
	"github.com/skiff-k8s/skiff/controllers/namespace"
	"github.com/skiff-k8s/skiff/controllers/nodeipam"
	"github.com/skiff-k8s/skiff/controllers/nodelifecycle"
	"github.com/skiff-k8s/skiff/controllers/nodettl"
	"github.com/skiff-k8s/skiff/controllers/podautoscaler"
	"github.com/skiff-k8s/skiff/controllers/podgc"
	"github.com/skiff-k8s/skiff/controllers/replicaset"
	"github.com/skiff-k8s/skiff/controllers/resourcequota"
	"github.com/skiff-k8s/skiff/controllers/rootca"
	"github.com/skiff-k8s/skiff/controllers/serviceaccount"
	"github.com/skiff-k8s/skiff/controllers/servicecidr"
	"github.com/skiff-k8s/skiff/controllers/statefulset"
	"github.com/skiff-k8s/skiff/controllers/storageprotection"
	"github.com/skiff-k8s/skiff/controllers/tainteviction"
	"github.com/skiff-k8s/skiff/controllers/ttlafterfinished"
	"github.com/skiff-k8s/skiff/controllers/volumebinder"
)

// Entry is one controller of the table.
type Entry struct {
	// Name as in upstream's --controllers.
	Name string
	// Account is the ServiceAccount in kube-system that it acts as, for which the
	// standard roles have a system:controller:<account>.
	Account string
	// skip says why the configuration does not need it; "" for needed.
	skip func(c *Config) string
	make func(c *Config, base controller.Config) (controller.Controller, error)
}

// plain is a controller that needs no more than the base.
func plain[C controller.Controller](f func(controller.Config) (C, error)) func(*Config, controller.Config) (controller.Controller, error) {
	return func(_ *Config, base controller.Config) (controller.Controller, error) { return f(base) }
}

// Table returns all controllers; those that others wait for come first.
func Table() []Entry {
	return []Entry{
		{Name: "node-ipam-controller", Account: "node-controller",
			skip: func(c *Config) string {
				if len(c.ClusterCIDRs) == 0 {
					return "no cluster CIDR is configured"
				}
				return ""
			},
			make: func(c *Config, base controller.Config) (controller.Controller, error) {
				return nodeipam.New(nodeipam.Config{Config: base, ClusterCIDRs: c.ClusterCIDRs, NodeMasks: c.NodeMasks})
			}},
		{Name: "serviceaccount-controller", Account: "service-account-controller", make: plain(serviceaccount.New)},
		{Name: "root-ca-certificate-publisher-controller", Account: "root-ca-cert-publisher",
			skip: func(c *Config) string {
				if len(c.RootCA) == 0 {
					return "no root CA is configured"
				}
				return ""
			},
			make: func(c *Config, base controller.Config) (controller.Controller, error) {
				return rootca.New(rootca.Config{Config: base, RootCA: c.RootCA})
			}},
		{Name: "deployment-controller", Account: "deployment-controller", make: plain(deployment.New)},
		{Name: "replicaset-controller", Account: "replicaset-controller", make: plain(replicaset.New)},
		{Name: "replicationcontroller-controller", Account: "replication-controller", make: plain(replicaset.NewReplicationController)},
		{Name: "endpointslice-controller", Account: "endpointslice-controller", make: plain(endpointslice.New)},
		{Name: "endpoints-controller", Account: "endpoint-controller", make: plain(endpoints.New)},
		{Name: "namespace-controller", Account: "namespace-controller", make: plain(namespace.New)},
		{Name: "job-controller", Account: "job-controller", make: plain(job.New)},
		{Name: "daemonset-controller", Account: "daemon-set-controller", make: plain(daemonset.New)},
		{Name: "statefulset-controller", Account: "statefulset-controller", make: plain(statefulset.New)},
		{Name: "cronjob-controller", Account: "cronjob-controller", make: plain(cronjob.New)},
		{Name: "horizontal-pod-autoscaler-controller", Account: "horizontal-pod-autoscaler",
			make: func(c *Config, base controller.Config) (controller.Controller, error) {
				return podautoscaler.New(podautoscaler.Config{Config: base, Settings: c.Autoscaling})
			}},
		{Name: "disruption-controller", Account: "disruption-controller", make: plain(disruption.New)},
		{Name: "endpointslice-mirroring-controller", Account: "endpointslicemirroring-controller", make: plain(endpointslicemirroring.New)},
		{Name: "persistentvolume-binder-controller", Account: "persistent-volume-binder", make: plain(volumebinder.New)},
		{Name: "persistentvolumeclaim-protection-controller", Account: "pvc-protection-controller", make: plain(storageprotection.NewClaims)},
		{Name: "persistentvolume-protection-controller", Account: "pv-protection-controller", make: plain(storageprotection.NewVolumes)},
		{Name: "volumeattributesclass-protection-controller", Account: "volumeattributesclass-protection-controller", make: plain(storageprotection.NewAttributesClasses)},
		{Name: "ephemeral-volume-controller", Account: "ephemeral-volume-controller", make: plain(ephemeralvolume.New)},
		{Name: "service-cidr-controller", Account: "service-cidrs-controller", make: plain(servicecidr.New)},
		{Name: "token-cleaner-controller", Account: "token-cleaner", make: plain(bootstraptokens.NewCleaner)},
		{Name: "bootstrap-signer-controller", Account: "bootstrap-signer", make: plain(bootstraptokens.NewSigner)},
		{Name: "garbage-collector-controller", Account: "generic-garbage-collector", make: plain(garbagecollector.New)},
		{Name: "node-lifecycle-controller", Account: "node-controller",
			make: func(c *Config, base controller.Config) (controller.Controller, error) {
				return nodelifecycle.New(nodelifecycle.Config{Config: base, Grace: c.NodeGrace})
			}},
		{Name: "ttl-controller", Account: "ttl-controller", make: plain(nodettl.New)},
		{Name: "taint-eviction-controller", Account: "node-controller", make: plain(tainteviction.New)},
		{Name: "pod-garbage-collector-controller", Account: "pod-garbage-collector", make: plain(podgc.New)},
		{Name: "ttl-after-finished-controller", Account: "ttl-after-finished-controller", make: plain(ttlafterfinished.New)},
		{Name: "certificatesigningrequest-approving-controller", Account: "certificate-controller", make: plain(csr.NewApprover)},
		// Not among upstream's; its rights are an addon's.
		{Name: "kubelet-serving-approving-controller", Account: "certificate-controller", make: plain(csr.NewServingApprover)},
		{Name: "certificatesigningrequest-signing-controller", Account: "certificate-controller",
			skip: func(c *Config) string {
				if c.ClientCA.Certificate == nil && c.ServingCA.Certificate == nil {
					return "no signing CA is configured"
				}
				return ""
			},
			make: func(c *Config, base controller.Config) (controller.Controller, error) {
				return csr.NewSigner(csr.SignerConfig{Config: base, KubeletServing: c.ServingCA, KubeletClient: c.ClientCA, APIServerClient: c.ClientCA, LegacyUnknown: c.ClientCA, Duration: c.SigningDuration})
			}},
		{Name: "certificatesigningrequest-cleaner-controller", Account: "certificate-controller", make: plain(csr.NewCleaner)},
		{Name: "clusterrole-aggregation-controller", Account: "clusterrole-aggregation-controller", make: plain(clusterroleaggregation.New)},
		{Name: "resourcequota-controller", Account: "resourcequota-controller", make: plain(resourcequota.New)},
	}
}
