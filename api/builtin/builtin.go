// Package builtin composes the resources that every API server serves and the
// scheme that knows their types.
//
// Owns: the list of group packages and of Go types. Must not: declare resources.
package builtin

import (
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	eventsv1 "k8s.io/api/events/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/admissionregistration"
	"github.com/skiff-k8s/skiff/api/apiextensions"
	"github.com/skiff-k8s/skiff/api/apiregistration"
	"github.com/skiff-k8s/skiff/api/apps"
	"github.com/skiff-k8s/skiff/api/authentication"
	"github.com/skiff-k8s/skiff/api/authorization"
	"github.com/skiff-k8s/skiff/api/autoscaling"
	"github.com/skiff-k8s/skiff/api/batch"
	"github.com/skiff-k8s/skiff/api/certificates"
	"github.com/skiff-k8s/skiff/api/coordination"
	"github.com/skiff-k8s/skiff/api/core"
	"github.com/skiff-k8s/skiff/api/discovery"
	"github.com/skiff-k8s/skiff/api/events"
	"github.com/skiff-k8s/skiff/api/flowcontrol"
	"github.com/skiff-k8s/skiff/api/networking"
	"github.com/skiff-k8s/skiff/api/node"
	"github.com/skiff-k8s/skiff/api/policy"
	"github.com/skiff-k8s/skiff/api/rbac"
	"github.com/skiff-k8s/skiff/api/resource"
	"github.com/skiff-k8s/skiff/api/scheduling"
	"github.com/skiff-k8s/skiff/api/storage"
	"github.com/skiff-k8s/skiff/api/storagemigration"
)

// Resources are all built-in resources, group by group.
func Resources() []*api.Resource {
	var all []*api.Resource
	for _, group := range []func() []*api.Resource{
		admissionregistration.Resources,
		apiextensions.Resources,
		apiregistration.Resources,
		apps.Resources,
		authentication.Resources,
		authorization.Resources,
		autoscaling.Resources,
		batch.Resources,
		certificates.Resources,
		coordination.Resources,
		core.Resources,
		discovery.Resources,
		events.Resources,
		flowcontrol.Resources,
		networking.Resources,
		node.Resources,
		policy.Resources,
		rbac.Resources,
		resource.Resources,
		scheduling.Resources,
		storage.Resources,
		storagemigration.Resources,
	} {
		all = append(all, group()...)
	}
	for _, r := range all {
		holdFinalizers(r)
	}
	return all
}

// Scheme knows the served Go types and defaults them as the resources declare.
// Each call builds a new one.
func Scheme() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionregistrationv1.AddToScheme,
		apiextensionsv1.AddToScheme,
		apiregistrationv1.AddToScheme,
		appsv1.AddToScheme,
		authenticationv1.AddToScheme,
		authorizationv1.AddToScheme,
		autoscalingv1.AddToScheme,
		autoscalingv2.AddToScheme,
		batchv1.AddToScheme,
		certificatesv1.AddToScheme,
		coordinationv1.AddToScheme,
		corev1.AddToScheme,
		discoveryv1.AddToScheme,
		eventsv1.AddToScheme,
		flowcontrolv1.AddToScheme,
		networkingv1.AddToScheme,
		nodev1.AddToScheme,
		policyv1.AddToScheme,
		rbacv1.AddToScheme,
		resourcev1.AddToScheme,
		schedulingv1.AddToScheme,
		storagev1.AddToScheme,
		storagemigrationv1.AddToScheme,
		metav1.AddMetaToScheme,
		apiextensions.AddConversions,
		autoscaling.AddConversions,
		events.AddConversions,
	} {
		// Registration fails only for a type registered twice under one kind, which
		// the package's test would show.
		utilruntime.Must(add(s))
	}
	v1 := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(s, v1)
	s.AddUnversionedTypes(v1, &metav1.Status{}, &metav1.APIVersions{},
		&metav1.APIGroupList{}, &metav1.APIGroup{}, &metav1.APIResourceList{})
	for _, r := range Resources() {
		if r.Default != nil {
			s.AddTypeDefaultingFunc(r.New(), func(obj any) { r.Default(obj.(runtime.Object)) })
		}
	}
	return s
}
