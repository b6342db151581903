package bootstrap

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

var clusterRoles = schema.GroupResource{Group: rbacv1.GroupName, Resource: "clusterroles"}

// Aggregate gathers the rules for a role with an aggregation rule from all ClusterRoles,
// in order of their names. A selector that does not parse selects nothing.
func Aggregate(role *rbacv1.ClusterRole, all []*rbacv1.ClusterRole) []rbacv1.PolicyRule {
	sorted := slices.SortedFunc(slices.Values(all), func(a, b *rbacv1.ClusterRole) int { return strings.Compare(a.Name, b.Name) })
	rules := []rbacv1.PolicyRule{}
	for i := range role.AggregationRule.ClusterRoleSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&role.AggregationRule.ClusterRoleSelectors[i])
		if err != nil {
			continue
		}
		for _, r := range sorted {
			if r.Name == role.Name || !selector.Matches(labels.Set(r.Labels)) {
				continue
			}
			for _, rule := range r.Rules {
				if !slices.ContainsFunc(rules, func(have rbacv1.PolicyRule) bool { return apiequality.Semantic.DeepEqual(have, rule) }) {
					rules = append(rules, rule)
				}
			}
		}
	}
	return rules
}

// Aggregator keeps the rules of ClusterRoles that gather others
// (https://kubernetes.io/docs/reference/access-authn-authz/rbac/#aggregated-clusterroles).
// Several at once, ours or upstream's controller, agree: the result follows from the roles alone.
type Aggregator struct {
	resource cacher.Resource
	log      *slog.Logger

	mu      sync.Mutex
	roles   map[string]*rbacv1.ClusterRole
	changed chan struct{} // holds one token
}

// NewAggregator returns an Aggregator that has not started.
func NewAggregator(caches lookup.Caches, log *slog.Logger) (*Aggregator, error) {
	r, err := lookup.Resource(caches, clusterRoles)
	if err != nil {
		return nil, err
	}
	return &Aggregator{resource: r, log: log, changed: make(chan struct{}, 1)}, nil
}

// Run aggregates until ctx ends.
func (a *Aggregator) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	f := lookup.NewFollower(a.resource, a, a.log)
	g.Go(func() error { return f.Run(ctx) })
	g.Go(func() error {
		retry := time.NewTimer(time.Hour)
		defer retry.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-a.changed:
			case <-retry.C:
			}
			if err := a.sync(ctx); err != nil && ctx.Err() == nil {
				a.log.Warn("aggregate cluster roles", "err", err)
				retry.Reset(time.Second)
			}
		}
	})
	return g.Wait()
}

func (a *Aggregator) sync(ctx context.Context) error {
	a.mu.Lock()
	all := make([]*rbacv1.ClusterRole, 0, len(a.roles))
	for _, r := range a.roles {
		all = append(all, r)
	}
	a.mu.Unlock()
	for _, r := range all {
		if r.AggregationRule == nil {
			continue
		}
		rules := Aggregate(r, all)
		if apiequality.Semantic.DeepEqual(rules, r.Rules) {
			continue
		}
		_, err := a.resource.Update(ctx, "", r.Name, false, cacher.Preconditions{UID: &r.UID},
			func(current cacher.Object) (runtime.Object, time.Duration, error) {
				next := current.Runtime().DeepCopyObject().(*rbacv1.ClusterRole)
				next.Rules = rules
				return next, 0, nil
			})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

func (a *Aggregator) note() {
	select {
	case a.changed <- struct{}{}:
	default:
	}
}

// Replace implements lookup.Index.
func (a *Aggregator) Replace(objs []cacher.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.roles = make(map[string]*rbacv1.ClusterRole, len(objs))
	for _, o := range objs {
		a.roles[o.Meta().GetName()] = o.Runtime().(*rbacv1.ClusterRole)
	}
	a.note()
}

// Set implements lookup.Index.
func (a *Aggregator) Set(o cacher.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.roles[o.Meta().GetName()] = o.Runtime().(*rbacv1.ClusterRole)
	a.note()
}

// Delete implements lookup.Index.
func (a *Aggregator) Delete(o cacher.Object) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.roles, o.Meta().GetName())
	a.note()
}
