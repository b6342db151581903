package crd_test

import (
	"encoding/pem"
	"strings"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"
)

// twoVersions has spec.size in v1, which is stored, and spec.area in v2; both can be
// selected by.
func twoVersions(t *testing.T, conversion *apiextensionsv1.CustomResourceConversion) *apiextensionsv1.CustomResourceDefinition {
	return widgets(t, func(d *apiextensionsv1.CustomResourceDefinition) {
		v1 := &d.Spec.Versions[0]
		v1.AdditionalPrinterColumns, v1.Subresources = nil, nil
		v2 := *v1.DeepCopy()
		v2.Name, v2.Storage = "v2", false
		for v, name := range map[*apiextensionsv1.CustomResourceDefinitionVersion]string{v1: "size", &v2: "area"} {
			v.SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec." + name}}
			properties := map[string]apiextensionsv1.JSONSchemaProps{name: {Type: "integer"}}
			if conversion == nil {
				// Equal schemas with different selectable fields are refused, here as upstream.
				properties = map[string]apiextensionsv1.JSONSchemaProps{"size": {Type: "integer"}, "area": {Type: "integer"}, "only" + v.Name: {Type: "string"}}
			}
			v.Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"spec": {Type: "object", Properties: properties}}}
		}
		d.Spec.Versions = append(d.Spec.Versions, v2)
		d.Spec.Conversion = conversion
	})
}

// selected are the names that a list in a version has with a field selector.
func selected(t *testing.T, c *cluster, version, selector string) string {
	t.Helper()
	l, err := c.of(version).List(c.ctx, metav1.ListOptions{FieldSelector: selector})
	if err != nil {
		t.Fatalf("list %s by %s: %v", version, selector, err)
	}
	var names []string
	for _, o := range l.Items {
		names = append(names, o.GetName())
	}
	return strings.Join(names, " ")
}

func TestSelectByFieldsOfEachVersion(t *testing.T) {
	c := newCluster(t)
	broken := &atomic.Bool{}
	hook := newConverter(t, broken)
	c.define(twoVersions(t, &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ConversionReviewVersions: []string{"v1"},
		ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: ptr.To(hook.URL + "/convert"),
			CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})},
	}}))
	areas, err := c.of("v2").Watch(c.ctx, metav1.ListOptions{FieldSelector: "spec.area=9"})
	if err != nil {
		t.Fatal(err)
	}
	defer areas.Stop()
	three := widget("three", map[string]any{"area": int64(9)})
	three.SetAPIVersion("example.com/v2")
	if _, err := c.of("v2").Create(c.ctx, three, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.of("v1").Create(c.ctx, widget("four", map[string]any{"size": int64(4)}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ version, selector, want string }{
		{"v2", "spec.area=9", "three"}, {"v2", "spec.area=16", "four"}, {"v2", "spec.area!=9", "four"}, {"v2", "spec.area=3", ""},
		{"v1", "spec.size=3", "three"}, {"v1", "spec.size=4", "four"}, {"v1", "spec.size=4,metadata.name=three", ""},
	} {
		if got := selected(t, c, test.version, test.selector); got != test.want {
			t.Errorf("list %s by %s: %q, want %q", test.version, test.selector, got, test.want)
		}
	}
	for _, other := range []struct{ version, selector string }{{"v1", "spec.area=9"}, {"v2", "spec.size=3"}} {
		if _, err := c.of(other.version).List(c.ctx, metav1.ListOptions{FieldSelector: other.selector}); err == nil || !strings.Contains(err.Error(), "field label not supported") {
			t.Errorf("list %s by a field of the other version: %v", other.version, err)
		}
	}
	if e := <-areas.ResultChan(); e.Type != watch.Added {
		t.Errorf("the watch of v2 got %+v", e)
	}
	// The object leaves the selection by a write in the other version.
	stored, err := c.of("v1").Get(c.ctx, "three", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stored.Object["spec"] = map[string]any{"size": int64(5)}
	if _, err := c.of("v1").Update(c.ctx, stored, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if e := <-areas.ResultChan(); e.Type != watch.Deleted {
		t.Errorf("the watch of v2 got %+v, want DELETED", e)
	}
	// What cannot be converted is not left out in silence.
	broken.Store(true)
	if _, err := c.of("v2").List(c.ctx, metav1.ListOptions{FieldSelector: "spec.area=9"}); err == nil || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("list by a field with the webhook out of order: %v", err)
	}
	if got := selected(t, c, "v1", "spec.size=4"); got != "four" {
		t.Errorf("v1 needs no webhook, but selects %q", got)
	}
}

// Without a webhook all versions have the same content, but each its own selectable fields.
func TestSelectByFieldsWithoutConversion(t *testing.T) {
	c := newCluster(t)
	c.define(twoVersions(t, nil))
	if _, err := c.of("v1").Create(c.ctx, widget("a", map[string]any{"size": int64(3), "area": int64(9)}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ version, selector, want string }{
		{"v1", "spec.size=3", "a"}, {"v1", "spec.size=9", ""}, {"v2", "spec.area=9", "a"}, {"v2", "spec.area=3", ""},
	} {
		if got := selected(t, c, test.version, test.selector); got != test.want {
			t.Errorf("list %s by %s: %q, want %q", test.version, test.selector, got, test.want)
		}
	}
}
