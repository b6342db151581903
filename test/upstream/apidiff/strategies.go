package main

import (
	"k8s.io/apiserver/pkg/registry/rest"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/authentication/install"
	_ "k8s.io/kubernetes/pkg/apis/authorization/install"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	_ "k8s.io/kubernetes/pkg/apis/batch/install"
	_ "k8s.io/kubernetes/pkg/apis/certificates/install"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	_ "k8s.io/kubernetes/pkg/apis/events/install"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/resource/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	_ "k8s.io/kubernetes/pkg/apis/storagemigration/install"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/mutatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/admissionregistration/validatingwebhookconfiguration"
	"k8s.io/kubernetes/pkg/registry/apps/controllerrevision"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"
	"k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler"
	"k8s.io/kubernetes/pkg/registry/batch/cronjob"
	"k8s.io/kubernetes/pkg/registry/batch/job"
	"k8s.io/kubernetes/pkg/registry/certificates/certificates"
	"k8s.io/kubernetes/pkg/registry/coordination/lease"
	"k8s.io/kubernetes/pkg/registry/core/configmap"
	"k8s.io/kubernetes/pkg/registry/core/endpoint"
	"k8s.io/kubernetes/pkg/registry/core/event"
	"k8s.io/kubernetes/pkg/registry/core/limitrange"
	"k8s.io/kubernetes/pkg/registry/core/namespace"
	"k8s.io/kubernetes/pkg/registry/core/node"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolume"
	"k8s.io/kubernetes/pkg/registry/core/persistentvolumeclaim"
	"k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/kubernetes/pkg/registry/core/podtemplate"
	"k8s.io/kubernetes/pkg/registry/core/replicationcontroller"
	"k8s.io/kubernetes/pkg/registry/core/resourcequota"
	"k8s.io/kubernetes/pkg/registry/core/secret"
	"k8s.io/kubernetes/pkg/registry/core/service"
	"k8s.io/kubernetes/pkg/registry/core/serviceaccount"
	"k8s.io/kubernetes/pkg/registry/discovery/endpointslice"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration"
	"k8s.io/kubernetes/pkg/registry/networking/ingress"
	"k8s.io/kubernetes/pkg/registry/networking/ingressclass"
	"k8s.io/kubernetes/pkg/registry/networking/ipaddress"
	"k8s.io/kubernetes/pkg/registry/networking/networkpolicy"
	"k8s.io/kubernetes/pkg/registry/networking/servicecidr"
	"k8s.io/kubernetes/pkg/registry/node/runtimeclass"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"
	"k8s.io/kubernetes/pkg/registry/resource/deviceclass"
	"k8s.io/kubernetes/pkg/registry/resource/resourceslice"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"
	"k8s.io/kubernetes/pkg/registry/storage/csidriver"
	"k8s.io/kubernetes/pkg/registry/storage/csinode"
	"k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattachment"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass"
	"k8s.io/kubernetes/pkg/registry/storagemigration/storagemigration"
)

type strategy interface {
	rest.RESTCreateStrategy
	rest.RESTUpdateStrategy
}

// strategies are upstream's, by group, plural and subresource.
var strategies = map[string]strategy{
	"/pods":                                pod.Strategy,
	"/pods/status":                         pod.StatusStrategy,
	"/services":                            service.Strategy,
	"/services/status":                     service.StatusStrategy,
	"/nodes":                               node.Strategy,
	"/nodes/status":                        node.StatusStrategy,
	"/configmaps":                          configmap.Strategy,
	"/secrets":                             secret.Strategy,
	"/namespaces":                          namespace.Strategy,
	"/namespaces/status":                   namespace.StatusStrategy,
	"/endpoints":                           endpoint.Strategy,
	"/events":                              event.Strategy,
	"/limitranges":                         limitrange.Strategy,
	"/persistentvolumes":                   persistentvolume.Strategy,
	"/persistentvolumes/status":            persistentvolume.StatusStrategy,
	"/persistentvolumeclaims":              persistentvolumeclaim.Strategy,
	"/persistentvolumeclaims/status":       persistentvolumeclaim.StatusStrategy,
	"/podtemplates":                        podtemplate.Strategy,
	"/replicationcontrollers":              replicationcontroller.Strategy,
	"/replicationcontrollers/status":       replicationcontroller.StatusStrategy,
	"/resourcequotas":                      resourcequota.Strategy,
	"/resourcequotas/status":               resourcequota.StatusStrategy,
	"/serviceaccounts":                     serviceaccount.Strategy,
	"apps/deployments":                     deployment.Strategy,
	"apps/deployments/status":              deployment.StatusStrategy,
	"apps/replicasets":                     replicaset.Strategy,
	"apps/replicasets/status":              replicaset.StatusStrategy,
	"apps/daemonsets":                      daemonset.Strategy,
	"apps/daemonsets/status":               daemonset.StatusStrategy,
	"apps/statefulsets":                    statefulset.Strategy,
	"apps/statefulsets/status":             statefulset.StatusStrategy,
	"apps/controllerrevisions":             controllerrevision.Strategy,
	"batch/jobs":                           job.Strategy,
	"batch/jobs/status":                    job.StatusStrategy,
	"batch/cronjobs":                       cronjob.Strategy,
	"batch/cronjobs/status":                cronjob.StatusStrategy,
	"autoscaling/horizontalpodautoscalers": horizontalpodautoscaler.Strategy,
	"autoscaling/horizontalpodautoscalers/status":                     horizontalpodautoscaler.StatusStrategy,
	"policy/poddisruptionbudgets":                                     poddisruptionbudget.Strategy,
	"policy/poddisruptionbudgets/status":                              poddisruptionbudget.StatusStrategy,
	"networking.k8s.io/ingresses":                                     ingress.Strategy,
	"networking.k8s.io/ingresses/status":                              ingress.StatusStrategy,
	"networking.k8s.io/ingressclasses":                                ingressclass.Strategy,
	"networking.k8s.io/networkpolicies":                               networkpolicy.Strategy,
	"networking.k8s.io/servicecidrs":                                  servicecidr.Strategy,
	"networking.k8s.io/servicecidrs/status":                           servicecidr.StatusStrategy,
	"networking.k8s.io/ipaddresses":                                   ipaddress.Strategy,
	"discovery.k8s.io/endpointslices":                                 endpointslice.Strategy,
	"coordination.k8s.io/leases":                                      lease.Strategy,
	"node.k8s.io/runtimeclasses":                                      runtimeclass.Strategy,
	"scheduling.k8s.io/priorityclasses":                               priorityclass.Strategy,
	"storage.k8s.io/storageclasses":                                   storageclass.Strategy,
	"storage.k8s.io/csidrivers":                                       csidriver.Strategy,
	"storage.k8s.io/csinodes":                                         csinode.Strategy,
	"storage.k8s.io/csistoragecapacities":                             csistoragecapacity.Strategy,
	"storage.k8s.io/volumeattachments":                                volumeattachment.Strategy,
	"storage.k8s.io/volumeattachments/status":                         volumeattachment.StatusStrategy,
	"storage.k8s.io/volumeattributesclasses":                          volumeattributesclass.Strategy,
	"rbac.authorization.k8s.io/roles":                                 role.Strategy,
	"rbac.authorization.k8s.io/rolebindings":                          rolebinding.Strategy,
	"rbac.authorization.k8s.io/clusterroles":                          clusterrole.Strategy,
	"rbac.authorization.k8s.io/clusterrolebindings":                   clusterrolebinding.Strategy,
	"flowcontrol.apiserver.k8s.io/flowschemas":                        flowschema.Strategy,
	"flowcontrol.apiserver.k8s.io/flowschemas/status":                 flowschema.StatusStrategy,
	"flowcontrol.apiserver.k8s.io/prioritylevelconfigurations":        prioritylevelconfiguration.Strategy,
	"flowcontrol.apiserver.k8s.io/prioritylevelconfigurations/status": prioritylevelconfiguration.StatusStrategy,
	"certificates.k8s.io/certificatesigningrequests":                  certificates.Strategy,
	"certificates.k8s.io/certificatesigningrequests/status":           certificates.StatusStrategy,
	"admissionregistration.k8s.io/validatingwebhookconfigurations":    validatingwebhookconfiguration.Strategy,
	"admissionregistration.k8s.io/mutatingwebhookconfigurations":      mutatingwebhookconfiguration.Strategy,
	"resource.k8s.io/resourceslices":                                  resourceslice.Strategy,
	"resource.k8s.io/deviceclasses":                                   deviceclass.Strategy,
	"storagemigration.k8s.io/storageversionmigrations":                storagemigration.Strategy,
	"storagemigration.k8s.io/storageversionmigrations/status":         storagemigration.StatusStrategy,
	"/pods/resize":              pod.ResizeStrategy,
	"/pods/ephemeralcontainers": pod.EphemeralContainersStrategy,
	"/namespaces/finalize":      namespace.FinalizeStrategy,
	"certificates.k8s.io/certificatesigningrequests/approval": certificates.ApprovalStrategy,
}
