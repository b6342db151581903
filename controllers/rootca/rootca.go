// Package rootca publishes the API server's CA bundle as the ConfigMap kube-root-ca.crt
// in every active namespace, where pods' service account volumes take it from.
package rootca

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

const (
	name = "kube-root-ca.crt"
	// The annotation kubernetes.io/description has upstream's words, so that neither rewrites the other's.
	description = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints such as the internal service IP or kubernetes.default.svc. " +
		"No other usage is guaranteed across distributions of Kubernetes clusters."
)

// Config adds the bundle to publish, PEM.
type Config struct {
	controller.Config
	RootCA []byte
}

// Controller publishes the bundle.
type Controller struct {
	cfg        Config
	data       map[string]string
	loop       *controller.Loop[controller.Key]
	namespaces corelisters.NamespaceLister
	configMaps corelisters.ConfigMapLister
}

// New makes the controller.
func New(cfg Config) (*Controller, error) {
	if len(cfg.RootCA) == 0 {
		return nil, errors.New("root-ca-certificate-publisher-controller: RootCA is empty; give the API server's CA certificate as PEM")
	}
	namespaces := cfg.Informers.Core().V1().Namespaces()
	configMaps := cfg.Informers.Core().V1().ConfigMaps()
	c := &Controller{cfg: cfg, data: map[string]string{"ca.crt": string(cfg.RootCA)}, namespaces: namespaces.Lister(), configMaps: configMaps.Lister()}
	c.loop = controller.NewLoop("root-ca-certificate-publisher-controller", 1, cfg.Clock, cfg.Logger, c.reconcile)
	return c, errors.Join(
		controller.Watch(c.loop, namespaces.Informer(), controller.OnEach(func(ns *corev1.Namespace) {
			c.loop.Add(controller.Key{Name: ns.Name})
		})),
		controller.Watch(c.loop, configMaps.Informer(), controller.OnEach(func(cm *corev1.ConfigMap) {
			if cm.Name == name {
				c.loop.Add(controller.Key{Name: cm.Namespace})
			}
		})),
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
	client := c.cfg.Client.CoreV1().ConfigMaps(ns.Name)
	current, err := c.configMaps.ConfigMaps(ns.Name).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: ns.Name, Name: name,
				Annotations: map[string]string{"kubernetes.io/description": description},
			},
			Data: c.data,
		}, metav1.CreateOptions{})
	case err != nil:
	case maps.Equal(current.Data, c.data) && current.Annotations["kubernetes.io/description"] == description:
		return 0, nil
	default:
		next := current.DeepCopy()
		next.Data = maps.Clone(c.data)
		if next.Annotations == nil {
			next.Annotations = map[string]string{}
		}
		next.Annotations["kubernetes.io/description"] = description
		_, err = client.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err == nil || apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return 0, nil
	}
	return 0, fmt.Errorf("publishing ConfigMap %s/%s: %w", ns.Name, name, err)
}
