package crd

import (
	"sync"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

const objectMetaRef = "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"

// kindExtension marks a schema as that of a kind.
const kindExtension = "x-kubernetes-group-version-kind"

// openAPI is the published schema of the kind.
func (v *version) openAPI() *spec.Schema {
	return v.kindSchema(spec.RefSchema(objectMetaRef).WithDescription("Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"))
}

// kindSchema is the definition's schema with what every kind has.
func (v *version) kindSchema(metadata *spec.Schema) *spec.Schema {
	s := &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}}
	if v.schema != nil && len(structuralschema.ValidateStructural(nil, v.schema)) == 0 {
		s = v.schema.Unfold().ToKubeOpenAPI()
		s.SetProperty("metadata", *metadata)
		addType(s)
		addEmbedded(s, metadata)
	}
	s.AddExtension(kindExtension, []any{map[string]any{"group": v.gvk.Group, "version": v.gvk.Version, "kind": v.gvk.Kind}})
	if len(v.SelectableFields) > 0 {
		var paths []any
		for _, f := range v.SelectableFields {
			paths = append(paths, map[string]any{"fieldPath": f.JSONPath[1:]})
		}
		s.AddExtension("x-kubernetes-selectable-fields", paths)
	}
	return s
}

func addType(s *spec.Schema) {
	s.SetProperty("apiVersion", *spec.StringProperty().WithDescription("APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources"))
	s.SetProperty("kind", *spec.StringProperty().WithDescription("Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds"))
}

// addEmbedded completes the schemas of whole objects within objects.
func addEmbedded(s *spec.Schema, metadata *spec.Schema) {
	if s == nil {
		return
	}
	for k := range s.Properties {
		p := s.Properties[k]
		addEmbedded(&p, metadata)
		s.Properties[k] = p
	}
	if s.Items != nil {
		addEmbedded(s.Items.Schema, metadata)
	}
	if s.AdditionalProperties != nil {
		addEmbedded(s.AdditionalProperties.Schema, metadata)
	}
	if is, ok := s.Extensions.GetBool("x-kubernetes-embedded-resource"); !ok || !is {
		return
	}
	addType(s)
	s.SetProperty("metadata", *metadata)
	for _, name := range []string{"kind", "apiVersion"} {
		required := false
		for _, r := range s.Required {
			required = required || r == name
		}
		if !required {
			s.Required = append(s.Required, name)
		}
	}
}

// mergeTypes is how fields of the kind merge in server-side apply; made when the first object is written.
type mergeTypes struct {
	make func() (managedfields.TypeConverter, error)
}

func (v *version) types() managedfields.TypeConverter {
	return &mergeTypes{make: sync.OnceValues(func() (managedfields.TypeConverter, error) {
		if v.schema == nil {
			return managedfields.NewDeducedTypeConverter(), nil
		}
		return managedfields.NewTypeConverter(map[string]*spec.Schema{"kind": v.kindSchema(mergedMeta())}, v.preserve)
	})}
}

func (t *mergeTypes) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	c, err := t.make()
	if err != nil {
		return nil, err
	}
	return c.ObjectToTyped(obj, opts...)
}

func (t *mergeTypes) TypedToObject(value *typed.TypedValue) (runtime.Object, error) {
	c, err := t.make()
	if err != nil {
		return nil, err
	}
	return c.TypedToObject(value)
}

// mergedMeta says how the fields of metadata merge.
func mergedMeta() *spec.Schema {
	text := func() *spec.Schema { return spec.StringProperty() }
	textMap := func() *spec.Schema { return spec.MapProperty(text()) }
	owner := &spec.Schema{SchemaProps: spec.SchemaProps{
		Type: spec.StringOrArray{"object"},
		Properties: map[string]spec.Schema{
			"apiVersion": *text(), "kind": *text(), "name": *text(), "uid": *text(),
			"controller": *spec.BooleanProperty(), "blockOwnerDeletion": *spec.BooleanProperty(),
		},
	}}
	owner.AddExtension("x-kubernetes-map-type", "atomic")
	owners := spec.ArrayProperty(owner)
	owners.AddExtension("x-kubernetes-list-type", "map")
	owners.AddExtension("x-kubernetes-list-map-keys", []any{"uid"})
	finalizers := spec.ArrayProperty(text())
	finalizers.AddExtension("x-kubernetes-list-type", "set")
	anything := &spec.Schema{SchemaProps: spec.SchemaProps{Type: spec.StringOrArray{"object"}}}
	anything.AddExtension("x-kubernetes-preserve-unknown-fields", true)
	managed := spec.ArrayProperty(anything)
	managed.AddExtension("x-kubernetes-list-type", "atomic")
	return &spec.Schema{SchemaProps: spec.SchemaProps{
		Type: spec.StringOrArray{"object"},
		Properties: map[string]spec.Schema{
			"name": *text(), "generateName": *text(), "namespace": *text(), "selfLink": *text(), "uid": *text(), "resourceVersion": *text(),
			"generation": *spec.Int64Property(), "creationTimestamp": *text(), "deletionTimestamp": *text(), "deletionGracePeriodSeconds": *spec.Int64Property(),
			"labels": *textMap(), "annotations": *textMap(), "ownerReferences": *owners, "finalizers": *finalizers, "managedFields": *managed,
		},
	}}
}
