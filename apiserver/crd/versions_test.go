package crd_test

import (
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestVersions(t *testing.T) {
	c := newCluster(t)
	d := c.define(widgets(t, func(d *apiextensionsv1.CustomResourceDefinition) {
		v2 := *d.Spec.Versions[0].DeepCopy()
		v2.Name, v2.Storage, v2.Served, v2.SelectableFields = "v2", false, true, nil
		v2.Schema.OpenAPIV3Schema.Properties["extra"] = apiextensionsv1.JSONSchemaProps{Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"x"`)}}
		d.Spec.Versions[0].Deprecated = true
		d.Spec.Versions = append(d.Spec.Versions, v2)
	}))
	if _, err := c.of("v1").Create(c.ctx, widget("a", map[string]any{"size": int64(1)}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	a, err := c.of("v2").Get(c.ctx, "a", metav1.GetOptions{})
	if err != nil || a.GetAPIVersion() != "example.com/v2" || a.Object["extra"] != "x" {
		t.Errorf("v2 sees %+v, %v", a, err)
	}
	b := widget("b", map[string]any{"size": int64(1)})
	b.SetAPIVersion("example.com/v2")
	if _, err := c.of("v2").Create(c.ctx, b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if b, err = c.of("v1").Get(c.ctx, "b", metav1.GetOptions{}); err != nil || b.GetAPIVersion() != "example.com/v1" || b.Object["extra"] != nil {
		t.Errorf("v1 sees %+v, %v", b, err)
	}
	// The stored version moves; both are noted, old objects stay readable.
	d, err = c.defs.ApiextensionsV1().CustomResourceDefinitions().Get(c.ctx, d.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d.Spec.Versions[0].Storage, d.Spec.Versions[1].Storage = false, true
	if d, err = c.defs.ApiextensionsV1().CustomResourceDefinitions().Update(c.ctx, d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if len(d.Status.StoredVersions) != 2 {
		t.Errorf("stored versions %v", d.Status.StoredVersions)
	}
	defer func() {
		for _, v := range []string{"v1", "v2"} {
			l, err := c.of(v).List(c.ctx, metav1.ListOptions{})
			if err != nil || len(l.Items) != 2 {
				t.Fatalf("list in %s: %v, %v", v, l, err)
			}
			for _, o := range l.Items {
				if o.GetAPIVersion() != "example.com/"+v {
					t.Errorf("list in %s has %s in %s", v, o.GetName(), o.GetAPIVersion())
				}
			}
		}
	}()
	for {
		a, err = c.of("v2").Get(c.ctx, "a", metav1.GetOptions{})
		if err == nil && a.Object["extra"] == "x" {
			break
		}
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsInternalError(err) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// TestSchemaChange: objects from before a change are read by the new schema.
func TestSchemaChange(t *testing.T) {
	c := newCluster(t)
	d := c.define(widgets(t, nil))
	if _, err := c.of("v1").Create(c.ctx, widget("a", map[string]any{"size": int64(1), "free": map[string]any{"x": "y"}}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	spec := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	delete(spec.Properties, "free")
	spec.Properties["weight"] = apiextensionsv1.JSONSchemaProps{Type: "integer", Default: &apiextensionsv1.JSON{Raw: []byte(`7`)}}
	d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = spec
	if _, err := c.defs.ApiextensionsV1().CustomResourceDefinitions().Update(c.ctx, d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		a, err := c.of("v1").Get(c.ctx, "a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		weight, _, _ := unstructured.NestedInt64(a.Object, "spec", "weight")
		_, free, _ := unstructured.NestedMap(a.Object, "spec", "free")
		if weight == 7 && !free {
			return
		}
		if c.ctx.Err() != nil {
			t.Fatalf("still %v", a.Object)
		}
		time.Sleep(time.Millisecond)
	}
}
