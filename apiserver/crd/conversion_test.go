package crd_test

import (
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// newConverter knows v1's spec.size as v2's spec.area, the square. It also meddles with
// metadata, which only shows in labels.
func newConverter(t *testing.T, broken *atomic.Bool) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		review := &apiextensionsv1.ConversionReview{}
		if err := json.NewDecoder(req.Body).Decode(review); err != nil {
			t.Errorf("request is no review: %v", err)
		}
		response := &apiextensionsv1.ConversionResponse{UID: review.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}
		if broken.Load() {
			response.Result = metav1.Status{Status: metav1.StatusFailure, Message: "out of order"}
		}
		for _, raw := range review.Request.Objects {
			u := &unstructured.Unstructured{}
			if err := json.Unmarshal(raw.Raw, u); err != nil {
				t.Errorf("object: %v", err)
			}
			u.SetAPIVersion(review.Request.DesiredAPIVersion)
			spec := u.Object["spec"].(map[string]any)
			if strings.HasSuffix(review.Request.DesiredAPIVersion, "/v2") {
				size := spec["size"].(int64)
				u.Object["spec"] = map[string]any{"area": size * size}
			} else {
				area, size := spec["area"].(int64), int64(0)
				for size*size < area {
					size++
				}
				u.Object["spec"] = map[string]any{"size": size}
			}
			u.SetLabels(map[string]string{"converted": "yes"})
			u.SetFinalizers([]string{"example.com/never"})
			response.ConvertedObjects = append(response.ConvertedObjects, runtime.RawExtension{Object: u})
		}
		_ = json.NewEncoder(w).Encode(&apiextensionsv1.ConversionReview{TypeMeta: review.TypeMeta, Response: response})
	}))
	t.Cleanup(s.Close)
	return s
}

func TestConversionWebhook(t *testing.T) {
	c := newCluster(t)
	broken := &atomic.Bool{}
	hook := newConverter(t, broken)
	d := c.define(widgets(t, func(d *apiextensionsv1.CustomResourceDefinition) {
		v2 := *d.Spec.Versions[0].DeepCopy()
		v2.Name, v2.Storage, v2.SelectableFields, v2.AdditionalPrinterColumns, v2.Subresources = "v2", false, nil, nil, nil
		v2.Schema.OpenAPIV3Schema = &apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"area": {Type: "integer"}, "unit": {Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`"cm2"`)}}}}}}
		d.Spec.Versions = append(d.Spec.Versions, v2)
		d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
			ConversionReviewVersions: []string{"v1"},
			ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: ptr.To(hook.URL + "/convert"),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hook.Certificate().Raw})},
		}}
	}))
	if _, err := c.of("v1").Create(c.ctx, widget("a", map[string]any{"size": int64(3)}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	a, err := c.of("v2").Get(c.ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec := a.Object["spec"].(map[string]any)
	if a.GetAPIVersion() != "example.com/v2" || spec["area"] != int64(9) || spec["unit"] != "cm2" || a.GetLabels()["converted"] != "yes" || len(a.GetFinalizers()) != 0 {
		t.Errorf("v2 sees %v", a.Object)
	}
	b := widget("b", map[string]any{"area": int64(16)})
	b.SetAPIVersion("example.com/v2")
	if _, err := c.of("v2").Create(c.ctx, b, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if b, err = c.of("v1").Get(c.ctx, "b", metav1.GetOptions{}); err != nil || b.Object["spec"].(map[string]any)["size"] != int64(4) {
		t.Errorf("v1 sees %v, %v", b, err)
	}
	// Objects of both versions are in the store once the stored version moves.
	if d, err = c.defs.ApiextensionsV1().CustomResourceDefinitions().Get(c.ctx, d.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	d.Spec.Versions[0].Storage, d.Spec.Versions[1].Storage = false, true
	if _, err = c.defs.ApiextensionsV1().CustomResourceDefinitions().Update(c.ctx, d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	e := widget("e", map[string]any{"area": int64(25)})
	e.SetAPIVersion("example.com/v2")
	for {
		if _, err = c.of("v2").Create(c.ctx, e, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		// What is stored in v2 is read in v2 without the webhook.
		broken.Store(true)
		_, err = c.of("v2").Get(c.ctx, "e", metav1.GetOptions{})
		broken.Store(false)
		if err == nil {
			break
		}
		if err := c.of("v2").Delete(c.ctx, "e", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for version, want := range map[string]map[string]int64{"v1": {"a": 3, "b": 4, "e": 5}, "v2": {"a": 9, "b": 16, "e": 25}} {
		l, err := c.of(version).List(c.ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(l.Items) != 3 {
			t.Errorf("list in %s: %d items", version, len(l.Items))
		}
		for _, o := range l.Items {
			spec := o.Object["spec"].(map[string]any)
			got, ok := spec["size"].(int64)
			if version == "v2" {
				got, ok = spec["area"].(int64)
			}
			if !ok || got != want[o.GetName()] || o.GetAPIVersion() != "example.com/"+version {
				t.Errorf("list in %s: %v", version, o.Object)
			}
		}
	}
	broken.Store(true)
	if _, err := c.of("v1").Get(c.ctx, "e", metav1.GetOptions{}); err == nil || !strings.Contains(err.Error(), "conversion webhook for example.com/v2, Kind=Widget failed: out of order") {
		t.Errorf("a webhook out of order: %v", err)
	}
	if _, err := c.of("v2").Get(c.ctx, "e", metav1.GetOptions{}); err != nil {
		t.Errorf("what needs no conversion: %v", err)
	}
}
