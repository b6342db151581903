package apply

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// NewTypes is how the fields of the scheme's kinds merge, by their schemas in the parser.
//
// An object that is a Go value fits its schema, which was made of the same type; where duplicates
// are allowed too there is nothing to find out by walking over all of it, which every write
// would do twice. Applied configurations come unstructured and are checked.
func NewTypes(scheme *runtime.Scheme, parser *typed.Parser) managedfields.TypeConverter {
	return types{managedfields.NewSchemeTypeConverter(scheme, parser), scheme, parser}
}

type types struct {
	managedfields.TypeConverter
	scheme *runtime.Scheme
	parser *typed.Parser
}

func (t types) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if _, ok := obj.(*unstructured.Unstructured); ok || !slices.Contains(opts, typed.AllowDuplicates) {
		return t.TypeConverter.ObjectToTyped(obj, opts...)
	}
	kind := obj.GetObjectKind().GroupVersionKind()
	name, err := t.scheme.ToOpenAPIDefinitionName(kind)
	if err != nil {
		return nil, fmt.Errorf("find the schema of %s: %w", kind, err)
	}
	v, err := value.NewValueReflect(obj)
	if err != nil {
		return nil, fmt.Errorf("look at a %s: %w", kind.Kind, err)
	}
	p := t.parser.Type(name)
	if !p.IsValid() {
		return t.TypeConverter.ObjectToTyped(obj, opts...) // which says what is wrong
	}
	return typed.AsTypedUnvalidated(v, p.Schema, p.TypeRef), nil
}
