package bootstrap

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

var (
	namespaces      = schema.GroupResource{Resource: "namespaces"}
	configMaps      = schema.GroupResource{Resource: "configmaps"}
	services        = schema.GroupResource{Resource: "services"}
	priorityClasses = schema.GroupResource{Group: schedulingv1.GroupName, Resource: "priorityclasses"}
	serviceCIDRs    = schema.GroupResource{Group: networkingv1.GroupName, Resource: "servicecidrs"}
	ipAddresses     = schema.GroupResource{Group: networkingv1.GroupName, Resource: "ipaddresses"}
)

func rbacResource(o api.Object) schema.GroupResource {
	r := schema.GroupResource{Group: rbacv1.GroupName}
	switch o.(type) {
	case *rbacv1.ClusterRole:
		r.Resource = "clusterroles"
	case *rbacv1.ClusterRoleBinding:
		r.Resource = "clusterrolebindings"
	case *rbacv1.Role:
		r.Resource = "roles"
	case *rbacv1.RoleBinding:
		r.Resource = "rolebindings"
	}
	return r
}

// namespaces are those that exist always.
func (b *Bootstrap) namespaces() []api.Object {
	var all []api.Object
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		all = append(all, &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}},
			Spec:       corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}},
			Status:     corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
		})
	}
	return all
}

// Priorities of the two classes that the system has to itself.
const (
	systemCriticalPriority = 2_000_000_000
	nodeCriticalPriority   = systemCriticalPriority + 1000
)

func systemPriorityClasses() []api.Object {
	policy := corev1.PreemptLowerPriority
	return []api.Object{
		&schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: "system-node-critical", Generation: 1}, Value: nodeCriticalPriority, PreemptionPolicy: &policy,
			Description: "Used for system critical pods that must not be moved from their current node.",
		},
		&schedulingv1.PriorityClass{
			ObjectMeta: metav1.ObjectMeta{Name: "system-cluster-critical", Generation: 1}, Value: systemCriticalPriority, PreemptionPolicy: &policy,
			Description: "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
		},
	}
}

// serviceCIDRName is the ServiceCIDR of the API server's own flags, and the name of its Service.
const serviceCIDRName = "kubernetes"

func (b *Bootstrap) ensureServiceCIDR(ctx context.Context) error {
	r, err := lookup.Resource(b.Caches, serviceCIDRs)
	if err != nil {
		return err
	}
	var cidrs []string
	for _, p := range b.ServiceCIDRs {
		cidrs = append(cidrs, p.Masked().String())
	}
	current, err := lookup.CachedOrFresh[*networkingv1.ServiceCIDR](ctx, b.Caches, serviceCIDRs, "", serviceCIDRName)
	ready := metav1.Condition{
		Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, Message: "Kubernetes default Service CIDR is ready",
		LastTransitionTime: metav1.NewTime(b.Clock.Now()).Rfc3339Copy(),
	}
	switch {
	case apierrors.IsNotFound(err):
		return b.create(ctx, r, &networkingv1.ServiceCIDR{
			ObjectMeta: metav1.ObjectMeta{Name: serviceCIDRName, Generation: 1},
			Spec:       networkingv1.ServiceCIDRSpec{CIDRs: cidrs},
			Status:     networkingv1.ServiceCIDRStatus{Conditions: []metav1.Condition{ready}},
		})
	case err != nil:
		return fmt.Errorf("read ServiceCIDR %s: %w", serviceCIDRName, err)
	}
	grows := len(cidrs) == 2 && len(current.Spec.CIDRs) == 1 && current.Spec.CIDRs[0] == cidrs[0]
	if !grows {
		if !slices.Equal(current.Spec.CIDRs, cidrs) {
			b.Log.Warn("the service CIDRs of this API server are not those of the cluster", "configured", cidrs, "cluster", current.Spec.CIDRs)
			return nil
		}
		if len(current.Status.Conditions) > 0 || current.DeletionTimestamp != nil {
			return nil
		}
	}
	_, err = r.Update(ctx, "", serviceCIDRName, false, cacher.Preconditions{UID: &current.UID},
		func(o cacher.Object) (runtime.Object, time.Duration, error) {
			next := o.Runtime().DeepCopyObject().(*networkingv1.ServiceCIDR)
			if grows && len(next.Spec.CIDRs) == 1 {
				next.Spec.CIDRs = cidrs
				next.Generation++
			}
			if len(next.Status.Conditions) == 0 {
				next.Status.Conditions = []metav1.Condition{ready}
			}
			return next, 0, nil
		})
	return err
}

// serviceName is that of the API server's Service, in namespace default.
const serviceName = "kubernetes"

// ensureService makes the `kubernetes` Service with the first address of the range.
func (b *Bootstrap) ensureService(ctx context.Context) error {
	_, err := lookup.CachedOrFresh[*corev1.Service](ctx, b.Caches, services, metav1.NamespaceDefault, serviceName)
	if !apierrors.IsNotFound(err) {
		return err
	}
	ip := b.ServiceCIDRs[0].Masked().Addr().Next()
	if err := b.ensureAddress(ctx, ip); err != nil {
		return err
	}
	r, err := lookup.Resource(b.Caches, services)
	if err != nil {
		return err
	}
	single, cluster := corev1.IPFamilyPolicySingleStack, corev1.ServiceInternalTrafficPolicyCluster
	err = b.create(ctx, r, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: serviceName,
			Labels: map[string]string{"component": "apiserver", "provider": "kubernetes"},
		},
		Spec: corev1.ServiceSpec{
			Type:                  corev1.ServiceTypeClusterIP,
			ClusterIP:             ip.String(),
			ClusterIPs:            []string{ip.String()},
			IPFamilies:            []corev1.IPFamily{family(ip)},
			IPFamilyPolicy:        &single,
			InternalTrafficPolicy: &cluster,
			SessionAffinity:       corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{
				Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, TargetPort: intstr.FromInt32(b.Port),
			}},
		},
	})
	if err != nil {
		return fmt.Errorf("create Service %s: %w", serviceName, err)
	}
	return nil
}

func family(ip netip.Addr) corev1.IPFamily {
	if ip.Is6() {
		return corev1.IPv6Protocol
	}
	return corev1.IPv4Protocol
}

// ensureAddress allocates the Service's address. One that another Service has got is an error
// that the administrator must resolve.
func (b *Bootstrap) ensureAddress(ctx context.Context, ip netip.Addr) error {
	r, err := lookup.Resource(b.Caches, ipAddresses)
	if err != nil {
		return err
	}
	_, err = r.Create(ctx, &networkingv1.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: ip.String(), UID: types.UID(uuid.NewString()), CreationTimestamp: metav1.NewTime(b.Clock.Now()).Rfc3339Copy(), Generation: 1,
			Labels: map[string]string{networkingv1.LabelIPAddressFamily: string(family(ip)), networkingv1.LabelManagedBy: "ipallocator.k8s.io"},
		},
		Spec: networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{
			Resource: "services", Namespace: metav1.NamespaceDefault, Name: serviceName,
		}},
	}, 0)
	if !apierrors.IsAlreadyExists(err) {
		return err
	}
	have, err := lookup.Fresh[*networkingv1.IPAddress](ctx, b.Caches, ipAddresses, "", ip.String())
	if err != nil {
		return err
	}
	if p := have.Spec.ParentRef; p == nil || p.Resource != "services" || p.Namespace != metav1.NamespaceDefault || p.Name != serviceName {
		return fmt.Errorf("address %s of the Service default/%s belongs to %+v: delete that Service", ip, serviceName, p)
	}
	return nil
}

// publishAuthentication tells extension API servers whom to trust
// (https://kubernetes.io/docs/tasks/extend-kubernetes/configure-aggregation-layer/).
// Authorities of other API servers stay in the bundle.
func (b *Bootstrap) publishAuthentication(ctx context.Context) error {
	data := map[string]string{}
	if b.ClientCA != nil {
		data["client-ca-file"] = string(b.ClientCA())
	}
	// Without proxies to trust there is nothing to tell of their headers either.
	if ca := b.requestHeaderCA(); ca != "" {
		data["requestheader-client-ca-file"] = ca
		for key, values := range map[string][]string{
			"requestheader-allowed-names":        {"front-proxy-client"},
			"requestheader-username-headers":     {"X-Remote-User"},
			"requestheader-uid-headers":          {"X-Remote-Uid"},
			"requestheader-group-headers":        {"X-Remote-Group"},
			"requestheader-extra-headers-prefix": {"X-Remote-Extra-"},
		} {
			enc, err := json.Marshal(values)
			if err != nil {
				return fmt.Errorf("encode %s: %w", key, err)
			}
			data[key] = string(enc)
		}
	}
	return b.ensureConfigMap(ctx, "extension-apiserver-authentication", data)
}

func (b *Bootstrap) requestHeaderCA() string {
	if b.RequestHeaderCA == nil {
		return ""
	}
	return string(b.RequestHeaderCA())
}

// trackTokens records since when the use of Secret-based tokens is noted (KEP-2799).
func (b *Bootstrap) trackTokens(ctx context.Context) error {
	const name = "kube-apiserver-legacy-service-account-token-tracking"
	_, err := lookup.CachedOrFresh[*corev1.ConfigMap](ctx, b.Caches, configMaps, metav1.NamespaceSystem, name)
	if !apierrors.IsNotFound(err) {
		return err
	}
	return b.ensureConfigMap(ctx, name, map[string]string{"since": b.Clock.Now().UTC().Format(time.DateOnly)})
}

// ensureConfigMap makes a ConfigMap in kube-system hold data; certificate bundles are
// joined, other keys replaced.
func (b *Bootstrap) ensureConfigMap(ctx context.Context, name string, data map[string]string) error {
	if len(data) == 0 {
		return nil
	}
	r, err := lookup.Resource(b.Caches, configMaps)
	if err != nil {
		return err
	}
	current, err := lookup.CachedOrFresh[*corev1.ConfigMap](ctx, b.Caches, configMaps, metav1.NamespaceSystem, name)
	if apierrors.IsNotFound(err) {
		return b.create(ctx, r, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name}, Data: data,
		})
	}
	if err != nil {
		return err
	}
	if maps.Equal(joined(current.Data, data), current.Data) {
		return nil
	}
	_, err = r.Update(ctx, metav1.NamespaceSystem, name, false, cacher.Preconditions{},
		func(o cacher.Object) (runtime.Object, time.Duration, error) {
			next := o.Runtime().DeepCopyObject().(*corev1.ConfigMap)
			want := joined(next.Data, data)
			if maps.Equal(want, next.Data) {
				return nil, 0, errNothing
			}
			next.Data = want
			return next, 0, nil
		})
	if errors.Is(err, errNothing) {
		return nil
	}
	return err
}

func joined(have, want map[string]string) map[string]string {
	out := maps.Clone(have)
	if out == nil {
		out = map[string]string{}
	}
	for k, v := range want {
		if strings.HasSuffix(k, "ca-file") && out[k] != "" {
			if bytes.Contains([]byte(out[k]), bytes.TrimSpace([]byte(v))) {
				continue
			}
			v = strings.TrimRight(out[k], "\n") + "\n" + v
		}
		out[k] = v
	}
	return out
}
