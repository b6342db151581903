package admission

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

var alice = &user.DefaultInfo{Name: "alice", Groups: []string{user.AllAuthenticated}}

func allow(allowed ...string) authorizer.AuthorizerFunc {
	return func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		for _, s := range allowed {
			if s == a.GetVerb()+" "+a.GetResource()+"/"+a.GetName() {
				return authorizer.DecisionAllow, "", nil
			}
		}
		return authorizer.DecisionNoOpinion, "", nil
	}
}

func objectMeta(ns, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: ns, Name: name}
}

func podIn(ns string, change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: objectMeta(ns, "p"), Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if change != nil {
		change(p)
	}
	return p
}

// write describes a write of an object of a core or other resource.
func write(op seams.Operation, gvr schema.GroupVersionResource, obj, old api.Object) *seams.Attributes {
	a := &seams.Attributes{Operation: op, Resource: gvr, User: alice}
	for _, o := range []api.Object{obj, old} {
		if o != nil {
			a.Namespace, a.Name = o.GetNamespace(), o.GetName()
		}
	}
	if obj != nil {
		a.Object = runtime.Object(obj)
	}
	if old != nil {
		a.OldObject = runtime.Object(old)
	}
	return a
}

func core(resource string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Version: "v1", Resource: resource}
}

func admit(t testing.TB, p seams.Admission, a *seams.Attributes) error {
	t.Helper()
	if err := p.Admit(t.Context(), a); err != nil {
		return err
	}
	return p.Validate(t.Context(), a)
}

func wantForbidden(t testing.TB, err error, msg string) {
	t.Helper()
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), msg) {
		t.Errorf("error is %v, want a 403 with %q", err, msg)
	}
}

func TestNamespaceLifecycle(t *testing.T) {
	going := &corev1.Namespace{ObjectMeta: objectMeta("", "going"), Status: corev1.NamespaceStatus{Phase: corev1.NamespaceTerminating}}
	c := lookuptest.New(t, going, &corev1.Namespace{ObjectMeta: objectMeta("", "there"), Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive}})
	p := newNamespaceLifecycle(c, clock.RealClock{})
	create := func(ns string) error { return admit(t, p, write(seams.Create, core("pods"), podIn(ns, nil), nil)) }
	if err := create("there"); err != nil {
		t.Error(err)
	}
	if err := create("missing"); !apierrors.IsNotFound(err) || err.Error() != `namespaces "missing" not found` {
		t.Errorf("missing namespace: %v", err)
	}
	err := create("going")
	wantForbidden(t, err, `pods "p" is forbidden: unable to create new content in namespace going because it is being terminated`)
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		t.Errorf("no cause in %v", err)
	}
	for _, op := range []seams.Operation{seams.Update, seams.Delete} {
		if err := admit(t, p, write(op, core("pods"), nil, podIn("going", nil))); err != nil {
			t.Errorf("%s: %v", op, err)
		}
	}
	del := func(name string) error {
		return admit(t, p, write(seams.Delete, core("namespaces"), nil, &corev1.Namespace{ObjectMeta: objectMeta("", name)}))
	}
	for _, name := range []string{"default", "kube-system", "kube-public"} {
		wantForbidden(t, del(name), "this namespace may not be deleted")
	}
	if err := del("there"); err != nil || !p.deletedLately("there") {
		t.Errorf("delete of a namespace: %v", err)
	}
}

func TestServiceAccount(t *testing.T) {
	c := lookuptest.New(t,
		&corev1.ServiceAccount{ObjectMeta: objectMeta("ns", "default"), ImagePullSecrets: []corev1.LocalObjectReference{{Name: "pull"}}},
		&corev1.ServiceAccount{ObjectMeta: objectMeta("ns", "quiet"), AutomountServiceAccountToken: ptr.To(false)},
		&corev1.ServiceAccount{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "strict", Annotations: map[string]string{enforceSecrets: "true"}},
			Secrets:    []corev1.ObjectReference{{Name: "listed"}},
		},
	)
	p := &serviceAccount{caches: c}
	create := func(change func(*corev1.Pod)) (*corev1.Pod, error) {
		pod := podIn("ns", change)
		a := write(seams.Create, core("pods"), pod, nil)
		if err := p.Admit(t.Context(), a); err != nil {
			return nil, err
		}
		before := pod.DeepCopy()
		if err := p.Admit(t.Context(), a); err != nil { // once more changes nothing
			return nil, err
		}
		if len(before.Spec.Volumes) != len(pod.Spec.Volumes) {
			t.Errorf("volumes after another round: %v", pod.Spec.Volumes)
		}
		return pod, p.Validate(t.Context(), a)
	}
	pod, err := create(nil)
	if err != nil {
		t.Fatal(err)
	}
	v := pod.Spec.Volumes[0]
	m := pod.Spec.Containers[0].VolumeMounts[0]
	if pod.Spec.ServiceAccountName != "default" || pod.Spec.DeprecatedServiceAccount != "default" || pod.Spec.ImagePullSecrets[0].Name != "pull" ||
		!strings.HasPrefix(v.Name, "kube-api-access-") || len(v.Name) != 21 || m.Name != v.Name || m.MountPath != tokenPath || !m.ReadOnly ||
		*v.Projected.Sources[0].ServiceAccountToken.ExpirationSeconds != 3607 || v.Projected.Sources[1].ConfigMap.Name != "kube-root-ca.crt" ||
		*v.Projected.DefaultMode != 0o644 {
		t.Errorf("pod is %+v", pod.Spec)
	}
	for name, change := range map[string]func(*corev1.Pod){
		"account without": func(p *corev1.Pod) { p.Spec.ServiceAccountName = "quiet" },
		"pod without":     func(p *corev1.Pod) { p.Spec.AutomountServiceAccountToken = ptr.To(false) },
		"mounted already": func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{MountPath: tokenPath}} },
	} {
		if pod, err := create(change); err != nil || len(pod.Spec.Volumes) != 0 {
			t.Errorf("%s: %v, %v", name, pod, err)
		}
	}
	_, err = create(func(p *corev1.Pod) { p.Spec.ServiceAccountName = "missing" })
	wantForbidden(t, err, `error looking up service account ns/missing: serviceaccount "missing" not found`)

	secret := func(name string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.ServiceAccountName = "strict"
			p.Spec.Volumes = []corev1.Volume{{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name}}}}
		}
	}
	if _, err := create(secret("listed")); err != nil {
		t.Error(err)
	}
	_, err = create(secret("other"))
	wantForbidden(t, err, `volume with secret.secretName="other" is not allowed because service account strict does not reference that secret`)

	mirror := func(change func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
			change(p)
		}
	}
	if pod, err := create(mirror(func(*corev1.Pod) {})); err != nil || pod.Spec.ServiceAccountName != "" {
		t.Errorf("mirror pod: %+v, %v", pod, err)
	}
	_, err = create(mirror(secret("x")))
	wantForbidden(t, err, "a mirror pod may not reference service accounts")
	_, err = create(mirror(func(p *corev1.Pod) { p.Spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "x"}} }))
	wantForbidden(t, err, "a mirror pod may not reference secrets")
}

// TestDefaultAccountComes: the account of a new namespace is made a moment later.
func TestDefaultAccountComes(t *testing.T) {
	c := lookuptest.New(t)
	p := &serviceAccount{caches: c}
	done := make(chan error, 1)
	pod := podIn("new", nil)
	go func() { done <- p.Admit(context.Background(), write(seams.Create, core("pods"), pod, nil)) }()
	time.Sleep(5 * time.Millisecond)
	c.Create(&corev1.ServiceAccount{ObjectMeta: objectMeta("new", "default")})
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestPriority(t *testing.T) {
	never := corev1.PreemptNever
	c := lookuptest.New(t, &schedulingv1.PriorityClass{ObjectMeta: objectMeta("", "high"), Value: 1000, PreemptionPolicy: &never})
	p := &priority{caches: c}
	create := func(change func(*corev1.Pod)) (*corev1.Pod, error) {
		pod := podIn("ns", change)
		return pod, admit(t, p, write(seams.Create, core("pods"), pod, nil))
	}
	if pod, err := create(nil); err != nil || *pod.Spec.Priority != 0 || *pod.Spec.PreemptionPolicy != corev1.PreemptLowerPriority || pod.Spec.PriorityClassName != "" {
		t.Errorf("no class: %+v, %v", pod.Spec, err)
	}
	if pod, err := create(func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" }); err != nil || *pod.Spec.Priority != 1000 || *pod.Spec.PreemptionPolicy != never {
		t.Errorf("class: %+v, %v", pod.Spec, err)
	}
	_, err := create(func(p *corev1.Pod) { p.Spec.PriorityClassName = "none" })
	wantForbidden(t, err, "no PriorityClass with name none was found")
	_, err = create(func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](7) })
	wantForbidden(t, err, "the integer value of priority (7) must not be provided in pod spec; priority admission controller computed 0 from the given PriorityClass name")

	old := podIn("ns", func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](5) })
	next := podIn("ns", nil)
	if err := admit(t, p, write(seams.Update, core("pods"), next, old)); err != nil || *next.Spec.Priority != 5 {
		t.Errorf("update: %+v, %v", next.Spec, err)
	}

	classes := schedulingv1.SchemeGroupVersion.WithResource("priorityclasses")
	def := &schedulingv1.PriorityClass{ObjectMeta: objectMeta("", "def"), Value: 10, GlobalDefault: true}
	if err := admit(t, p, write(seams.Create, classes, def, nil)); err != nil {
		t.Error(err)
	}
	c.Create(def)
	if pod, err := create(nil); err != nil || *pod.Spec.Priority != 10 || pod.Spec.PriorityClassName != "def" {
		t.Errorf("default class: %+v, %v", pod.Spec, err)
	}
	other := def.DeepCopy()
	other.Name = "other"
	wantForbidden(t, admit(t, p, write(seams.Create, classes, other, nil)), "PriorityClass def is already marked as default. Only one default can exist")
	if err := admit(t, p, write(seams.Update, classes, def, def)); err != nil {
		t.Error(err)
	}
}

func TestDefaultTolerations(t *testing.T) {
	p := &defaultTolerationSeconds{}
	pod := podIn("ns", func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}}
	})
	for range 2 {
		if err := admit(t, p, write(seams.Create, core("pods"), pod, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if ts := pod.Spec.Tolerations; len(ts) != 2 || ts[0].TolerationSeconds != nil || ts[1].Key != corev1.TaintNodeUnreachable || *ts[1].TolerationSeconds != 300 {
		t.Errorf("tolerations %+v", ts)
	}
	all := podIn("ns", func(p *corev1.Pod) { p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} })
	if err := admit(t, p, write(seams.Create, core("pods"), all, nil)); err != nil || len(all.Spec.Tolerations) != 1 {
		t.Errorf("tolerates all: %+v, %v", all.Spec.Tolerations, err)
	}
}
