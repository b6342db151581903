package apply

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/yaml"

	"github.com/skiff-k8s/skiff/api/openapi"
)

func deployments(t *testing.T, types func(*runtime.Scheme) managedfields.TypeConverter, ignored ...string) *managedfields.FieldManager {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := appsv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	kind := appsv1.SchemeGroupVersion.WithKind("Deployment")
	m, err := NewManager(Config{Types: types(scheme), Scheme: scheme, Kind: kind, Ignored: ignored,
		New: func() runtime.Object {
			d := &appsv1.Deployment{}
			d.SetGroupVersionKind(kind)
			return d
		}})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func builtin(t *testing.T) func(*runtime.Scheme) managedfields.TypeConverter {
	return func(s *runtime.Scheme) managedfields.TypeConverter {
		p, err := openapi.Parser()
		if err != nil {
			t.Fatal(err)
		}
		return managedfields.NewSchemeTypeConverter(s, p)
	}
}

func configuration(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte("apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n"+text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func empty() runtime.Object {
	d := &appsv1.Deployment{}
	d.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("Deployment"))
	return d
}

// TestApply: containers merge by name, owners conflict, force takes over, what nobody
// applies any more goes, and the live object stays as it was.
func TestApply(t *testing.T) {
	m := deployments(t, builtin(t), "status")
	a, err := m.Apply(empty(), configuration(t, `spec: {template: {spec: {containers: [{name: a, image: one}]}}}`), "first", false)
	if err != nil {
		t.Fatal(err)
	}
	before := a.DeepCopyObject()
	b, err := m.Apply(a, configuration(t, `spec: {template: {spec: {containers: [{name: b, image: two}]}}}`), "second", false)
	if err != nil {
		t.Fatal(err)
	}
	d := b.(*appsv1.Deployment)
	if len(d.Spec.Template.Spec.Containers) != 2 || len(d.ManagedFields) != 2 {
		t.Errorf("containers %v, managers %v", d.Spec.Template.Spec.Containers, d.ManagedFields)
	}
	if got, want := a.(*appsv1.Deployment), before.(*appsv1.Deployment); len(got.Spec.Template.Spec.Containers) != len(want.Spec.Template.Spec.Containers) || len(got.ManagedFields) != 1 {
		t.Error("the live object changed")
	}
	_, err = m.Apply(b, configuration(t, `spec: {template: {spec: {containers: [{name: a, image: three}]}}}`), "second", false)
	if !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `conflict with "first": .spec.template.spec.containers[name="a"].image`) {
		t.Errorf("conflict: %v", err)
	}
	c, err := m.Apply(b, configuration(t, `spec: {template: {spec: {containers: [{name: a, image: three}]}}}`), "second", true)
	if err != nil {
		t.Fatal(err)
	}
	if cs := c.(*appsv1.Deployment).Spec.Template.Spec.Containers; len(cs) != 1 || cs[0].Image != "three" {
		t.Errorf("after force: %v", cs)
	}
	if _, err := m.Apply(c, configuration(t, `spec: {nothing: 1}`), "second", true); err == nil || !strings.Contains(err.Error(), "field not declared in schema") {
		t.Errorf("unknown field: %v", err)
	}
}

// TestUpdate: the manager of an update owns what it changes, but not ignored paths.
func TestUpdate(t *testing.T) {
	for name, types := range map[string]func(*runtime.Scheme) managedfields.TypeConverter{
		"built-in": builtin(t),
		"deduced":  func(*runtime.Scheme) managedfields.TypeConverter { return managedfields.NewDeducedTypeConverter() },
	} {
		m := deployments(t, types, "status")
		next := empty().(*appsv1.Deployment)
		next.Name = "d"
		next.Spec.Template.Spec.Containers = []corev1.Container{{Name: "a", Image: "one"}}
		next.Status.Replicas = 1
		got := m.UpdateNoErrors(empty(), next, "someone").(*appsv1.Deployment)
		if len(got.ManagedFields) != 1 {
			t.Fatalf("%s: %v", name, got.ManagedFields)
		}
		f := got.ManagedFields[0]
		if f.Manager != "someone" || f.Operation != metav1.ManagedFieldsOperationUpdate || !strings.Contains(string(f.FieldsV1.Raw), "f:containers") ||
			strings.Contains(string(f.FieldsV1.Raw), "f:status") {
			t.Errorf("%s: %s %s", name, f.Manager, f.FieldsV1.Raw)
		}
	}
}
