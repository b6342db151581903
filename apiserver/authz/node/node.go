// Package node decides what kubelets may do: each node reads what the pods bound to it
// refer to, and writes what is its own
// (https://kubernetes.io/docs/reference/access-authn-authz/node/).
//
// Owns: the graph from objects to nodes and the decision. Must not: judge the contents of
// writes, which is NodeRestriction's.
package node

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/skiff-k8s/skiff/apiserver/authz/rbac"
)

const userPrefix = "system:node:"

// Identity says whether a user is a node, and which; name is empty for one that does not say.
func Identity(u user.Info) (name string, isNode bool) {
	if u == nil {
		return "", false
	}
	name, ok := strings.CutPrefix(u.GetName(), userPrefix)
	if !ok || !slices.Contains(u.GetGroups(), user.NodesGroup) {
		return "", false
	}
	return name, true
}

// Authorizer is the node authorizer.
type Authorizer struct {
	graph *Graph
	rules []rbacv1.PolicyRule
}

// New returns an authorizer over a graph; rules are those of system:node, which hold for
// everything that is not tied to single objects.
func New(graph *Graph, rules []rbacv1.PolicyRule) *Authorizer {
	return &Authorizer{graph: graph, rules: rules}
}

func no(reason string) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, reason, nil
}

func yes() (authorizer.Decision, string, error) { return authorizer.DecisionAllow, "", nil }

// Authorize implements authorizer.Authorizer.
func (z *Authorizer) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	node, isNode := Identity(a.GetUser())
	if !isNode {
		return no("")
	}
	if node == "" {
		return no(fmt.Sprintf("unknown node for user %q", a.GetUser().GetName()))
	}
	if a.IsResourceRequest() {
		switch a.GetAPIGroup() + "/" + a.GetResource() {
		case "/secrets":
			return z.read(node, secret, a)
		case "/configmaps":
			return z.read(node, configMap, a)
		case "/persistentvolumeclaims":
			if a.GetSubresource() == "status" {
				return z.updateStatus(node, claim, a)
			}
			return z.get(node, claim, a)
		case "/persistentvolumes":
			return z.get(node, volume, a)
		case "resource.k8s.io/resourceclaims":
			return z.get(node, resourceClaim, a)
		case "storage.k8s.io/volumeattachments":
			return z.get(node, attachment, a)
		case "/serviceaccounts":
			return z.serviceAccount(node, a)
		case "coordination.k8s.io/leases":
			return z.lease(node, a)
		case "storage.k8s.io/csinodes":
			return z.csiNode(node, a)
		case "resource.k8s.io/resourceslices":
			return z.resourceSlice(node, a)
		case "/nodes":
			return z.node(node, a)
		case "/pods":
			return z.pod(node, a)
		case "certificates.k8s.io/podcertificaterequests":
			return z.podCertificate(node, a)
		}
	}
	for i := range z.rules {
		if rbac.Allows(a, &z.rules[i]) {
			return yes()
		}
	}
	return no("")
}

// ConditionsAwareAuthorize implements authorizer.Authorizer without conditions.
func (z *Authorizer) ConditionsAwareAuthorize(ctx context.Context, a authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(z.Authorize(ctx, a))
}

// EvaluateConditions implements authorizer.Authorizer without conditions.
func (*Authorizer) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor implements authorizer.RuleResolver: what a node may do cannot be listed.
func (*Authorizer) RulesFor(_ context.Context, u user.Info, _ string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if _, isNode := Identity(u); isNode {
		return nil, nil, true, fmt.Errorf("node authorizer does not support user rule resolution")
	}
	return nil, nil, false, nil
}

func in(verb string, verbs ...string) bool { return slices.Contains(verbs, verb) }

// related allows what a path in the graph leads from to the node.
func (z *Authorizer) related(node string, k kind, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetName() == "" {
		return no("No Object name found")
	}
	if !z.graph.Related(node, ref{k, a.GetNamespace(), a.GetName()}) {
		return no(fmt.Sprintf("no relationship found between node '%s' and this object", node))
	}
	return yes()
}

func (z *Authorizer) get(node string, k kind, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() != "get" {
		return no("can only get individual resources of this type")
	}
	if a.GetSubresource() != "" {
		return no("cannot get subresource")
	}
	return z.related(node, k, a)
}

func (z *Authorizer) read(node string, k kind, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch {
	case !in(a.GetVerb(), "get", "list", "watch"):
		return no("can only read resources of this type")
	case a.GetSubresource() != "":
		return no("cannot read subresource")
	case a.GetNamespace() == "":
		return no("can only read namespaced object of this type")
	}
	return z.related(node, k, a)
}

func (z *Authorizer) updateStatus(node string, k kind, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if !in(a.GetVerb(), "update", "patch") {
		return no("can only get/update/patch this type")
	}
	return z.related(node, k, a)
}

func (z *Authorizer) serviceAccount(node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() == "get" && a.GetSubresource() == "" {
		return z.read(node, account, a)
	}
	if a.GetVerb() != "create" || a.GetName() == "" {
		return no("can only create tokens for individual service accounts")
	}
	if a.GetSubresource() != "token" {
		return no("can only create token subresource of serviceaccount")
	}
	return z.related(node, account, a)
}

func (z *Authorizer) lease(node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch {
	case !in(a.GetVerb(), "get", "create", "update", "patch", "delete"):
		return no("can only get, create, update, patch, or delete a node lease")
	case a.GetNamespace() != corev1.NamespaceNodeLease:
		return no(fmt.Sprintf("can only access leases in the %q system namespace", corev1.NamespaceNodeLease))
	case a.GetVerb() != "create" && a.GetName() != node: // a create's name is NodeRestriction's to check
		return no("can only access node lease with the same name as the requesting node")
	}
	return yes()
}

func (z *Authorizer) csiNode(node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch {
	case a.GetSubresource() == "status":
		return no("CSINode status access requires CSIVolumeHealth feature")
	case a.GetSubresource() != "":
		return no("cannot authorize CSINode subresources")
	case !in(a.GetVerb(), "get", "create", "update", "patch", "delete"):
		return no("can only get, create, update, patch, or delete a CSINode")
	case a.GetVerb() != "create" && a.GetName() != node:
		return no("can only access CSINode with the same name as the requesting node")
	}
	return yes()
}

func (z *Authorizer) resourceSlice(node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetSubresource() != "" {
		return no("cannot authorize ResourceSlice subresources")
	}
	switch a.GetVerb() {
	case "create":
		return yes()
	case "get", "update", "patch", "delete":
		return z.related(node, slice, a)
	case "watch", "list", "deletecollection":
		if selects(a, "spec.nodeName", node) {
			return yes()
		}
		return no("can only list/watch/deletecollection resourceslices with nodeName field selector")
	}
	return no("only the following verbs are allowed for a ResourceSlice: get, watch, list, create, update, patch, delete, deletecollection")
}

func (z *Authorizer) podCertificate(node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetSubresource() != "" {
		return no("nodes may not access the status subresource of PodCertificateRequests")
	}
	switch a.GetVerb() {
	case "create":
		return yes()
	case "get":
		return z.related(node, podCertificate, a)
	case "list", "watch":
		if selects(a, "spec.nodeName", node) {
			return yes()
		}
		return no("can only list/watch podcertificaterequests with nodeName field selector")
	}
	return no(fmt.Sprintf("nodes may not %s podcertificaterequests", a.GetVerb()))
}

func (z *Authorizer) node(node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch a.GetSubresource() {
	case "":
		switch a.GetVerb() {
		case "create", "update", "patch":
			return yes()
		case "get", "list", "watch":
			switch a.GetName() {
			case node:
				return yes()
			case "":
				return no(fmt.Sprintf("node '%s' cannot read all nodes, only its own Node object", node))
			}
			return no(fmt.Sprintf("node '%s' cannot read '%s', only its own Node object", node, a.GetName()))
		}
	case "status":
		if in(a.GetVerb(), "update", "patch") {
			return yes()
		}
	}
	return no("")
}

func (z *Authorizer) pod(node string, a authorizer.Attributes) (authorizer.Decision, string, error) {
	switch a.GetSubresource() {
	case "":
		switch a.GetVerb() {
		case "get":
			return z.get(node, pod, a)
		case "list", "watch":
			if selects(a, "spec.nodeName", node) {
				return yes()
			}
			if a.GetName() != "" {
				return z.related(node, pod, a)
			}
			return no("can only list/watch pods with spec.nodeName field selector")
		case "create", "delete":
			return yes()
		}
	case "status":
		if in(a.GetVerb(), "update", "patch") {
			return yes()
		}
	case "eviction":
		if a.GetVerb() == "create" {
			return yes()
		}
	}
	return no("")
}

// selects says whether the request's field selector pins a field to a value (KEP-4601).
func selects(a authorizer.Attributes, field, value string) bool {
	reqs, err := a.GetFieldSelector()
	if err != nil {
		return false
	}
	for _, r := range reqs {
		if r.Field == field && r.Value == value && (r.Operator == selection.Equals || r.Operator == selection.DoubleEquals) {
			return true
		}
	}
	return false
}
