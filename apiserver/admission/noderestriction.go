package admission

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/skiff-k8s/skiff/apiserver/authz/node"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// nodeRestriction holds kubelets to what is their own: the node authorizer says which
// objects they may write, this what they may write in them.
type nodeRestriction struct {
	mutating
	caches     lookup.Caches
	authorizer authorizer.UnconditionalAuthorizer
}

var nodes = schema.GroupResource{Resource: "nodes"}

func (n *nodeRestriction) Admit(ctx context.Context, a *seams.Attributes) error {
	name, isNode := node.Identity(a.User)
	if !isNode {
		return nil
	}
	if name == "" {
		return forbid(a, "could not determine node from user %q", a.User.GetName())
	}
	switch a.Resource.Group + "/" + a.Resource.Resource {
	case "/pods":
		switch a.Subresource {
		case "":
			return n.pod(ctx, name, a)
		case "status":
			return n.podStatus(name, a)
		case "eviction":
			return n.eviction(ctx, name, a)
		}
		return forbid(a, "unexpected pod subresource %q, only 'status' and 'eviction' are allowed", a.Subresource)
	case "/nodes":
		return n.node(name, a)
	case "/persistentvolumeclaims":
		if a.Subresource != "status" {
			return forbid(a, "may only update PVC status")
		}
		return n.claimStatus(name, a)
	case "/serviceaccounts":
		return n.token(ctx, name, a)
	case "coordination.k8s.io/leases":
		return n.lease(name, a)
	case "storage.k8s.io/csinodes":
		return n.csiNode(name, a)
	case "resource.k8s.io/resourceslices":
		return n.slice(name, a)
	case "certificates.k8s.io/certificatesigningrequests":
		return n.certificate(name, a)
	case "certificates.k8s.io/podcertificaterequests":
		return n.podCertificate(ctx, name, a)
	}
	return nil
}

func (n *nodeRestriction) getPod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return lookup.CachedOrFresh[*corev1.Pod](ctx, n.caches, pods, namespace, name)
}

func (n *nodeRestriction) pod(ctx context.Context, name string, a *seams.Attributes) error {
	switch a.Operation {
	case seams.Create:
		return n.mirrorPod(ctx, name, a)
	case seams.Delete:
		pod, ok := a.OldObject.(*corev1.Pod)
		if !ok {
			var err error
			if pod, err = n.getPod(ctx, a.Namespace, a.Name); err != nil {
				return err
			}
		}
		if pod.Spec.NodeName != name {
			return forbid(a, "node %q can only delete pods with spec.nodeName set to itself", name)
		}
		return nil
	}
	return forbid(a, "unexpected operation %q, node %q can only create and delete mirror pods", a.Operation, name)
}

// mirrorPod: what a node creates shows what it runs from files, and gives it access to nothing.
func (n *nodeRestriction) mirrorPod(ctx context.Context, name string, a *seams.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return forbid(a, "unexpected type %T", a.Object)
	}
	if !isMirror(pod) {
		return forbid(a, "pod does not have %q annotation, node %q can only create mirror pods", corev1.MirrorPodAnnotationKey, name)
	}
	if pod.Spec.NodeName != name {
		return forbid(a, "node %q can only create pods with spec.nodeName set to itself", name)
	}
	if len(pod.OwnerReferences) > 1 {
		return forbid(a, "node %q can only create pods with a single owner reference set to itself", name)
	}
	if len(pod.OwnerReferences) == 0 {
		return forbid(a, "node %q can only create pods with an owner reference set to itself", name)
	}
	owner := &pod.OwnerReferences[0]
	switch {
	case owner.APIVersion != "v1" || owner.Kind != "Node" || owner.Name != name:
		return forbid(a, "node %q can only create pods with an owner reference set to itself", name)
	case owner.Controller == nil || !*owner.Controller:
		return forbid(a, "node %q can only create pods with a controller owner reference set to itself", name)
	case owner.BlockOwnerDeletion != nil && *owner.BlockOwnerDeletion:
		return forbid(a, "node %q must not set blockOwnerDeletion on an owner reference", name)
	}
	obj, err := lookup.CachedOrFresh[*corev1.Node](ctx, n.caches, nodes, "", name)
	if err != nil {
		return err
	}
	if owner.UID != obj.UID {
		return forbid(a, "node %s UID mismatch: expected %s got %s", name, owner.UID, obj.UID)
	}
	if what := apiReference(pod); what != "" {
		return forbid(a, "node %q can not create pods that reference %s", name, what)
	}
	return nil
}

// apiReference names a kind of API object that a pod refers to, "" if none.
func apiReference(pod *corev1.Pod) string {
	if pod.Spec.ServiceAccountName != "" {
		return "serviceaccounts"
	}
	for range podSecrets(pod) {
		return "secrets"
	}
	for range podConfigMaps(pod) {
		return "configmaps"
	}
	if len(pod.Spec.ResourceClaims) > 0 {
		return "resourceclaims"
	}
	for i := range pod.Spec.Volumes {
		switch v := &pod.Spec.Volumes[i].VolumeSource; {
		case v.CSI != nil:
			return "csidrivers (via CSI volumes)"
		case v.Glusterfs != nil:
			return "endpoints (via glusterFS volumes)"
		case v.PersistentVolumeClaim != nil:
			return "persistentvolumeclaims"
		case v.Ephemeral != nil:
			return "persistentvolumeclaims (via ephemeral volumes)"
		case v.Projected != nil:
			for _, s := range v.Projected.Sources {
				switch {
				case s.ServiceAccountToken != nil:
					return "serviceaccounts (via projected volumes)"
				case s.ClusterTrustBundle != nil:
					return "clustertrustbundles (via projected volumes)"
				case s.PodCertificate != nil:
					return "podcertificates (via projected volumes)"
				}
			}
		}
	}
	return ""
}

func (n *nodeRestriction) podStatus(name string, a *seams.Attributes) error {
	if a.Operation != seams.Update {
		return forbid(a, "unexpected operation %q", a.Operation)
	}
	old, next := a.OldObject.(*corev1.Pod), a.Object.(*corev1.Pod)
	switch {
	case old.Spec.NodeName != name:
		return forbid(a, "node %q can only update pod status for pods with spec.nodeName set to itself", name)
	case !maps.Equal(old.Labels, next.Labels):
		return forbid(a, "node %q cannot update labels through pod status", name)
	case !apiequality.Semantic.DeepEqual(old.Status.ResourceClaimStatuses, next.Status.ResourceClaimStatuses):
		return forbid(a, "node %q cannot update resource claim statues", name)
	case !apiequality.Semantic.DeepEqual(old.Status.ExtendedResourceClaimStatus, next.Status.ExtendedResourceClaimStatus):
		return forbid(a, "node %q cannot update extended resource claim status", name)
	case !apiequality.Semantic.DeepEqual(old.Status.NodeAllocatableResourceClaimStatuses, next.Status.NodeAllocatableResourceClaimStatuses):
		return forbid(a, "node %q cannot update node allocatable resource claim statuses", name)
	}
	return nil
}

func (n *nodeRestriction) eviction(ctx context.Context, name string, a *seams.Attributes) error {
	e, ok := a.Object.(*policyv1.Eviction)
	if !ok || a.Operation != seams.Create {
		return forbid(a, "unexpected operation %s", a.Operation)
	}
	podName := a.Name
	if podName == "" {
		podName = e.Name
	}
	if podName == "" {
		return forbid(a, "could not determine pod from request data")
	}
	pod, err := n.getPod(ctx, a.Namespace, podName)
	if err != nil {
		return err
	}
	if pod.Spec.NodeName != name {
		return forbid(a, "node %s can only evict pods with spec.nodeName set to itself", name)
	}
	return nil
}

func (n *nodeRestriction) claimStatus(name string, a *seams.Attributes) error {
	if a.Operation != seams.Update {
		return forbid(a, "unexpected operation %q", a.Operation)
	}
	strip := func(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
		c = c.DeepCopy()
		c.ResourceVersion, c.ManagedFields = "", nil
		c.Status.Capacity, c.Status.Conditions = nil, nil
		c.Status.AllocatedResources, c.Status.AllocatedResourceStatuses = nil, nil
		return c
	}
	if !apiequality.Semantic.DeepEqual(strip(a.OldObject.(*corev1.PersistentVolumeClaim)), strip(a.Object.(*corev1.PersistentVolumeClaim))) {
		return forbid(a, "node %q is not allowed to update fields other than status.quantity and status.conditions", name)
	}
	return nil
}

func (n *nodeRestriction) node(name string, a *seams.Attributes) error {
	if wanted := nameOf(a); wanted != name {
		return forbid(a, "node %q is not allowed to modify node %q", name, wanted)
	}
	switch a.Operation {
	case seams.Create:
		next := a.Object.(*corev1.Node)
		if next.Spec.ConfigSource != nil {
			return forbid(a, "node %q is not allowed to create pods with a non-nil configSource", name)
		}
		if labels := notForKubelets(next.Labels, nil); len(labels) > 0 {
			return forbid(a, "node %q is not allowed to set the following labels: %s", name, strings.Join(labels, ", "))
		}
	case seams.Update:
		next, old := a.Object.(*corev1.Node), a.OldObject.(*corev1.Node)
		switch {
		case next.Spec.ConfigSource != nil && !apiequality.Semantic.DeepEqual(next.Spec.ConfigSource, old.Spec.ConfigSource):
			return forbid(a, "node %q is not allowed to update configSource to a new non-nil configSource", name)
		case !apiequality.Semantic.DeepEqual(next.Spec.Taints, old.Spec.Taints):
			return forbid(a, "node %q is not allowed to modify taints", name)
		case !apiequality.Semantic.DeepEqual(next.OwnerReferences, old.OwnerReferences):
			return forbid(a, "node %q is not allowed to modify ownerReferences", name)
		}
		if labels := notForKubelets(next.Labels, old.Labels); len(labels) > 0 {
			return forbid(a, "is not allowed to modify labels: %s", strings.Join(labels, ", "))
		}
	}
	return nil
}

// kubeletLabels are the labels under kubernetes.io that kubelets set on their nodes.
var kubeletLabels = []string{
	corev1.LabelHostname, corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
	corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
	corev1.LabelInstanceType, corev1.LabelInstanceTypeStable,
	corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

// notForKubelets are the labels that changed and that only administrators may change: a
// node could otherwise make pods come to it that were meant for others.
func notForKubelets(next, old map[string]string) []string {
	var out []string
	check := func(key string) {
		domain, _, ok := strings.Cut(key, "/")
		if !ok {
			return
		}
		within := func(d string) bool { return domain == d || strings.HasSuffix(domain, "."+d) }
		switch {
		case within(corev1.LabelNamespaceNodeRestriction):
			out = append(out, key)
		case (within("kubernetes.io") || within("k8s.io")) && !slices.Contains(kubeletLabels, key) &&
			!within("kubelet.kubernetes.io") && !within("node.kubernetes.io"):
			out = append(out, key)
		}
	}
	for k, v := range next {
		if before, ok := old[k]; !ok || before != v {
			check(k)
		}
	}
	for k := range old {
		if _, ok := next[k]; !ok {
			check(k)
		}
	}
	slices.Sort(out)
	return out
}
