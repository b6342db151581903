// Package storageprotection takes the finalizers kubernetes.io/pvc-protection,
// kubernetes.io/pv-protection and kubernetes.io/vac-protection off claims, volumes and
// VolumeAttributesClasses that nobody uses any more. Admission puts them on.
package storageprotection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-helpers/storage/ephemeral"

	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

const (
	claimFinalizer  = "kubernetes.io/pvc-protection"
	volumeFinalizer = "kubernetes.io/pv-protection"
)

// protect decides which finalizers an object has next: ours from its first day, and
// not any longer once it is being deleted and nobody uses it. It does not change the object.
func protect(obj metav1.Object, finalizer string, used func() (bool, error)) (next []string, changed bool, err error) {
	has, deleting := slices.Contains(obj.GetFinalizers(), finalizer), obj.GetDeletionTimestamp() != nil
	switch {
	case !deleting && !has:
		return append(slices.Clone(obj.GetFinalizers()), finalizer), true, nil
	case deleting && has:
		if used, err := used(); err != nil || used {
			return nil, false, err
		}
		return slices.DeleteFunc(slices.Clone(obj.GetFinalizers()), func(f string) bool { return f == finalizer }), true, nil
	}
	return nil, false, nil
}

// Claims protects PersistentVolumeClaims that pods use.
type Claims struct {
	cfg    controller.Config
	loop   *controller.Loop[controller.Key]
	claims corelisters.PersistentVolumeClaimLister
	pods   corelisters.PodLister
}

// NewClaims makes the controller of claims.
func NewClaims(cfg controller.Config) (*Claims, error) {
	core := cfg.Informers.Core().V1()
	c := &Claims{cfg: cfg, claims: core.PersistentVolumeClaims().Lister(), pods: core.Pods().Lister()}
	c.loop = controller.NewLoop("persistentvolumeclaim-protection-controller", 1, cfg.Clock, cfg.Logger, c.reconcile)
	return c, errors.Join(
		controller.Watch(c.loop, core.PersistentVolumeClaims().Informer(), controller.Enqueue[*corev1.PersistentVolumeClaim](c.loop)),
		controller.Watch(c.loop, core.Pods().Informer(), controller.Handlers[*corev1.Pod]{
			Updated: func(old, p *corev1.Pod) {
				if ownership.Ended(p) && !ownership.Ended(old) {
					c.freed(p)
				}
			},
			Deleted: c.freed,
		}),
	)
}

// Run reconciles until ctx ends.
func (c *Claims) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// claimsOf are the names of the claims that a pod uses.
func claimsOf(p *corev1.Pod) []string {
	var out []string
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		switch {
		case v.PersistentVolumeClaim != nil:
			out = append(out, v.PersistentVolumeClaim.ClaimName)
		case v.Ephemeral != nil:
			out = append(out, ephemeral.VolumeClaimName(p, v))
		}
	}
	return out
}

func (c *Claims) freed(p *corev1.Pod) {
	for _, name := range claimsOf(p) {
		c.loop.Add(controller.Key{Namespace: p.Namespace, Name: name})
	}
}

func (c *Claims) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	claim, err := c.claims.PersistentVolumeClaims(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading claim: %w", err)
	}
	finalizers, changed, err := protect(claim, claimFinalizer, func() (bool, error) { return c.used(ctx, claim) })
	if err != nil || !changed {
		return 0, err
	}
	next := claim.DeepCopy()
	next.Finalizers = finalizers
	client := c.cfg.Client.CoreV1().PersistentVolumeClaims(key.Namespace)
	if _, err := client.Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("updating finalizers of claim: %w", err)
	}
	return 0, nil
}

// used asks the cache, then the server, which may know of a newer pod.
func (c *Claims) used(ctx context.Context, claim *corev1.PersistentVolumeClaim) (bool, error) {
	uses := func(p *corev1.Pod) bool {
		return !ownership.Ended(p) && p.Spec.NodeName != "" && slices.Contains(claimsOf(p), claim.Name)
	}
	cached, err := c.pods.Pods(claim.Namespace).List(labels.Everything())
	if err != nil {
		return false, fmt.Errorf("listing pods: %w", err)
	}
	if slices.ContainsFunc(cached, uses) {
		return true, nil
	}
	live, err := c.cfg.Client.CoreV1().Pods(claim.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, fmt.Errorf("listing pods: %w", err)
	}
	for i := range live.Items {
		if uses(&live.Items[i]) {
			return true, nil
		}
	}
	return false, nil
}

// Volumes protects PersistentVolumes that are bound to claims.
type Volumes struct {
	cfg     controller.Config
	loop    *controller.Loop[controller.Key]
	volumes corelisters.PersistentVolumeLister
}

// NewVolumes makes the controller of volumes.
func NewVolumes(cfg controller.Config) (*Volumes, error) {
	volumes := cfg.Informers.Core().V1().PersistentVolumes()
	c := &Volumes{cfg: cfg, volumes: volumes.Lister()}
	c.loop = controller.NewLoop("persistentvolume-protection-controller", 1, cfg.Clock, cfg.Logger, c.reconcile)
	return c, controller.Watch(c.loop, volumes.Informer(), controller.Enqueue[*corev1.PersistentVolume](c.loop))
}

// Run reconciles until ctx ends.
func (c *Volumes) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Volumes) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	v, err := c.volumes.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading volume: %w", err)
	}
	finalizers, changed, err := protect(v, volumeFinalizer, func() (bool, error) { return v.Status.Phase == corev1.VolumeBound, nil })
	if err != nil || !changed {
		return 0, err
	}
	next := v.DeepCopy()
	next.Finalizers = finalizers
	if _, err := c.cfg.Client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("updating finalizers of volume: %w", err)
	}
	return 0, nil
}
