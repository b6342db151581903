// Package serviceaccount sees to it that every active namespace has the ServiceAccount
// named default. Must not: make tokens.
package serviceaccount

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

const name = "default"

// Controller makes default ServiceAccounts.
type Controller struct {
	cfg        controller.Config
	loop       *controller.Loop[controller.Key]
	namespaces corelisters.NamespaceLister
	accounts   corelisters.ServiceAccountLister
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	namespaces := cfg.Informers.Core().V1().Namespaces()
	accounts := cfg.Informers.Core().V1().ServiceAccounts()
	c := &Controller{cfg: cfg, namespaces: namespaces.Lister(), accounts: accounts.Lister()}
	c.loop = controller.NewLoop("serviceaccount-controller", 1, cfg.Clock, cfg.Logger, c.reconcile)
	return c, errors.Join(
		controller.Watch(c.loop, namespaces.Informer(), controller.OnEach(func(ns *corev1.Namespace) {
			c.loop.Add(controller.Key{Name: ns.Name})
		})),
		controller.Watch(c.loop, accounts.Informer(), controller.Handlers[*corev1.ServiceAccount]{
			Deleted: func(sa *corev1.ServiceAccount) { c.loop.Add(controller.Key{Name: sa.Namespace}) },
		}),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	ns, err := c.namespaces.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading namespace: %w", err)
	}
	if ns.Status.Phase == corev1.NamespaceTerminating || ns.DeletionTimestamp != nil {
		return 0, nil
	}
	if _, err := c.accounts.ServiceAccounts(ns.Name).Get(name); err == nil || !apierrors.IsNotFound(err) {
		return 0, err
	}
	sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: name}}
	_, err = c.cfg.Client.CoreV1().ServiceAccounts(ns.Name).Create(ctx, sa, metav1.CreateOptions{})
	if err == nil || apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return 0, nil
	}
	return 0, fmt.Errorf("creating ServiceAccount %s/%s: %w", ns.Name, name, err)
}
