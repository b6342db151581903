package criconfig

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func profile(kind corev1.AppArmorProfileType, name string) *corev1.AppArmorProfile {
	p := &corev1.AppArmorProfile{Type: kind}
	if name != "" {
		p.LocalhostProfile = &name
	}
	return p
}

func TestAppArmor(t *testing.T) {
	const local, runtime, unconfined = corev1.AppArmorProfileTypeLocalhost, corev1.AppArmorProfileTypeRuntimeDefault, corev1.AppArmorProfileTypeUnconfined
	no := errors.New("not here")
	for what, c := range map[string]struct {
		pod, container *corev1.AppArmorProfile
		annotation     string
		old            string // what CRI gets, in the field that has both type and name
		refused        string // by a host that has AppArmor
		uses           bool
	}{
		"nothing":                      {},
		"of the pod":                   {pod: profile(runtime, ""), old: "runtime/default", uses: true},
		"the container's own":          {pod: profile(runtime, ""), container: profile(local, "x"), old: "localhost/x", uses: true},
		"unconfined":                   {container: profile(unconfined, ""), old: "unconfined"},
		"unconfined in a confined pod": {pod: profile(runtime, ""), container: profile(unconfined, ""), old: "unconfined", uses: true},
		"annotation":                   {annotation: "localhost/y", old: "localhost/y", uses: true},
		"annotation over the pod":      {pod: profile(unconfined, ""), annotation: "runtime/default", old: "runtime/default", uses: true},
		"annotation under the field":   {container: profile(local, "x"), annotation: "unconfined", old: "localhost/x", uses: true},
		"annotation of no meaning":     {pod: profile(unconfined, ""), annotation: "what", old: "unconfined", uses: true},
		"annotation of no name":        {annotation: "localhost/ ", old: "localhost/ ", uses: true, refused: "invalid empty AppArmor profile name"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
		if c.pod != nil {
			pod.Spec.SecurityContext = &corev1.PodSecurityContext{AppArmorProfile: c.pod}
		}
		if c.container != nil {
			pod.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{AppArmorProfile: c.container}
		}
		if c.annotation != "" {
			pod.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+"c"] = c.annotation
		}
		p, old, err := appArmor(pod, &pod.Spec.Containers[0])
		if old != c.old || err != nil || (p == nil) != (old == "") {
			t.Errorf("%s: CRI gets %v and %q (%v), want %q", what, p, old, err, c.old)
		}
		if err := CheckAppArmor(pod, no); (err == no) != c.uses || err != nil && err != no {
			t.Errorf("%s: without AppArmor %v", what, err)
		}
		if err := CheckAppArmor(pod, nil); (err != nil) != (c.refused != "") {
			t.Errorf("%s: with AppArmor %v, want %q", what, err, c.refused)
		}
	}
	// Any kind of container counts.
	pod := &corev1.Pod{Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "i", SecurityContext: &corev1.SecurityContext{AppArmorProfile: profile(local, "x")}}}}}
	if err := CheckAppArmor(pod, no); err != no {
		t.Errorf("an init container's: %v", err)
	}
	ephemeral := corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", SecurityContext: &corev1.SecurityContext{AppArmorProfile: &corev1.AppArmorProfile{Type: local, LocalhostProfile: ptr.To(" ")}}}}
	pod = &corev1.Pod{Spec: corev1.PodSpec{EphemeralContainers: []corev1.EphemeralContainer{ephemeral}}}
	if err := CheckAppArmor(pod, nil); err == nil {
		t.Error("an ephemeral container's of no name is taken")
	}
}
