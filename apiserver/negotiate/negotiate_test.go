package negotiate

import (
	"net/http"
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestAccept(t *testing.T) {
	table := &schema.GroupVersionKind{Group: "meta.k8s.io", Version: "v1", Kind: "Table"}
	for _, c := range []struct {
		accept, query, agent string
		allow                Allow
		want                 Output
		fails                bool
	}{
		{accept: "", want: Output{}},
		{accept: "*/*", want: Output{}},
		{accept: "application/*", want: Output{}},
		{accept: "application/yaml", want: Output{Media: YAML}},
		{accept: "application/vnd.kubernetes.protobuf", want: Output{Media: Protobuf}},
		{accept: "application/vnd.kubernetes.protobuf", allow: Allow{NoProtobuf: true}, fails: true},
		{accept: "application/vnd.kubernetes.protobuf,application/json", allow: Allow{NoProtobuf: true}, want: Output{}},
		{accept: "text/html", fails: true},
		{accept: "text/html,*/*;q=0.1", want: Output{}},
		{accept: "application/json;q=0.5,application/yaml", want: Output{Media: YAML}},
		{accept: "application/json;as=Table;g=meta.k8s.io;v=v1", fails: true},
		{accept: "application/json;as=Table;g=meta.k8s.io;v=v1", allow: Allow{Transforms: true}, want: Output{As: table}},
		{accept: "application/json;as=Table;g=meta.k8s.io;v=v1,application/json", want: Output{}},
		{accept: "application/json;as=Table;g=meta.k8s.io;v=v2", allow: Allow{Transforms: true}, fails: true},
		{accept: "application/vnd.kubernetes.protobuf;as=Table;g=meta.k8s.io;v=v1", allow: Allow{Transforms: true}, fails: true},
		{accept: "application/json;pretty=1", want: Output{Pretty: true}},
		{accept: "application/json", query: "pretty=true", want: Output{Pretty: true}},
		{accept: "*/*", agent: "curl/8", want: Output{Pretty: true}},
		{accept: "*/*", agent: "curl/8", query: "pretty=false", want: Output{}},
		{accept: "application/json;stream=watch", want: Output{}},
		{accept: "application/json;stream=other", fails: true},
	} {
		req := &http.Request{Header: http.Header{"Accept": {c.accept}, "User-Agent": {c.agent}}, URL: &url.URL{RawQuery: c.query}}
		got, err := Accept(req, c.allow)
		if (err != nil) != c.fails {
			t.Errorf("%q: %v", c.accept, err)
			continue
		}
		if c.fails {
			continue
		}
		if got.Media != c.want.Media || got.Pretty != c.want.Pretty || (got.As == nil) != (c.want.As == nil) || (got.As != nil && *got.As != *c.want.As) {
			t.Errorf("%q %q: %+v, want %+v", c.accept, c.query, got, c.want)
		}
	}
}

func TestDecode(t *testing.T) {
	s := runtime.NewScheme()
	if err := corev1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	codecs := NewCodecs(s)
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	want := &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{Kind: "ConfigMap", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"k": "v"}}
	for _, m := range all {
		b, err := codecs.Encode(want, Output{Media: m})
		if err != nil {
			t.Fatal(err)
		}
		for _, strict := range []bool{false, true} {
			obj, gvk, err := codecs.Decode(m, strict, b, &kind, &corev1.ConfigMap{})
			if err != nil || *gvk != kind {
				t.Fatalf("%s: %v %v", m.Type(), gvk, err)
			}
			if got := obj.(*corev1.ConfigMap); got.Name != "a" || got.Data["k"] != "v" {
				t.Errorf("%s: %+v", m.Type(), got)
			}
		}
	}
	for _, body := range []string{`{"kind":"ConfigMap","apiVersion":"v1","dat":1}`, `{"kind":"ConfigMap","apiVersion":"v1","data":{},"data":{}}`} {
		if _, _, err := codecs.Decode(JSON, true, []byte(body), &kind, &corev1.ConfigMap{}); !runtime.IsStrictDecodingError(err) {
			t.Errorf("%s: %v", body, err)
		}
		if _, _, err := codecs.Decode(JSON, false, []byte(body), &kind, &corev1.ConfigMap{}); err != nil {
			t.Errorf("%s: %v", body, err)
		}
	}
}

func FuzzDecodeUnstructured(f *testing.F) {
	f.Add([]byte(`{"kind":"A","apiVersion":"b/v1","metadata":{"name":"x"}}`), false)
	f.Add([]byte("kind: A\na: [1, 2]\n"), true)
	kind := schema.GroupVersionKind{Group: "b", Version: "v1", Kind: "A"}
	f.Fuzz(func(t *testing.T, data []byte, yaml bool) {
		m := JSON
		if yaml {
			m = YAML
		}
		u, gvk, err := DecodeUnstructured(m, true, data, kind)
		if err != nil && !runtime.IsStrictDecodingError(err) {
			return
		}
		if gvk.Kind == "" || u.GetKind() != gvk.Kind {
			t.Errorf("kind %q, object's %q", gvk.Kind, u.GetKind())
		}
	})
}
