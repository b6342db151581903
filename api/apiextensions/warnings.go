package apiextensions

import (
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	schemavalidation "k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

// warnings tell of what a schema says in vain; old is nil on create, and what it said
// already is not repeated.
func warnings(c, old *apiextensionsv1.CustomResourceDefinition) []string {
	formats, lists := inspect(c)
	if old != nil {
		oldFormats, oldLists := inspect(old)
		formats = slices.DeleteFunc(formats, func(f string) bool { return slices.Contains(oldFormats, f) })
		lists = lists.Difference(oldLists)
	}
	var out []string
	for _, f := range formats {
		out = append(out, fmt.Sprintf("unrecognized format %q", f))
	}
	for _, t := range sets.List(lists) {
		out = append(out, fmt.Sprintf("x-kubernetes-list-type: set for items of type %q is not supported by server-side apply or CEL validation rules", t))
	}
	return out
}

// inspect finds unknown formats, and the types of items in sets that can't be compared.
func inspect(c *apiextensionsv1.CustomResourceDefinition) (formats []string, lists sets.Set[string]) {
	lists = sets.New[string]()
	compatibility := environment.DefaultCompatibilityVersion()
	for i := range c.Spec.Versions {
		if s := c.Spec.Versions[i].Schema; s != nil && s.OpenAPIV3Schema != nil {
			walk(s.OpenAPIV3Schema, func(s *apiextensionsv1.JSONSchemaProps) {
				formats = append(formats, unknownFormats(s, compatibility)...)
				if s.XListType != nil && *s.XListType == "set" && s.Items != nil && s.Items.Schema != nil {
					if t := s.Items.Schema.Type; t == "object" || t == "array" {
						lists.Insert(t)
					}
				}
			})
		}
	}
	return formats, lists
}

func unknownFormats(s *apiextensionsv1.JSONSchemaProps, compatibility *version.Version) []string {
	if s.Format == "" {
		return nil
	}
	return schemavalidation.GetUnrecognizedFormats(&spec.Schema{
		SchemaProps: spec.SchemaProps{Format: s.Format, Type: []string{s.Type}}}, compatibility)
}

// walk visits a schema and all schemas in it, properties in the order of their names.
func walk(s *apiextensionsv1.JSONSchemaProps, visit func(*apiextensionsv1.JSONSchemaProps)) {
	if s == nil {
		return
	}
	visit(s)
	walkMap := func(m map[string]apiextensionsv1.JSONSchemaProps) {
		for _, name := range sets.List(sets.KeySet(m)) {
			child := m[name]
			walk(&child, visit)
		}
	}
	walkList := func(list []apiextensionsv1.JSONSchemaProps) {
		for i := range list {
			walk(&list[i], visit)
		}
	}
	if s.Items != nil {
		walk(s.Items.Schema, visit)
		walkList(s.Items.JSONSchemas)
	}
	walkList(s.AllOf)
	walkList(s.OneOf)
	walkList(s.AnyOf)
	walk(s.Not, visit)
	walkMap(s.Properties)
	if s.AdditionalProperties != nil {
		walk(s.AdditionalProperties.Schema, visit)
	}
	walkMap(s.PatternProperties)
	if s.AdditionalItems != nil {
		walk(s.AdditionalItems.Schema, visit)
	}
	walkMap(s.Definitions)
}
