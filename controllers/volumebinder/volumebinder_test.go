package volumebinder_test

import (
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
	"github.com/skiff-k8s/skiff/controllers/volumebinder"
)

type env struct {
	*testing.T
	*controllertest.Env
}

func start(t *testing.T) env {
	t.Helper()
	e := controllertest.New(t)
	c, err := volumebinder.New(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	e.Start(c)
	return env{t, e}
}

func (e env) volume(name, size, class string, change ...func(*corev1.PersistentVolume)) {
	e.Helper()
	v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: corev1.PersistentVolumeSpec{
		Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}, StorageClassName: class,
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
		VolumeMode:             ptr.To(corev1.PersistentVolumeFilesystem),
		PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/v"}},
	}}
	for _, f := range change {
		f(v)
	}
	if _, err := e.Client.CoreV1().PersistentVolumes().Create(e.Context(), v, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
}

func (e env) claim(name, size, class string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	e.Helper()
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, StorageClassName: &class, VolumeMode: ptr.To(corev1.PersistentVolumeFilesystem),
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(size)}},
	}}
	for _, f := range change {
		f(c)
	}
	c, err := e.Client.CoreV1().PersistentVolumeClaims("ns").Create(e.Context(), c, metav1.CreateOptions{})
	if err != nil {
		e.Fatal(err)
	}
	return c
}

func (e env) wantVolume(name string, phase corev1.PersistentVolumePhase, claim string) {
	e.Helper()
	v, err := e.Client.CoreV1().PersistentVolumes().Get(e.Context(), name, metav1.GetOptions{})
	if err != nil {
		e.Fatal(err)
	}
	got := ""
	if r := v.Spec.ClaimRef; r != nil {
		got = r.Name
	}
	if v.Status.Phase != phase || got != claim {
		e.Errorf("volume %s is %q for claim %q, want %q for %q", name, v.Status.Phase, got, phase, claim)
	}
}

func TestBinding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := start(t)
		e.volume("large", "10Gi", "a")
		e.volume("small", "2Gi", "a")
		e.volume("other", "1Gi", "b")
		e.volume("kept", "1Gi", "a", func(v *corev1.PersistentVolume) {
			v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "its"}
		})
		e.Settle()
		for _, v := range []string{"large", "small", "other"} {
			e.wantVolume(v, corev1.VolumeAvailable, "")
		}
		e.claim("c", "1Gi", "a") // the smallest that is enough, of its class, kept for nobody
		e.claim("its", "1Gi", "a")
		e.claim("huge", "100Gi", "a")
		e.Settle()
		e.wantVolume("small", corev1.VolumeBound, "c")
		e.wantVolume("kept", corev1.VolumeBound, "its")
		e.wantVolume("large", corev1.VolumeAvailable, "")
		e.wantVolume("other", corev1.VolumeAvailable, "")
		huge, err := e.Client.CoreV1().PersistentVolumeClaims("ns").Get(t.Context(), "huge", metav1.GetOptions{})
		if err != nil || huge.Status.Phase != corev1.ClaimPending || huge.Spec.VolumeName != "" {
			t.Errorf("a claim greater than all there is: %v, %v", huge.Status.Phase, err)
		}
		if err := e.Client.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		e.Settle()
		e.wantVolume("small", corev1.VolumeReleased, "c")
	})
}

// A claim may go before it is bound to the volume that a provisioner makes for it. The volume
// is then released, whichever of the two is heard of first.
func TestClaimThatGoesBeforeItsVolumeIsBound(t *testing.T) {
	for name, order := range map[string]func(e env, volume, gone func()){
		"volume first": func(_ env, volume, gone func()) { volume(); gone() },
		"claim first":  func(_ env, volume, gone func()) { gone(); volume() },
		"long after":   func(e env, volume, gone func()) { volume(); e.Settle(); gone() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := start(t)
				leaving := metav1.Now()
				c := e.claim("c", "1Gi", "a", func(c *corev1.PersistentVolumeClaim) {
					c.DeletionTimestamp, c.Finalizers = &leaving, []string{"kubernetes.io/pvc-protection"}
				})
				e.Settle()
				order(e, func() {
					e.volume("v", "1Gi", "a", func(v *corev1.PersistentVolume) {
						v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "c", UID: c.UID}
					})
				}, func() {
					if err := e.Client.CoreV1().PersistentVolumeClaims("ns").Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
						t.Fatal(err)
					}
				})
				e.Settle()
				e.wantVolume("v", corev1.VolumeReleased, "c")
			})
		})
	}
}
