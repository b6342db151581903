// Package ephemeralvolume makes the claims of pods' generic ephemeral volumes. They
// belong to their pods and go with them.
package ephemeralvolume

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

// Controller makes claims.
type Controller struct {
	cfg    controller.Config
	loop   *controller.Loop[controller.Key]
	pods   corelisters.PodLister
	claims corelisters.PersistentVolumeClaimLister
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	core := cfg.Informers.Core().V1()
	c := &Controller{cfg: cfg, pods: core.Pods().Lister(), claims: core.PersistentVolumeClaims().Lister()}
	c.loop = controller.NewLoop("ephemeral-volume-controller", 2, cfg.Clock, cfg.Logger, c.reconcile)
	return c, errors.Join(
		controller.Watch(c.loop, core.Pods().Informer(), controller.Handlers[*corev1.Pod]{Added: func(p *corev1.Pod) {
			for i := range p.Spec.Volumes {
				if p.Spec.Volumes[i].Ephemeral != nil {
					c.loop.Add(controller.KeyOf(p))
					return
				}
			}
		}}),
		controller.Watch(c.loop, core.PersistentVolumeClaims().Informer(), controller.Handlers[*corev1.PersistentVolumeClaim]{
			Deleted: func(pvc *corev1.PersistentVolumeClaim) {
				if ref := metav1.GetControllerOfNoCopy(pvc); ref != nil && ref.Kind == "Pod" {
					c.loop.Add(controller.Key{Namespace: pvc.Namespace, Name: ref.Name})
				}
			},
		}),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	p, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading pod: %w", err)
	}
	if p.DeletionTimestamp != nil {
		return 0, nil
	}
	for i := range p.Spec.Volumes {
		if v := &p.Spec.Volumes[i]; v.Ephemeral != nil {
			if err := c.claim(ctx, p, v); err != nil {
				c.cfg.Events.Eventf(p, corev1.EventTypeWarning, "FailedBinding", "ephemeral volume %s: %v", v.Name, err)
				return 0, err
			}
		}
	}
	return 0, nil
}

func (c *Controller) claim(ctx context.Context, p *corev1.Pod, v *corev1.Volume) error {
	name := ephemeral.VolumeClaimName(p, v)
	have, err := c.claims.PersistentVolumeClaims(p.Namespace).Get(name)
	if err == nil {
		return ephemeral.VolumeIsForPod(p, have)
	}
	if !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading claim %s: %w", name, err)
	}
	t := v.Ephemeral.VolumeClaimTemplate
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name, Labels: t.Labels, Annotations: t.Annotations,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID, Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true)}}},
		Spec: t.Spec,
	}
	_, err = c.cfg.Client.CoreV1().PersistentVolumeClaims(p.Namespace).Create(ctx, claim.DeepCopy(), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating claim %s: %w", name, err)
	}
	return nil
}
