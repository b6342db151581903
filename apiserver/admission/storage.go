package admission

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

var (
	storageClasses = schema.GroupResource{Group: storagev1.GroupName, Resource: "storageclasses"}
	attributes     = schema.GroupResource{Group: storagev1.GroupName, Resource: "volumeattributesclasses"}
	ingresses      = schema.GroupResource{Group: networkingv1.GroupName, Resource: "ingresses"}
	ingressClasses = schema.GroupResource{Group: networkingv1.GroupName, Resource: "ingressclasses"}
)

// newestMarked is the newest object with one of the annotations set to true; of several from
// one moment the first by name. nil if none is marked.
func newestMarked[T interface {
	runtime.Object
	metav1.Object
}](ctx context.Context, caches lookup.Caches, gr schema.GroupResource, annotations ...string) (found T, ok bool, err error) {
	all, err := lookup.CachedList[T](ctx, caches, gr, "")
	if err != nil {
		return found, false, err
	}
	all = slices.DeleteFunc(all, func(o T) bool {
		return !slices.ContainsFunc(annotations, func(k string) bool { return o.GetAnnotations()[k] == "true" })
	})
	if len(all) == 0 {
		return found, false, nil
	}
	return slices.MinFunc(all, func(a, b T) int {
		at, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
		return cmp.Or(bt.Compare(at.Time), cmp.Compare(a.GetName(), b.GetName()))
	}), true, nil
}

// defaultStorageClass gives claims without class the default one.
type defaultStorageClass struct {
	mutating
	caches lookup.Caches
}

func (d *defaultStorageClass) Admit(ctx context.Context, a *seams.Attributes) error {
	claim, ok := a.Object.(*corev1.PersistentVolumeClaim)
	if !ok || a.Operation != seams.Create || !is(a, claims, "") {
		return nil
	}
	if _, has := claim.Annotations[corev1.BetaStorageClassAnnotation]; has || claim.Spec.StorageClassName != nil {
		return nil
	}
	class, ok, err := newestMarked[*storagev1.StorageClass](ctx, d.caches, storageClasses,
		"storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class")
	if err != nil {
		return forbid(a, "%w", err)
	}
	if ok {
		name := class.Name
		claim.Spec.StorageClassName = &name
	}
	return nil
}

// defaultIngressClass gives Ingresses without class the default one.
type defaultIngressClass struct {
	mutating
	caches lookup.Caches
}

func (d *defaultIngressClass) Admit(ctx context.Context, a *seams.Attributes) error {
	ingress, ok := a.Object.(*networkingv1.Ingress)
	if !ok || a.Operation != seams.Create || !is(a, ingresses, "") || ingress.Spec.IngressClassName != nil {
		return nil
	}
	if _, has := ingress.Annotations["kubernetes.io/ingress.class"]; has {
		return nil
	}
	class, ok, err := newestMarked[*networkingv1.IngressClass](ctx, d.caches, ingressClasses, networkingv1.AnnotationIsDefaultIngressClass)
	if err != nil {
		return forbid(a, "%w", err)
	}
	if ok {
		name := class.Name
		ingress.Spec.IngressClassName = &name
	}
	return nil
}

// storageProtection keeps volumes and claims that are in use from vanishing, by
// finalizers that controllers take off.
type storageProtection struct{ mutating }

func (*storageProtection) Admit(_ context.Context, a *seams.Attributes) error {
	if a.Operation != seams.Create || a.Subresource != "" {
		return nil
	}
	finalizer := ""
	switch a.Resource.GroupResource() {
	case volumes:
		finalizer = "kubernetes.io/pv-protection"
	case claims:
		finalizer = "kubernetes.io/pvc-protection"
	case attributes:
		finalizer = "kubernetes.io/vac-protection"
	default:
		return nil
	}
	m, ok := a.Object.(metav1.Object)
	if ok && !slices.Contains(m.GetFinalizers(), finalizer) {
		m.SetFinalizers(append(m.GetFinalizers(), finalizer))
	}
	return nil
}

// claimResize lets claims grow only where their class can.
type claimResize struct {
	validating
	caches lookup.Caches
}

func (c *claimResize) Validate(ctx context.Context, a *seams.Attributes) error {
	claim, ok := a.Object.(*corev1.PersistentVolumeClaim)
	old, isUpdate := a.OldObject.(*corev1.PersistentVolumeClaim)
	if !ok || !isUpdate || a.Operation != seams.Update || !is(a, claims, "") {
		return nil
	}
	if claim.Spec.Resources.Requests.Storage().Cmp(*old.Spec.Resources.Requests.Storage()) <= 0 {
		return nil
	}
	if old.Status.Phase != corev1.ClaimBound {
		return forbid(a, "Only bound persistent volume claims can be expanded")
	}
	classOf := func(c *corev1.PersistentVolumeClaim) string {
		if name, ok := c.Annotations[corev1.BetaStorageClassAnnotation]; ok {
			return name
		}
		if c.Spec.StorageClassName != nil {
			return *c.Spec.StorageClassName
		}
		return ""
	}
	if name := classOf(claim); name != "" && name == classOf(old) {
		class, err := lookup.CachedOrFresh[*storagev1.StorageClass](ctx, c.caches, storageClasses, "", name)
		if err == nil && class.AllowVolumeExpansion != nil && *class.AllowVolumeExpansion {
			return nil
		}
	}
	return forbid(a, "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize")
}
