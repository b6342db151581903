package admission

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

func (n *nodeRestriction) token(ctx context.Context, name string, a *seams.Attributes) error {
	if a.Operation != seams.Create || a.Subresource != "token" {
		return nil
	}
	tr, ok := a.Object.(*authenticationv1.TokenRequest)
	if !ok {
		return forbid(a, "unexpected type %T", a.Object)
	}
	ref := tr.Spec.BoundObjectRef
	if ref == nil || ref.APIVersion != "v1" || ref.Kind != "Pod" || ref.Name == "" {
		return forbid(a, "node requested token not bound to a pod")
	}
	if ref.UID == "" {
		return forbid(a, "node requested token with a pod binding without a uid")
	}
	pod, err := n.getPod(ctx, a.Namespace, ref.Name)
	if err != nil {
		return err
	}
	if ref.UID != pod.UID {
		return forbid(a, "the UID in the bound object reference (%s) does not match the UID in record. The object might have been deleted and then recreated", ref.UID)
	}
	if pod.Spec.NodeName != name {
		return forbid(a, "node requested token bound to a pod scheduled on a different node")
	}
	return n.audience(ctx, a, tr, pod)
}

// audience: the pod, or a driver of one of its volumes, must want a token for that audience (KEP-4935).
func (n *nodeRestriction) audience(ctx context.Context, a *seams.Attributes, tr *authenticationv1.TokenRequest, pod *corev1.Pod) error {
	if len(tr.Spec.Audiences) > 1 {
		return forbid(a, "node may only request 0 or 1 audiences")
	}
	audience := ""
	if len(tr.Spec.Audiences) == 1 {
		audience = tr.Spec.Audiences[0]
	}
	var errs []error
	for i := range pod.Spec.Volumes {
		found, err := n.volumeWants(ctx, pod, &pod.Spec.Volumes[i], audience)
		if found {
			return nil
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) > 0 {
		return forbid(a, "error validating audience %q: %w", audience, errors.Join(errs...))
	}
	decision, _, err := n.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.User, Verb: "request-serviceaccounts-token-audience", APIGroup: a.Resource.Group, APIVersion: a.Resource.Version,
		Resource: audience, Namespace: a.Namespace, Name: a.Name, ResourceRequest: true,
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return forbid(a, "error authorizing %s to request tokens for audience %q: %w", a.User.GetName(), audience, err)
	}
	return forbid(a, "%s is not authorized to request tokens for audience %q", a.User.GetName(), audience)
}

var (
	csiDrivers = schema.GroupResource{Group: storagev1.GroupName, Resource: "csidrivers"}
	claims     = schema.GroupResource{Resource: "persistentvolumeclaims"}
	volumes    = schema.GroupResource{Resource: "persistentvolumes"}
)

func (n *nodeRestriction) volumeWants(ctx context.Context, pod *corev1.Pod, v *corev1.Volume, audience string) (bool, error) {
	claim, driver := "", ""
	switch {
	case v.Projected != nil:
		return slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == audience
		}), nil
	case v.Ephemeral != nil:
		claim = pod.Name + "-" + v.Name
	case v.PersistentVolumeClaim != nil:
		claim = v.PersistentVolumeClaim.ClaimName
	case v.CSI != nil:
		driver = v.CSI.Driver
	}
	if claim != "" {
		c, err := lookup.CachedOrFresh[*corev1.PersistentVolumeClaim](ctx, n.caches, claims, pod.Namespace, claim)
		if err != nil {
			return false, err
		}
		pv, err := lookup.CachedOrFresh[*corev1.PersistentVolume](ctx, n.caches, volumes, "", c.Spec.VolumeName)
		if err != nil {
			return false, err
		}
		if pv.Spec.CSI != nil {
			driver = pv.Spec.CSI.Driver
		}
	}
	if driver == "" {
		return false, nil
	}
	d, err := lookup.CachedOrFresh[*storagev1.CSIDriver](ctx, n.caches, csiDrivers, "", driver)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(d.Spec.TokenRequests, func(t storagev1.TokenRequest) bool { return t.Audience == audience }), nil
}

func (n *nodeRestriction) lease(name string, a *seams.Attributes) error {
	if a.Namespace != corev1.NamespaceNodeLease {
		return forbid(a, "can only access leases in the %q system namespace", corev1.NamespaceNodeLease)
	}
	wanted := a.Name
	if l, ok := a.Object.(*coordinationv1.Lease); ok && a.Operation == seams.Create {
		wanted = l.Name
	}
	if wanted != name {
		return forbid(a, "can only access node lease with the same name as the requesting node")
	}
	return nil
}

func (n *nodeRestriction) csiNode(name string, a *seams.Attributes) error {
	wanted := a.Name
	if m, ok := a.Object.(metav1.Object); ok && a.Operation == seams.Create {
		wanted = m.GetName()
	}
	if wanted != name {
		return forbid(a, "can only access CSINode with the same name as the requesting node")
	}
	return nil
}

func (n *nodeRestriction) slice(name string, a *seams.Attributes) error {
	own := func(s *resourcev1.ResourceSlice) bool { return s.Spec.NodeName != nil && *s.Spec.NodeName == name }
	if s, ok := a.Object.(*resourcev1.ResourceSlice); ok && a.Operation == seams.Create && !own(s) {
		return forbid(a, "can only create ResourceSlice with the same NodeName as the requesting node")
	}
	if s, ok := a.OldObject.(*resourcev1.ResourceSlice); ok && a.Operation == seams.Delete && !own(s) {
		return forbid(a, "can only delete ResourceSlice with the same NodeName as the requesting node")
	}
	return nil
}

func (n *nodeRestriction) certificate(name string, a *seams.Attributes) error {
	csr, ok := a.Object.(*certificatesv1.CertificateSigningRequest)
	if !ok || a.Operation != seams.Create ||
		csr.Spec.SignerName != certificatesv1.KubeletServingSignerName && csr.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	parsed, err := parseCSR(csr.Spec.Request)
	if err != nil {
		return forbid(a, "unable to parse csr: %w", err)
	}
	if parsed.Subject.CommonName != "system:node:"+name {
		return forbid(a, "can only create a node CSR with CN=system:node:%s", name)
	}
	return nil
}

func parseCSR(request []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// podCertificate: a node asks for certificates of pods that run on it, as they are.
func (n *nodeRestriction) podCertificate(ctx context.Context, name string, a *seams.Attributes) error {
	req, ok := a.Object.(*certificatesv1.PodCertificateRequest)
	if !ok || a.Operation != seams.Create || a.Subresource != "" {
		return forbid(a, "unexpected operation %v", a.Operation)
	}
	s := &req.Spec
	if string(s.NodeName) != name {
		return forbid(a, "PodCertificateRequest.Spec.NodeName=%q, which is not the requesting node %q", s.NodeName, name)
	}
	pod, err := n.getPod(ctx, a.Namespace, s.PodName)
	if err != nil {
		return fmt.Errorf("while retrieving pod %q named in the PodCertificateRequest: %w", a.Namespace+"/"+s.PodName, err)
	}
	host, err := lookup.CachedOrFresh[*corev1.Node](ctx, n.caches, nodes, "", name)
	if err != nil {
		return err
	}
	account, err := lookup.CachedOrFresh[*corev1.ServiceAccount](ctx, n.caches, accounts, a.Namespace, s.ServiceAccountName)
	if err != nil {
		return err
	}
	who := a.Namespace + "/" + s.PodName
	switch {
	case host.UID != s.NodeUID:
		return forbid(a, "PodCertificateRequest for pod %q names node UID %q, inconsistent with the running node (%q)", who, s.NodeUID, host.UID)
	case pod.UID != s.PodUID:
		return forbid(a, "PodCertificateRequest for pod %q contains pod UID (%q) which differs from running pod %q", who, s.PodUID, pod.UID)
	case pod.Spec.NodeName != name:
		return forbid(a, "pod %q is not running on node %q named in the PodCertificateRequest", who, name)
	case isMirror(pod):
		return forbid(a, "pod %q is a mirror pod", who)
	case pod.Spec.ServiceAccountName != s.ServiceAccountName:
		return forbid(a, "PodCertificateRequest for pod %q contains serviceAccountName (%q) that differs from running pod (%q)", who, s.ServiceAccountName, pod.Spec.ServiceAccountName)
	case account.UID != s.ServiceAccountUID:
		return forbid(a, "PodCertificateRequest for pod %q names service account UID %q, which differs from the running service account (%q)", who, s.ServiceAccountUID, account.UID)
	}
	for _, v := range pod.Spec.Volumes {
		if v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(p corev1.VolumeProjection) bool {
			return p.PodCertificate != nil && p.PodCertificate.SignerName == s.SignerName
		}) {
			return nil
		}
	}
	decision, _, _ := n.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: a.User, Verb: "request-serviceaccounts-podcertificate-signer", APIGroup: a.Resource.Group, APIVersion: a.Resource.Version,
		Resource: strings.ReplaceAll(s.SignerName, "/", ":"), Namespace: a.Namespace, Name: s.ServiceAccountName, ResourceRequest: true,
	})
	if decision != authorizer.DecisionAllow {
		return forbid(a, "pod %q does not mount a podCertificate projected volume for signer %q", who, s.SignerName)
	}
	return nil
}
