package sim

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

const widgets = `{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"widgets.example.com"},"spec":{
"group":"example.com","scope":"Namespaced","names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},
"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","x-kubernetes-preserve-unknown-fields":true}}}}}]}}`

// raw sends JSON to a path and returns the answer's object.
func raw(t *testing.T, c *Cluster, verb, path, body string) (*unstructured.Unstructured, error) {
	t.Helper()
	req := c.Admin.Discovery().RESTClient().Verb(verb).AbsPath(path).SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json")
	if body != "" {
		req = req.Body([]byte(body))
	}
	data, err := req.DoRaw(t.Context())
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	return u, u.UnmarshalJSON(data)
}

func TestCustomOwners(t *testing.T) {
	c := start(t, 0)
	ctx := t.Context()
	if _, err := raw(t, c, "POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", widgets); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "lab"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const path = "/apis/example.com/v1/namespaces/lab/widgets"
	widget := func(name string) types.UID {
		t.Helper()
		var uid types.UID
		eventually(t, "Widget "+name+" made", func() string {
			u, err := raw(t, c, "POST", path, fmt.Sprintf(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":%q},"spec":{"size":1}}`, name))
			if err != nil {
				return err.Error()
			}
			uid = u.GetUID()
			return ""
		})
		return uid
	}
	owned := func(name, owner string, uid types.UID) {
		t.Helper()
		cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: []metav1.OwnerReference{{APIVersion: "example.com/v1", Kind: "Widget", Name: owner, UID: uid, BlockOwnerDeletion: ptr.To(true)}}}}
		if _, err := c.Admin.CoreV1().ConfigMaps("lab").Create(ctx, cm, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	cmGone := func(name string) func() string {
		return func() string { return gone(c.Admin.CoreV1().ConfigMaps("lab").Get(ctx, name, metav1.GetOptions{})) }
	}
	for _, policy := range []string{"Background", "Foreground"} {
		uid := widget("w")
		owned("of-"+strings.ToLower(policy), "w", uid)
		if _, err := raw(t, c, "DELETE", path+"/w", fmt.Sprintf(`{"apiVersion":"v1","kind":"DeleteOptions","propagationPolicy":%q}`, policy)); err != nil {
			t.Fatal(err)
		}
		eventually(t, policy+": the dependent", cmGone("of-"+strings.ToLower(policy)))
		eventually(t, policy+": the owner", func() string { return gone(raw(t, c, "GET", path+"/w", "")) })
	}
	uid := widget("w")
	owned("kept", "w", uid)
	if _, err := raw(t, c, "DELETE", path+"/w", `{"apiVersion":"v1","kind":"DeleteOptions","propagationPolicy":"Orphan"}`); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Orphan: the owner", func() string { return gone(raw(t, c, "GET", path+"/w", "")) })
	cm, err := c.Admin.CoreV1().ConfigMaps("lab").Get(ctx, "kept", metav1.GetOptions{})
	if err != nil || len(cm.OwnerReferences) > 0 {
		t.Errorf("Orphan: the dependent %+v, %v", cm, err)
	}
	owned("stray", "never-was", "11111111-2222-3333-4444-555555555555")
	eventually(t, "a dependent whose owner never was", cmGone("stray"))

	widget("left")
	if err := c.Admin.CoreV1().Namespaces().Delete(ctx, "lab", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace with custom objects in it", func() string {
		return gone(c.Admin.CoreV1().Namespaces().Get(ctx, "lab", metav1.GetOptions{}))
	})
	if _, err := raw(t, c, "DELETE", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com", ""); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the definition", func() string {
		return gone(raw(t, c, "GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com", ""))
	})
}
