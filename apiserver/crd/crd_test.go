package crd_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/crd"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
	"github.com/skiff-k8s/skiff/apiserver/webhook"
)

type cluster struct {
	*servertest.Server
	t    *testing.T
	ctx  context.Context
	defs clientset.Interface
	dyn  dynamic.Interface
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	s := servertest.New(t, func(c *apiserver.Config) { c.Hooks = append(c.Hooks, crd.Hooks(nil)) })
	ctl, err := crd.New(crd.Config{Caches: s.Caches, Registry: s.Registry(), Caller: webhook.New(s.Caches)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- ctl.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	if err := ctl.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	defs, err := clientset.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	dyn, err := dynamic.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	limit, stop := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(stop)
	c := &cluster{Server: s, t: t, ctx: limit, defs: defs, dyn: dyn}
	ns := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": "ns"}}}
	if _, err := dyn.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}).Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return c
}

const widgetSchema = `{
  "type": "object",
  "properties": {
    "spec": {
      "type": "object", "required": ["size"],
      "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 10},
        "color": {"type": "string", "default": "red", "enum": ["red", "green"]},
        "replicas": {"type": "integer", "default": 1},
        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "steps": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
          "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}, "run": {"type": "string"}}}}
      },
      "x-kubernetes-validations": [
        {"rule": "self.color != 'green' || self.size < 5", "message": "green widgets are small"},
        {"rule": "!has(oldSelf.size) || self.size >= oldSelf.size", "message": "size never shrinks"}
      ]
    },
    "status": {"type": "object", "properties": {"ready": {"type": "integer"}, "selector": {"type": "string"}}}
  }
}`

func widgets(t *testing.T, change func(*apiextensionsv1.CustomResourceDefinition)) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	var props apiextensionsv1.JSONSchemaProps
	if err := json.Unmarshal([]byte(widgetSchema), &props); err != nil {
		t.Fatal(err)
	}
	d := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList",
				ShortNames: []string{"wd"}, Categories: []string{"all"},
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &props},
				Subresources: &apiextensionsv1.CustomResourceSubresources{
					Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
					Scale: &apiextensionsv1.CustomResourceSubresourceScale{
						SpecReplicasPath: ".spec.replicas", StatusReplicasPath: ".status.ready", LabelSelectorPath: ptr.To(".status.selector"),
					},
				},
				SelectableFields: []apiextensionsv1.SelectableField{{JSONPath: ".spec.color"}},
				AdditionalPrinterColumns: []apiextensionsv1.CustomResourceColumnDefinition{
					{Name: "Size", Type: "integer", JSONPath: ".spec.size"},
					{Name: "Color", Type: "string", JSONPath: ".spec.color"},
				},
			}},
		},
	}
	if change != nil {
		change(d)
	}
	return d
}

func (c *cluster) define(d *apiextensionsv1.CustomResourceDefinition) *apiextensionsv1.CustomResourceDefinition {
	c.t.Helper()
	made, err := c.defs.ApiextensionsV1().CustomResourceDefinitions().Create(c.ctx, d, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return c.await(made.Name, "Established", "True")
}

func condition(d *apiextensionsv1.CustomResourceDefinition, t string) apiextensionsv1.CustomResourceDefinitionCondition {
	for _, cond := range d.Status.Conditions {
		if string(cond.Type) == t {
			return cond
		}
	}
	return apiextensionsv1.CustomResourceDefinitionCondition{}
}

func (c *cluster) await(name, cond, status string) *apiextensionsv1.CustomResourceDefinition {
	c.t.Helper()
	for {
		d, err := c.defs.ApiextensionsV1().CustomResourceDefinitions().Get(c.ctx, name, metav1.GetOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		if string(condition(d, cond).Status) == status {
			return d
		}
		time.Sleep(time.Millisecond)
	}
}

func (c *cluster) awaitGone(name string) {
	c.t.Helper()
	for {
		_, err := c.defs.ApiextensionsV1().CustomResourceDefinitions().Get(c.ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return
		}
		if err != nil {
			c.t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

func (c *cluster) of(version string) dynamic.ResourceInterface {
	return c.dyn.Resource(schema.GroupVersionResource{Group: "example.com", Version: version, Resource: "widgets"}).Namespace("ns")
}

func widget(name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name}, "spec": spec,
	}}
}

func (c *cluster) get(path, accept string) (int, map[string]any) {
	c.t.Helper()
	req, err := http.NewRequestWithContext(c.ctx, "GET", c.URL+path, nil)
	if err != nil {
		c.t.Fatal(err)
	}
	if accept != "" {
		req.Header.Set("Accept", accept)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		c.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		c.t.Fatal(err)
	}
	var m map[string]any
	_ = json.Unmarshal(b, &m) // errors may be plain text
	return resp.StatusCode, m
}

func TestObjects(t *testing.T) {
	c := newCluster(t)
	d := c.define(widgets(t, nil))
	if n := condition(d, "NamesAccepted"); n.Status != "True" || n.Reason != "NoConflicts" || d.Status.AcceptedNames.Kind != "Widget" {
		t.Errorf("status %+v", d.Status)
	}
	if len(d.Status.StoredVersions) != 1 || d.Status.StoredVersions[0] != "v1" {
		t.Errorf("stored versions %v", d.Status.StoredVersions)
	}
	ws := c.of("v1")
	w, err := ws.Watch(c.ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()

	a, err := ws.Create(c.ctx, widget("a", map[string]any{"size": int64(3), "unknown": "x", "free": map[string]any{"any": "thing"}}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	spec := a.Object["spec"].(map[string]any)
	if spec["color"] != "red" || spec["unknown"] != nil || spec["free"].(map[string]any)["any"] != "thing" || a.GetGeneration() != 1 || a.GetUID() == "" {
		t.Errorf("created %+v", a.Object)
	}
	if e := <-w.ResultChan(); e.Type != watch.Added || e.Object.(*unstructured.Unstructured).GetName() != "a" {
		t.Errorf("event %+v", e)
	}

	for name, tt := range map[string]struct {
		spec map[string]any
		msg  string
	}{
		"range":    {map[string]any{"size": int64(11)}, "spec.size: Invalid value: 11: spec.size in body should be less than or equal to 10"},
		"required": {map[string]any{}, "spec.size: Required value"},
		"type":     {map[string]any{"size": "big"}, `spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"`},
		"enum":     {map[string]any{"size": int64(1), "color": "blue"}, `spec.color: Unsupported value: "blue": supported values: "red", "green"`},
		"set":      {map[string]any{"size": int64(1), "tags": []any{"x", "x"}}, "spec.tags[1]: Duplicate value"},
		"map":      {map[string]any{"size": int64(1), "steps": []any{map[string]any{"name": "x"}, map[string]any{"name": "x"}}}, "spec.steps[1]: Duplicate value"},
		"cel":      {map[string]any{"size": int64(7), "color": "green"}, "spec: Invalid value: green widgets are small"},
	} {
		_, err := ws.Create(c.ctx, widget("bad", tt.spec), metav1.CreateOptions{})
		if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tt.msg) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ws.Create(c.ctx, widget("strict", map[string]any{"size": int64(3), "unknown": "x"}), metav1.CreateOptions{FieldValidation: "Strict"}); !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), `unknown field "spec.unknown"`) {
		t.Errorf("strict: %v", err)
	}

	// Spec and status are apart.
	both := a.DeepCopy()
	_ = unstructured.SetNestedField(both.Object, int64(5), "spec", "size")
	_ = unstructured.SetNestedField(both.Object, int64(1), "status", "ready")
	b, err := ws.Update(c.ctx, both, metav1.UpdateOptions{})
	if err != nil || b.Object["status"] != nil || b.GetGeneration() != 2 {
		t.Fatalf("update: %+v, %v", b, err)
	}
	both.SetResourceVersion(b.GetResourceVersion())
	_ = unstructured.SetNestedField(both.Object, int64(9), "spec", "size")
	b, err = ws.UpdateStatus(c.ctx, both, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	size, _, _ := unstructured.NestedInt64(b.Object, "spec", "size")
	ready, _, _ := unstructured.NestedInt64(b.Object, "status", "ready")
	if size != 5 || ready != 1 || b.GetGeneration() != 2 {
		t.Errorf("status update: %+v", b.Object)
	}
	if _, err := ws.Patch(c.ctx, "a", types.MergePatchType, []byte(`{"spec":{"size":2}}`), metav1.PatchOptions{}); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "size never shrinks") {
		t.Errorf("transition rule: %v", err)
	}
	if _, err := ws.Patch(c.ctx, "a", types.StrategicMergePatchType, []byte(`{}`), metav1.PatchOptions{}); !apierrors.IsUnsupportedMediaType(err) {
		t.Errorf("strategic patch: %v", err)
	}

	// Apply merges lists by their keys.
	apply := func(manager, step string) {
		t.Helper()
		o := widget("a", map[string]any{"steps": []any{map[string]any{"name": step, "run": manager}}})
		if _, err := ws.Apply(c.ctx, "a", o, metav1.ApplyOptions{FieldManager: manager}); err != nil {
			t.Fatal(err)
		}
	}
	apply("one", "build")
	apply("two", "test")
	a, err = ws.Get(c.ctx, "a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if steps, _, _ := unstructured.NestedSlice(a.Object, "spec", "steps"); len(steps) != 2 {
		t.Errorf("steps after two applies: %v", steps)
	}

	// Scale, table, selectable fields, discovery, OpenAPI.
	if _, err := ws.Patch(c.ctx, "a", types.MergePatchType, []byte(`{"spec":{"replicas":4}}`), metav1.PatchOptions{}, "scale"); err != nil {
		t.Errorf("scale: %v", err)
	}
	if code, scale := c.get("/apis/example.com/v1/namespaces/ns/widgets/a/scale", ""); code != 200 || scale["spec"].(map[string]any)["replicas"] != float64(4) || scale["status"].(map[string]any)["replicas"] != float64(1) {
		t.Errorf("scale: %d %v", code, scale)
	}
	if _, err := ws.Create(c.ctx, widget("g", map[string]any{"size": int64(1), "color": "green"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if l, err := ws.List(c.ctx, metav1.ListOptions{FieldSelector: "spec.color=green"}); err != nil || len(l.Items) != 1 || l.Items[0].GetName() != "g" || l.GetKind() != "WidgetList" {
		t.Errorf("by field: %v, %v", l, err)
	}
	_, table := c.get("/apis/example.com/v1/namespaces/ns/widgets", "application/json;as=Table;v=v1;g=meta.k8s.io")
	if rows, ok := table["rows"].([]any); !ok || len(rows) != 2 {
		t.Errorf("table %v", table)
	} else if cells := rows[0].(map[string]any)["cells"].([]any); len(cells) != 3 || cells[0] != "a" || cells[1] != float64(5) || cells[2] != "red" {
		t.Errorf("cells %v", cells)
	}
	if code, list := c.get("/apis/example.com/v1", ""); code != 200 || len(list["resources"].([]any)) != 3 {
		t.Errorf("discovery: %d %v", code, list)
	}
	if code, doc := c.get("/openapi/v3/apis/example.com/v1", ""); code != 200 {
		t.Errorf("openapi: %d", code)
	} else if schemas := doc["components"].(map[string]any)["schemas"].(map[string]any); schemas["com.example.v1.Widget"] == nil {
		var names []string
		for n := range schemas {
			names = append(names, n)
		}
		t.Errorf("openapi has %v", names)
	}
}

func TestDeletion(t *testing.T) {
	c := newCluster(t)
	c.define(widgets(t, nil))
	ws := c.of("v1")
	held := widget("held", map[string]any{"size": int64(1)})
	held.SetFinalizers([]string{"example.com/hold"})
	for _, o := range []*unstructured.Unstructured{held, widget("free", map[string]any{"size": int64(1)})} {
		if _, err := ws.Create(c.ctx, o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	defs := c.defs.ApiextensionsV1().CustomResourceDefinitions()
	if err := defs.Delete(c.ctx, "widgets.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("widgets.example.com", "Terminating", "True")
	for {
		l, err := ws.List(c.ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(l.Items) == 1 && l.Items[0].GetName() == "held" && l.Items[0].GetDeletionTimestamp() != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	if _, err := ws.Create(c.ctx, widget("late", map[string]any{"size": int64(1)}), metav1.CreateOptions{}); !apierrors.IsMethodNotSupported(err) {
		t.Errorf("create while terminating: %v", err)
	}
	if _, err := ws.Patch(c.ctx, "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitGone("widgets.example.com")
	for {
		if code, _ := c.get("/apis/example.com/v1/namespaces/ns/widgets", ""); code == 404 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	// The same definition again finds nothing of the past.
	c.define(widgets(t, nil))
	if l, err := ws.List(c.ctx, metav1.ListOptions{}); err != nil || len(l.Items) != 0 {
		t.Errorf("objects of the past: %v, %v", l, err)
	}
}

func TestNameConflict(t *testing.T) {
	c := newCluster(t)
	c.define(widgets(t, nil))
	other := widgets(t, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Name = "gadgets.example.com"
		d.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{Plural: "gadgets", Singular: "gadget", Kind: "Widget", ListKind: "GadgetList"}
	})
	defs := c.defs.ApiextensionsV1().CustomResourceDefinitions()
	if _, err := defs.Create(c.ctx, other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d := c.await("gadgets.example.com", "NamesAccepted", "False")
	if n := condition(d, "NamesAccepted"); n.Reason != "KindConflict" || n.Message != `"Widget" is already in use` || condition(d, "Established").Status != "False" {
		t.Errorf("status %+v", d.Status)
	}
	if err := defs.Delete(c.ctx, "widgets.example.com", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitGone("widgets.example.com")
	c.await("gadgets.example.com", "Established", "True")
}
