package apiextensions

import (
	"encoding/json"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
)

func conversions(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{apiextensionsv1.AddToScheme, AddConversions} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// TestStoredAndBack: the v1beta1 that is stored loses nothing, with one schema for all versions
// (which v1beta1 has at its top) and with one for each.
func TestStoredAndBack(t *testing.T) {
	s := conversions(t)
	keep := true
	for name, change := range map[string]func(*apiextensionsv1.CustomResourceDefinition){
		"one version": func(*apiextensionsv1.CustomResourceDefinition) {},
		"one schema": func(c *apiextensionsv1.CustomResourceDefinition) {
			second := *c.Spec.Versions[0].DeepCopy()
			second.Name, second.Storage = "v2", false
			c.Spec.Versions = append(c.Spec.Versions, second)
		},
		"two schemas": func(c *apiextensionsv1.CustomResourceDefinition) {
			second := *c.Spec.Versions[0].DeepCopy()
			second.Name, second.Storage = "v2", false
			second.Schema.OpenAPIV3Schema.XPreserveUnknownFields = &keep
			second.AdditionalPrinterColumns = []apiextensionsv1.CustomResourceColumnDefinition{{Name: "Age", Type: "date", JSONPath: ".metadata.creationTimestamp"}}
			c.Spec.Versions = append(c.Spec.Versions, second)
		},
		"webhook": func(c *apiextensionsv1.CustomResourceDefinition) {
			path, port := "/convert", int32(8443)
			c.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
				ConversionReviewVersions: []string{"v1", "v1beta1"},
				ClientConfig:             &apiextensionsv1.WebhookClientConfig{CABundle: []byte("ca"), Service: &apiextensionsv1.ServiceReference{Namespace: "n", Name: "s", Path: &path, Port: &port}},
			}}
		},
		"columns": func(c *apiextensionsv1.CustomResourceDefinition) {
			v := &c.Spec.Versions[0]
			v.AdditionalPrinterColumns = []apiextensionsv1.CustomResourceColumnDefinition{{Name: "N", Type: "string", JSONPath: ".spec.n", Priority: 1}}
			v.Subresources = &apiextensionsv1.CustomResourceSubresources{Status: &apiextensionsv1.CustomResourceSubresourceStatus{}}
			v.SelectableFields = []apiextensionsv1.SelectableField{{JSONPath: ".spec.n"}}
			v.Deprecated = true
		},
	} {
		t.Run(name, func(t *testing.T) {
			in := crd(change)
			apiextensionsv1.SetObjectDefaults_CustomResourceDefinition(in)
			before := in.DeepCopy()
			stored, out := &apiextensionsv1beta1.CustomResourceDefinition{}, &apiextensionsv1.CustomResourceDefinition{}
			if err := s.Convert(in, stored, nil); err != nil {
				t.Fatal(err)
			}
			if stored.Spec.Version != in.Spec.Versions[0].Name {
				t.Errorf("stored with version %q at its top", stored.Spec.Version)
			}
			if err := s.Convert(stored, out, nil); err != nil {
				t.Fatal(err)
			}
			if !equality.Semantic.DeepEqual(in, before) {
				t.Error("the conversion changed its input")
			}
			out.Status.StoredVersions = in.Status.StoredVersions // what an old object leaves out is filled in
			if !equality.Semantic.DeepEqual(in, out) {
				a, _ := json.Marshal(in)
				b, _ := json.Marshal(out)
				t.Errorf("in  %s\nout %s", a, b)
			}
		})
	}
}

// TestStoredLongAgo: a definition of v1beta1's times means what it meant then.
func TestStoredLongAgo(t *testing.T) {
	s := conversions(t)
	stored, out := &apiextensionsv1beta1.CustomResourceDefinition{}, &apiextensionsv1.CustomResourceDefinition{}
	text := `{"metadata":{"name":"boats.example.com"},"spec":{"group":"example.com","version":"v1","names":{"plural":"boats","kind":"Boat"},
		"additionalPrinterColumns":[{"name":"N","type":"string","JSONPath":".spec.n"}]}}`
	if err := json.Unmarshal([]byte(text), stored); err != nil {
		t.Fatal(err)
	}
	if err := s.Convert(stored, out, nil); err != nil {
		t.Fatal(err)
	}
	if out.Spec.Scope != apiextensionsv1.NamespaceScoped || !out.Spec.PreserveUnknownFields || len(out.Spec.Versions) != 1 {
		t.Fatalf("read as %+v", out.Spec)
	}
	if v := out.Spec.Versions[0]; v.Name != "v1" || !v.Storage || !v.Served || v.AdditionalPrinterColumns[0].JSONPath != ".spec.n" {
		t.Errorf("version read as %+v", v)
	}
}
