package crd

import (
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// version is one version of a definition with what its schema makes possible. Validators
// and CEL programs cost time and memory, so they are made when the first object is validated.
type version struct {
	apiextensionsv1.CustomResourceDefinitionVersion
	gvk        schema.GroupVersionKind
	namespaced bool
	preserve   bool // unknown fields, of the definition as a whole
	schema     *structuralschema.Structural
	internal   *apiextensions.JSONSchemaProps

	checks func() (*checks, error)
}

// checks are the validators of a version.
type checks struct {
	object, status validation.SchemaValidator // status nil: no schema of its own
	rules          *cel.Validator             // nil: none
}

func newVersion(crd *apiextensionsv1.CustomResourceDefinition, v *apiextensionsv1.CustomResourceDefinitionVersion) (*version, error) {
	n := &version{
		CustomResourceDefinitionVersion: *v,
		gvk:                             schema.GroupVersionKind{Group: crd.Spec.Group, Version: v.Name, Kind: crd.Status.AcceptedNames.Kind},
		namespaced:                      crd.Spec.Scope == apiextensionsv1.NamespaceScoped,
		preserve:                        crd.Spec.PreserveUnknownFields,
	}
	var err error
	if n.internal, err = internalSchema(v); err != nil {
		return nil, err
	}
	if n.internal != nil {
		s, err := structuralschema.NewStructural(n.internal)
		switch {
		case err == nil:
			if !n.preserve {
				s = s.DeepCopy() // what it was made from is not ours to change
				if err := defaulting.PruneDefaults(s); err != nil {
					return nil, fmt.Errorf("prune the defaults of version %s: %w", v.Name, err)
				}
			}
			n.schema = s
		case !n.preserve:
			return nil, fmt.Errorf("schema of version %s is not structural: %w", v.Name, err)
		}
	}
	n.checks = sync.OnceValues(n.newChecks)
	return n, nil
}

func (v *version) newChecks() (*checks, error) {
	c := &checks{}
	var err error
	if c.object, _, err = validation.NewSchemaValidator(v.internal); err != nil {
		return nil, fmt.Errorf("make the validator of %s: %w", v.gvk, err)
	}
	if v.hasStatus() && v.internal != nil {
		if s, ok := v.internal.Properties["status"]; ok {
			if c.status, _, err = validation.NewSchemaValidator(&s); err != nil {
				return nil, fmt.Errorf("make the validator of the status of %s: %w", v.gvk, err)
			}
		}
	}
	c.rules = cel.NewValidator(v.schema, true, celconfig.PerCallLimit)
	return c, nil
}

func (v *version) hasStatus() bool { return v.Subresources != nil && v.Subresources.Status != nil }

func (v *version) scale() *apiextensionsv1.CustomResourceSubresourceScale {
	if v.Subresources == nil {
		return nil
	}
	return v.Subresources.Scale
}

// prune drops from an object what the schema does not know, and returns the paths.
func (v *version) prune(obj runtime.Object) []string {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	var unknown []string
	meta, found, paths, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{ReturnUnknownFieldPaths: true})
	if err == nil {
		unknown = append(unknown, paths...)
	}
	if !v.preserve {
		opts := structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true}
		unknown = append(unknown, pruning.PruneWithOptions(u.Object, v.schema, true, opts)...)
		defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, v.schema)
	}
	// Malformed metadata of embedded objects stays, for validation to refuse.
	if cErr, paths := objectmeta.CoerceWithOptions(nil, u.Object, v.schema, false, objectmeta.CoerceOptions{ReturnUnknownFieldPaths: true}); cErr == nil {
		unknown = append(unknown, paths...)
	}
	if err == nil && found {
		// Written back in canonical form; of what it came from nothing is lost but unknown fields.
		_ = objectmeta.SetObjectMeta(u.Object, meta)
	}
	return unknown
}

// fill sets the schema's defaults.
func (v *version) fill(obj runtime.Object) {
	if u, ok := obj.(*unstructured.Unstructured); ok && v.schema != nil {
		defaulting.Default(u.Object, v.schema)
	}
}

// read makes an object from the store one of this version: pruned by today's schema,
// malformed metadata dropped, defaults set.
func (v *version) read(obj runtime.Object) {
	u, ok := obj.(*unstructured.Unstructured)
	if !ok {
		return
	}
	meta, found, _, err := objectmeta.GetObjectMetaWithOptions(u.Object, objectmeta.ObjectMetaOptions{DropMalformedFields: true})
	if !v.preserve {
		pruning.Prune(u.Object, v.schema, true)
		defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, v.schema)
	}
	_ = objectmeta.Coerce(nil, u.Object, v.schema, false, true) // drops what it cannot read
	if err == nil && found {
		if meta.Generation == 0 {
			meta.Generation = 1
		}
		_ = objectmeta.SetObjectMeta(u.Object, meta)
	}
	v.fill(u)
}
