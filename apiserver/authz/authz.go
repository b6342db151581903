// Package authz decides what a user may do: members of system:masters everything, nodes
// by what is bound to them, everyone by RBAC.
//
// Owns: the chain of authorizers and the denial's message. Must not: know who the user
// is by other means than authentication's answer, or look at request bodies.
package authz

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"

	"golang.org/x/sync/errgroup"
	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/skiff-k8s/skiff/apiserver/authz/node"
	"github.com/skiff-k8s/skiff/apiserver/authz/rbac"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
	"github.com/skiff-k8s/skiff/component"
)

// Config says what to decide by.
type Config struct {
	Caches lookup.Caches
	// NodeRules are the rules of the ClusterRole system:node (bootstrap.NodeRules).
	NodeRules []rbacv1.PolicyRule
	Log       *slog.Logger
}

// Authorizer is the API server's authorizer. Until it is ready it allows only system:masters.
type Authorizer struct {
	caches    lookup.Caches
	rbac      *rbac.Index
	node      *node.Authorizer
	followers []*lookup.Follower
}

// New builds the authorizer; Run feeds it.
func New(c Config) (*Authorizer, error) {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	x, g := rbac.NewIndex(), node.NewGraph()
	a := &Authorizer{caches: c.Caches, rbac: x, node: node.New(g, c.NodeRules)}
	for _, f := range []struct {
		group, resource string
		index           lookup.Index
		optional        bool
	}{
		{rbacv1.GroupName, "clusterroles", x.ClusterRoles(), false},
		{rbacv1.GroupName, "clusterrolebindings", x.ClusterRoleBindings(), false},
		{rbacv1.GroupName, "roles", x.Roles(), false},
		{rbacv1.GroupName, "rolebindings", x.RoleBindings(), false},
		{"", "pods", g.Pods(), true},
		{"", "persistentvolumes", g.Volumes(), true},
		{storagev1.GroupName, "volumeattachments", g.Attachments(), true},
		{resourcev1.GroupName, "resourceslices", g.ResourceSlices(), true},
		{certificatesv1.GroupName, "podcertificaterequests", g.PodCertificates(), true},
	} {
		r, err := lookup.Resource(c.Caches, schema.GroupResource{Group: f.group, Resource: f.resource})
		if err != nil {
			if f.optional {
				continue // a resource that is not served relates nothing
			}
			return nil, err
		}
		a.followers = append(a.followers, lookup.NewFollower(r, f.index, c.Log.With("resource", f.resource)))
	}
	return a, nil
}

// Run keeps the indexes up to date until ctx ends.
func (a *Authorizer) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, f := range a.followers {
		g.Go(func() error { return f.Run(ctx) })
	}
	return g.Wait()
}

// WaitReady blocks until every role, binding and relation is known.
func (a *Authorizer) WaitReady(ctx context.Context) error {
	for _, f := range a.followers {
		select {
		case <-f.Synced():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// Authorize implements authorizer.Authorizer.
func (a *Authorizer) Authorize(ctx context.Context, r authorizer.Attributes) (authorizer.Decision, string, error) {
	if u := r.GetUser(); u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	d, nodeReason, err := a.node.Authorize(ctx, r)
	if d != authorizer.DecisionNoOpinion || err != nil {
		return d, nodeReason, err
	}
	d, reason, err := a.rbac.Authorize(ctx, r)
	if d == authorizer.DecisionAllow {
		return d, reason, err
	}
	var said []string
	if nodeReason != "" {
		said = append(said, "node: "+nodeReason)
	}
	if reason != "" {
		said = append(said, "rbac: "+reason)
	}
	return d, strings.Join(said, "\n"), err
}

// ConditionsAwareAuthorize implements authorizer.Authorizer without conditions.
func (a *Authorizer) ConditionsAwareAuthorize(ctx context.Context, r authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, r))
}

// EvaluateConditions implements authorizer.Authorizer without conditions.
func (*Authorizer) EvaluateConditions(context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// RulesFor implements authorizer.RuleResolver.
func (a *Authorizer) RulesFor(ctx context.Context, u user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	if u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup) {
		all := []string{"*"}
		return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: all, APIGroups: all, Resources: all}},
			[]authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{Verbs: all, NonResourceURLs: all}}, false, nil
	}
	_, _, incomplete, nodeErr := a.node.RulesFor(ctx, u, namespace)
	resource, nonResource, more, err := a.rbac.RulesFor(ctx, u, namespace)
	return resource, nonResource, incomplete || more, errors.Join(nodeErr, err)
}

// Escalation is the admission check of writes to roles and bindings.
func (a *Authorizer) Escalation() seams.Admission {
	return rbac.NewEscalation(a.rbac, a, a.caches)
}

var (
	_ authorizer.Authorizer   = (*Authorizer)(nil)
	_ authorizer.RuleResolver = (*Authorizer)(nil)
	_ component.Waiter        = (*Authorizer)(nil)
)
