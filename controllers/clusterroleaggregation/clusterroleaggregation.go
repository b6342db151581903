// Package clusterroleaggregation fills ClusterRoles that have an aggregationRule with the
// rules of those they select.
package clusterroleaggregation

import (
	"context"
	"fmt"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	rbaclisters "k8s.io/client-go/listers/rbac/v1"

	"github.com/skiff-k8s/skiff/api/rbac"
	"github.com/skiff-k8s/skiff/controllers/controller"
)

// Controller aggregates.
type Controller struct {
	cfg   controller.Config
	loop  *controller.Loop[controller.Key]
	roles rbaclisters.ClusterRoleLister
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	roles := cfg.Informers.Rbac().V1().ClusterRoles()
	c := &Controller{cfg: cfg, roles: roles.Lister()}
	c.loop = controller.NewLoop("clusterrole-aggregation-controller", 1, cfg.Clock, cfg.Logger, c.reconcile)
	return c, controller.Watch(c.loop, roles.Informer(), controller.OnEach(func(*rbacv1.ClusterRole) { c.wake() }))
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// wake looks at all aggregating roles: there are few, and any change may be theirs.
func (c *Controller) wake() {
	all, err := c.roles.List(labels.Everything())
	if err != nil {
		return
	}
	for _, r := range all {
		if r.AggregationRule != nil {
			c.loop.Add(controller.KeyOf(r))
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	role, err := c.roles.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading ClusterRole: %w", err)
	}
	if role.AggregationRule == nil {
		return 0, nil
	}
	all, err := c.roles.List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("listing ClusterRoles: %w", err)
	}
	rules, err := rbac.Aggregate(role, all)
	if err != nil {
		return 0, err
	}
	if equality.Semantic.DeepEqual(rules, role.Rules) {
		return 0, nil
	}
	next := role.DeepCopy()
	next.Rules = nil
	for i := range rules {
		next.Rules = append(next.Rules, *rules[i].DeepCopy())
	}
	if _, err := c.cfg.Client.RbacV1().ClusterRoles().Update(ctx, next, metav1.UpdateOptions{}); err != nil {
		return 0, fmt.Errorf("updating ClusterRole %s: %w", role.Name, err)
	}
	return 0, nil
}
