package storageprotection

import (
	"slices"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
)

func class(deleting bool, finalizers ...string) *storagev1.VolumeAttributesClass {
	c := &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold", Finalizers: finalizers}, DriverName: "example.com"}
	if deleting {
		now := metav1.Now()
		c.DeletionTimestamp = &now
	}
	return c
}

// protected runs the controller until it rests and says whether the class has the finalizer.
func protected(t *testing.T, e *controllertest.Env) bool {
	t.Helper()
	got, err := e.Client.StorageV1().VolumeAttributesClasses().Get(t.Context(), "gold", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Contains(got.Finalizers, attributesFinalizer)
}

func TestAttributesClasses(t *testing.T) {
	gold := "gold"
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: corev1.PersistentVolumeSpec{VolumeAttributesClassName: &gold}}
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns"}}
		change(c)
		return c
	}
	asked := claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeAttributesClassName = &gold })
	current := claim(func(c *corev1.PersistentVolumeClaim) { c.Status.CurrentVolumeAttributesClassName = &gold })
	target := claim(func(c *corev1.PersistentVolumeClaim) {
		c.Status.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{TargetVolumeAttributesClassName: gold}
	})
	other := claim(func(*corev1.PersistentVolumeClaim) {})
	for name, test := range map[string]struct {
		class  *storagev1.VolumeAttributesClass
		volume *corev1.PersistentVolume
		claim  *corev1.PersistentVolumeClaim
		want   bool
	}{
		"new":                     {class: class(false), want: true},
		"in use":                  {class: class(false, attributesFinalizer), claim: asked, want: true},
		"deleted, unused":         {class: class(true, attributesFinalizer, "other"), claim: other},
		"deleted, asked for":      {class: class(true, attributesFinalizer), claim: asked, want: true},
		"deleted, current":        {class: class(true, attributesFinalizer), claim: current, want: true},
		"deleted, target":         {class: class(true, attributesFinalizer), claim: target, want: true},
		"deleted, of a volume":    {class: class(true, attributesFinalizer), volume: volume, want: true},
		"deleted without its own": {class: class(true, "other")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := controllertest.New(t, test.class)
				if test.claim != nil {
					if err := e.Client.Tracker().Add(test.claim); err != nil {
						t.Fatal(err)
					}
				}
				if test.volume != nil {
					if err := e.Client.Tracker().Add(test.volume); err != nil {
						t.Fatal(err)
					}
				}
				c, err := NewAttributesClasses(e.Config)
				if err != nil {
					t.Fatal(err)
				}
				e.Start(c)
				if got := protected(t, e); got != test.want {
					t.Errorf("protected: %t, want %t", got, test.want)
				}
			})
		})
	}
}

// A class that is deleted goes when the last claim that names it takes another or goes.
func TestAttributesClassesFreed(t *testing.T) {
	gold, silver := "gold", "silver"
	for name, free := range map[string]func(*testing.T, *controllertest.Env, *corev1.PersistentVolumeClaim) error{
		"claim changes": func(t *testing.T, e *controllertest.Env, c *corev1.PersistentVolumeClaim) error {
			c.Spec.VolumeAttributesClassName = &silver
			_, err := e.Client.CoreV1().PersistentVolumeClaims("ns").Update(t.Context(), c, metav1.UpdateOptions{})
			return err
		},
		"claim goes": func(t *testing.T, e *controllertest.Env, c *corev1.PersistentVolumeClaim) error {
			return e.Client.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), c.Name, metav1.DeleteOptions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "ns"},
					Spec: corev1.PersistentVolumeClaimSpec{VolumeAttributesClassName: &gold}}
				e := controllertest.New(t, class(true, attributesFinalizer, "other"), claim)
				c, err := NewAttributesClasses(e.Config)
				if err != nil {
					t.Fatal(err)
				}
				e.Start(c)
				if !protected(t, e) {
					t.Fatal("the class lost its finalizer while a claim names it")
				}
				if err := free(t, e, claim.DeepCopy()); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				if protected(t, e) {
					t.Error("nobody names the class, yet it has its finalizer")
				}
			})
		})
	}
}
