package storageprotection

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

const attributesFinalizer = "kubernetes.io/vac-protection"

// AttributesClasses protects VolumeAttributesClasses that claims or volumes name (KEP-3751).
type AttributesClasses struct {
	cfg     controller.Config
	loop    *controller.Loop[controller.Key]
	classes storagelisters.VolumeAttributesClassLister
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
}

// NewAttributesClasses makes the controller of classes.
func NewAttributesClasses(cfg controller.Config) (*AttributesClasses, error) {
	core, classes := cfg.Informers.Core().V1(), cfg.Informers.Storage().V1().VolumeAttributesClasses()
	c := &AttributesClasses{cfg: cfg, classes: classes.Lister(), claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister()}
	c.loop = controller.NewLoop("volumeattributesclass-protection-controller", 1, cfg.Clock, cfg.Logger, c.reconcile)
	return c, errors.Join(
		controller.Watch(c.loop, classes.Informer(), controller.Enqueue[*storagev1.VolumeAttributesClass](c.loop)),
		controller.Watch(c.loop, core.PersistentVolumeClaims().Informer(), freeing(c, classesOfClaim)),
		controller.Watch(c.loop, core.PersistentVolumes().Informer(), freeing(c, classesOfVolume)),
	)
}

// Run reconciles until ctx ends.
func (c *AttributesClasses) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// classesOfClaim are the classes that a claim asks for, has, and is being changed to.
func classesOfClaim(claim *corev1.PersistentVolumeClaim) []string {
	names := named(claim.Spec.VolumeAttributesClassName, claim.Status.CurrentVolumeAttributesClassName)
	if m := claim.Status.ModifyVolumeStatus; m != nil {
		names = append(names, named(&m.TargetVolumeAttributesClassName)...)
	}
	return names
}

func classesOfVolume(v *corev1.PersistentVolume) []string {
	return named(v.Spec.VolumeAttributesClassName)
}

func named(names ...*string) []string {
	var out []string
	for _, n := range names {
		if n != nil && *n != "" {
			out = append(out, *n)
		}
	}
	return out
}

// freeing looks again at the classes that an object names no longer.
func freeing[T any](c *AttributesClasses, classes func(T) []string) controller.Handlers[T] {
	return controller.Handlers[T]{
		Updated: func(old, obj T) {
			still := classes(obj)
			for _, name := range classes(old) {
				if !slices.Contains(still, name) {
					c.loop.Add(controller.Key{Name: name})
				}
			}
		},
		Deleted: func(obj T) {
			for _, name := range classes(obj) {
				c.loop.Add(controller.Key{Name: name})
			}
		},
	}
}

func (c *AttributesClasses) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	class, err := c.classes.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading class: %w", err)
	}
	finalizers, changed, err := protect(class, attributesFinalizer, func() (bool, error) { return c.used(class.Name) })
	if err != nil || !changed {
		return 0, err
	}
	next := class.DeepCopy()
	next.Finalizers = finalizers
	if _, err := c.cfg.Client.StorageV1().VolumeAttributesClasses().Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("updating finalizers of class: %w", err)
	}
	return 0, nil
}

func (c *AttributesClasses) used(name string) (bool, error) {
	claims, err := c.claims.List(labels.Everything())
	if err != nil {
		return false, fmt.Errorf("listing claims: %w", err)
	}
	volumes, err := c.volumes.List(labels.Everything())
	if err != nil {
		return false, fmt.Errorf("listing volumes: %w", err)
	}
	return slices.ContainsFunc(claims, func(claim *corev1.PersistentVolumeClaim) bool {
		return slices.Contains(classesOfClaim(claim), name)
	}) || slices.ContainsFunc(volumes, func(v *corev1.PersistentVolume) bool {
		return slices.Contains(classesOfVolume(v), name)
	}), nil
}
