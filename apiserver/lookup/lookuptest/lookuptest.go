// Package lookuptest runs real watch caches over the in-memory store for tests of the
// parts of the API server that read them.
package lookuptest

import (
	"context"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/google/uuid"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/mem"
)

// Caches are running caches with a shorthand to write objects.
type Caches struct {
	*cacher.Caches
	Store store.Store

	t      testing.TB
	scheme *runtime.Scheme
}

// irregular are the plurals that are not lower-case kind + "s".
var irregular = map[string]string{
	"Endpoints": "endpoints", "NetworkPolicy": "networkpolicies", "PriorityClass": "priorityclasses",
	"RuntimeClass": "runtimeclasses", "StorageClass": "storageclasses", "IngressClass": "ingressclasses",
	"IPAddress": "ipaddresses", "Ingress": "ingresses",
	"ValidatingAdmissionPolicy": "validatingadmissionpolicies", "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
}

// clusterScoped are the kinds without namespace that tests use.
var clusterScoped = map[string]bool{
	"Namespace": true, "Node": true, "PersistentVolume": true, "ClusterRole": true, "ClusterRoleBinding": true,
	"PriorityClass": true, "RuntimeClass": true, "StorageClass": true, "IngressClass": true, "VolumeAttachment": true,
	"ServiceCIDR": true, "IPAddress": true, "CustomResourceDefinition": true, "ResourceSlice": true,
	"FlowSchema": true, "PriorityLevelConfiguration": true, "CertificateSigningRequest": true, "CSINode": true, "ValidatingWebhookConfiguration": true, "MutatingWebhookConfiguration": true,
	"ValidatingAdmissionPolicy": true, "ValidatingAdmissionPolicyBinding": true, "MutatingAdmissionPolicy": true, "MutatingAdmissionPolicyBinding": true,
}

// New runs caches of the kinds of these objects and of Roles, bindings, Namespaces, Pods,
// Secrets, ServiceAccounts, Nodes and ConfigMaps over a store that holds the objects.
func New(t testing.TB, objs ...api.Object) *Caches {
	t.Helper()
	s := mem.New(mem.Config{})
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		admissionregistrationv1.AddToScheme, apiextensionsv1.AddToScheme, certificatesv1.AddToScheme, coordinationv1.AddToScheme, corev1.AddToScheme,
		discoveryv1.AddToScheme, flowcontrolv1.AddToScheme, networkingv1.AddToScheme, nodev1.AddToScheme, policyv1.AddToScheme, rbacv1.AddToScheme,
		resourcev1.AddToScheme, schedulingv1.AddToScheme, storagev1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := cacher.New(cacher.Config{Store: s, Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	cs := &Caches{Caches: c, Store: s, t: t, scheme: scheme}
	known := map[schema.GroupKind]bool{}
	add := func(gvk schema.GroupVersionKind) {
		if known[gvk.GroupKind()] {
			return
		}
		known[gvk.GroupKind()] = true
		cs.AddKind(gvk)
	}
	for _, kind := range []string{"Namespace", "Pod", "Secret", "ServiceAccount", "Node", "ConfigMap", "PersistentVolume"} {
		add(corev1.SchemeGroupVersion.WithKind(kind))
	}
	for _, kind := range []string{"ValidatingWebhookConfiguration", "MutatingWebhookConfiguration", "ValidatingAdmissionPolicy",
		"ValidatingAdmissionPolicyBinding", "MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding"} {
		add(admissionregistrationv1.SchemeGroupVersion.WithKind(kind))
	}
	for _, kind := range []string{"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} {
		add(schema.GroupVersionKind{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: kind})
	}
	for _, o := range objs {
		gvks, _, err := scheme.ObjectKinds(o)
		if err != nil {
			t.Fatal(err)
		}
		add(gvks[0])
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("run caches: %v", err)
		}
	})
	for _, o := range objs {
		cs.Create(o)
	}
	return cs
}

// AddKind makes a built-in kind known.
func (c *Caches) AddKind(gvk schema.GroupVersionKind) {
	c.t.Helper()
	plural, ok := irregular[gvk.Kind]
	if !ok {
		plural = strings.ToLower(gvk.Kind) + "s"
	}
	r := &api.Resource{
		Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind, Plural: plural, Namespaced: !clusterScoped[gvk.Kind],
		StoragePath: strings.TrimPrefix(gvk.Group+"/"+plural, "/"),
		New: func() api.Object {
			obj, err := c.scheme.New(gvk)
			if err != nil {
				panic(err)
			}
			return obj.(api.Object)
		},
		NewList: func() runtime.Object {
			obj, err := c.scheme.New(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
			if err != nil {
				return &unstructured.UnstructuredList{}
			}
			return obj
		},
	}
	if err := c.Add(cacher.Key(r), r); err != nil {
		c.t.Fatal(err)
	}
}

// Of is the cache of an object's resource.
func (c *Caches) Of(o runtime.Object) cacher.Resource {
	c.t.Helper()
	gvks, _, err := c.scheme.ObjectKinds(o)
	if err != nil {
		c.t.Fatal(err)
	}
	plural, ok := irregular[gvks[0].Kind]
	if !ok {
		plural = strings.ToLower(gvks[0].Kind) + "s"
	}
	r, ok := c.Resource(gvks[0].Group + "/" + plural)
	if !ok {
		c.t.Fatalf("no cache of %s", gvks[0])
	}
	return r
}

// Create stores a copy of an object, with a uid if it has none, and waits until the cache has it.
func (c *Caches) Create(o api.Object) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	o = o.DeepCopyObject().(api.Object)
	if o.GetUID() == "" {
		o.SetUID(types.UID(uuid.NewString()))
	}
	if created := o.GetCreationTimestamp(); created.IsZero() {
		o.SetCreationTimestamp(metav1.Now())
	}
	made, err := c.Of(o).Create(ctx, o, 0)
	if err != nil {
		c.t.Fatalf("create %T %s: %v", o, o.GetName(), err)
	}
	if _, err := c.Of(o).Get(ctx, o.GetNamespace(), o.GetName(), made.Meta().GetResourceVersion()); err != nil {
		c.t.Fatalf("wait for %T %s: %v", o, o.GetName(), err)
	}
}

// Delete removes an object and waits until the cache knows.
func (c *Caches) Delete(o api.Object) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if _, err := c.Of(o).Delete(ctx, o.GetNamespace(), o.GetName(), cacher.Preconditions{}, nil); err != nil {
		c.t.Fatalf("delete %T %s: %v", o, o.GetName(), err)
	}
	// A list without resourceVersion is one that the cache has caught up with.
	if _, err := c.Of(o).List(ctx, cacher.ListOptions{}); err != nil {
		c.t.Fatal(err)
	}
}
