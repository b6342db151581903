package apiextensions

import (
	"context"
	"slices"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func crd(change func(*apiextensionsv1.CustomResourceDefinition)) *apiextensionsv1.CustomResourceDefinition {
	c := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "boats.example.com"},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "boats", Kind: "Boat"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object",
					Properties: map[string]apiextensionsv1.JSONSchemaProps{
						"spec": {Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
							"length": {Type: "integer", Minimum: ptr.To(1.0)},
						}},
					},
				}},
			}},
		},
	}
	if change != nil {
		change(c)
	}
	return c
}

func TestCRDDefaults(t *testing.T) {
	c := crd(func(c *apiextensionsv1.CustomResourceDefinition) { c.Status.StoredVersions = []string{"v0"} })
	apitest.Want(t, apitest.Create(customResourceDefinitions(), c))
	if c.Spec.Names.Singular != "boat" || c.Spec.Names.ListKind != "BoatList" || c.Spec.Conversion.Strategy != "None" {
		t.Errorf("%+v", c.Spec)
	}
	if !slices.Equal(c.Status.StoredVersions, []string{"v1"}) {
		t.Error(c.Status.StoredVersions)
	}
}

func TestCRDValidation(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*apiextensionsv1.CustomResourceDefinition)
		errs   []string
	}{
		"name": {func(c *apiextensionsv1.CustomResourceDefinition) { c.Name = "ships.example.com" },
			[]string{`metadata.name: Invalid value: "ships.example.com": must be spec.names.plural+"."+spec.group`}},
		"no schema": {func(c *apiextensionsv1.CustomResourceDefinition) { c.Spec.Versions[0].Schema = nil },
			[]string{"spec.versions[0].schema.openAPIV3Schema: Required value"}},
		"not structural": {func(c *apiextensionsv1.CustomResourceDefinition) {
			c.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = apiextensionsv1.JSONSchemaProps{}
		}, []string{"spec.validation.openAPIV3Schema.properties[spec].type: Required value: must not be empty for specified object fields"}},
		"two stored": {func(c *apiextensionsv1.CustomResourceDefinition) {
			v := c.Spec.Versions[0]
			v.Name = "v2"
			c.Spec.Versions = append(c.Spec.Versions, v)
		}, []string{"spec.versions: Invalid value"}},
		"protected group": {func(c *apiextensionsv1.CustomResourceDefinition) { c.Name, c.Spec.Group = "boats.x.k8s.io", "x.k8s.io" },
			[]string{"metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation"}},
		"expression": {func(c *apiextensionsv1.CustomResourceDefinition) {
			s := c.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
			s.XValidations = apiextensionsv1.ValidationRules{{Rule: "self.nothing > 1"}}
			c.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = s
		}, []string{"spec.validation.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule: Invalid value"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := apitest.Create(customResourceDefinitions(), crd(c.change))
			for _, e := range c.errs {
				if !slices.ContainsFunc(got, func(g string) bool { return len(g) >= len(e) && g[:len(e)] == e }) {
					t.Errorf("no error %q in %q", e, got)
				}
			}
		})
	}
}

func TestCRDUpdate(t *testing.T) {
	r := customResourceDefinitions()
	old := crd(nil)
	apitest.Want(t, apitest.Create(r, old))
	old.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.Established, Status: apiextensionsv1.ConditionTrue}}

	next := old.DeepCopy()
	v2 := *next.Spec.Versions[0].DeepCopy()
	v2.Name = "v2"
	next.Spec.Versions[0].Storage = false
	next.Spec.Versions = append(next.Spec.Versions, v2)
	apitest.Want(t, apitest.Update(r, next, old))
	if !slices.Equal(next.Status.StoredVersions, []string{"v1", "v2"}) || !slices.Equal(old.Status.StoredVersions, []string{"v1"}) {
		t.Errorf("%v, old %v", next.Status.StoredVersions, old.Status.StoredVersions)
	}
	next = old.DeepCopy()
	next.Spec.Scope = apiextensionsv1.ClusterScoped
	apitest.Want(t, apitest.Update(r, next, old), `spec.scope: Invalid value: "Cluster": field is immutable`)

	// What the generic code says about metadata is not said twice.
	next = old.DeepCopy()
	next.Labels = map[string]string{"bad key!": "x"}
	apitest.Want(t, apitest.Update(r, next, old))
}

func TestCRDWarnings(t *testing.T) {
	r := customResourceDefinitions()
	odd := func(c *apiextensionsv1.CustomResourceDefinition) {
		c.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"] = apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
			"a": {Type: "string", Format: "colour"},
			"b": {Type: "array", XListType: ptr.To("set"), Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "object"}}},
		}}
	}
	got := r.Warnings(context.Background(), crd(odd), nil)
	want := []string{`unrecognized format "colour"`, `x-kubernetes-list-type: set for items of type "object" is not supported by server-side apply or CEL validation rules`}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
	if got := r.Warnings(context.Background(), crd(odd), crd(odd)); len(got) != 0 {
		t.Errorf("repeated: %q", got)
	}
}
