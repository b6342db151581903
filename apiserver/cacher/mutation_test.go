package cacher

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestMutationIsFound(t *testing.T) {
	var found []error
	w := start(t, func(c *Config) { c.OnMutation = func(err error) { found = append(found, err) } })
	p := pod("ns", "a")
	p.Labels = map[string]string{"secret": "value"}
	o := w.create(t, p)
	w.set.mutations.verifyAll()
	if len(found) != 0 {
		t.Fatal(found)
	}
	o.Runtime().(*corev1.Pod).Labels["secret"] = "other"
	w.set.mutations.verifyAll()
	w.set.mutations.verifyAll()
	if len(found) != 1 || !strings.Contains(found[0].Error(), "/registry/pods/ns/a") ||
		!strings.Contains(found[0].Error(), ".metadata.labels.secret") || strings.Contains(found[0].Error(), "other") {
		t.Errorf("found %v, want the changed field once, and no value", found)
	}

	r := w.cache(t, "example.com/widgets")
	u := &unstructured.Unstructured{Object: map[string]any{
		"metadata": map[string]any{"name": "w"}, "spec": map[string]any{"list": []any{"a", "b"}},
	}}
	c, err := r.Create(t.Context(), u, 0)
	if err != nil {
		t.Fatal(err)
	}
	c.Runtime().(*unstructured.Unstructured).Object["spec"].(map[string]any)["list"].([]any)[1] = "c"
	w.set.mutations.verifyAll()
	if len(found) != 2 || !strings.Contains(found[1].Error(), ".spec.list[1]") {
		t.Errorf("found %v, want the changed element", found)
	}
}
