// Package apiextensions declares the resources of apiextensions.k8s.io.
//
// Owns: customresourcedefinitions as objects, by the published rules of
// k8s.io/apiextensions-apiserver. Must not: serve custom resources, that is the API
// server's, which also sets the conditions and cleans up on delete.
package apiextensions

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsv1beta1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1beta1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

// Resources lists what the group serves.
func Resources() []*api.Resource { return []*api.Resource{customResourceDefinitions()} }

func customResourceDefinitions() *api.Resource {
	return &api.Resource{
		Group: apiextensionsv1.GroupName, Version: "v1",
		Kind: "CustomResourceDefinition", Plural: "customresourcedefinitions",
		ShortNames: []string{"crd", "crds"}, Categories: []string{"api-extensions"},
		StoragePath: "apiextensions.k8s.io/customresourcedefinitions", StorageVersion: apiextensionsv1beta1.SchemeGroupVersion, StoredAsJSON: true,
		New:     func() api.Object { return &apiextensionsv1.CustomResourceDefinition{} },
		NewList: func() runtime.Object { return &apiextensionsv1.CustomResourceDefinitionList{} },
		Default: api.Defaults(apiextensionsv1.SetObjectDefaults_CustomResourceDefinition),
		Strategy: api.Strategy{
			// The name is <plural>.<group>: validated with the object.
			NameErrors: anyName,
			PrepareCreate: api.OnCreate(func(c *apiextensionsv1.CustomResourceDefinition) {
				c.Status = apiextensionsv1.CustomResourceDefinitionStatus{}
				recordStoredVersion(c)
			}),
			Validate: func(ctx context.Context, obj runtime.Object) field.ErrorList {
				return validate(ctx, obj.(*apiextensionsv1.CustomResourceDefinition), nil)
			},
			PrepareUpdate: api.OnUpdate(func(c, old *apiextensionsv1.CustomResourceDefinition) {
				old.Status.DeepCopyInto(&c.Status)
				recordStoredVersion(c)
			}),
			ValidateUpdate: func(ctx context.Context, obj, old runtime.Object) field.ErrorList {
				return validate(ctx, obj.(*apiextensionsv1.CustomResourceDefinition), old.(*apiextensionsv1.CustomResourceDefinition))
			},
			Warnings:        api.Warn(warnings),
			HasGeneration:   true,
			RequireRevision: true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate: api.OnUpdate(func(c, old *apiextensionsv1.CustomResourceDefinition) { c.Spec = old.Spec }),
				ValidateUpdate: api.CheckUpdate(func(c, _ *apiextensionsv1.CustomResourceDefinition) field.ErrorList {
					internal, errs := convert(c)
					if internal == nil {
						return errs
					}
					return crdvalidation.ValidateCustomResourceDefinitionStatus(&internal.Status, field.NewPath("status"))
				}),
				RequireRevision:   true,
				IgnoredApplyPaths: []string{"spec"},
			},
		}},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Scope", "string", "Cluster/Namespaced", 0),
			api.Column("Versions", "string", "Served versions", 0),
			api.Column("Created At", "date", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"], 0),
			api.Column("Group", "string", "API group", api.Wide),
			api.Column("Kind", "string", "CustomResource kind", api.Wide),
			api.Column("ShortNames", "string", "Short names", api.Wide),
			api.Column("Established", "boolean", "Established status", api.Wide),
		},
		Row: api.Cells(func(c *apiextensionsv1.CustomResourceDefinition, _ time.Time) []any {
			return []any{c.Name, string(c.Spec.Scope), servedVersions(c), c.CreationTimestamp.UTC().Format(time.RFC3339),
				c.Spec.Group, c.Spec.Names.Kind, strings.Join(c.Spec.Names.ShortNames, ","), established(c)}
		}),
	}
}

// servedVersions tells which of them is stored.
func servedVersions(c *apiextensionsv1.CustomResourceDefinition) string {
	var out []string
	for _, v := range c.Spec.Versions {
		switch {
		case v.Served && v.Storage:
			out = append(out, v.Name+"(storage)")
		case v.Served:
			out = append(out, v.Name)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

func established(c *apiextensionsv1.CustomResourceDefinition) bool {
	return slices.ContainsFunc(c.Status.Conditions, func(k apiextensionsv1.CustomResourceDefinitionCondition) bool {
		return k.Type == apiextensionsv1.Established && k.Status == apiextensionsv1.ConditionTrue
	})
}

func anyName(string, bool) []string { return nil }

// recordStoredVersion remembers that objects may exist in the version that is stored from now on.
func recordStoredVersion(c *apiextensionsv1.CustomResourceDefinition) {
	for i := range c.Spec.Versions {
		if v := &c.Spec.Versions[i]; v.Storage {
			if !slices.Contains(c.Status.StoredVersions, v.Name) {
				c.Status.StoredVersions = append(c.Status.StoredVersions, v.Name)
			}
			return
		}
	}
}

// convert makes the library's internal form, which its validation is written for.
func convert(c *apiextensionsv1.CustomResourceDefinition) (*apiextensions.CustomResourceDefinition, field.ErrorList) {
	// The conversion keeps references to its input, and validation may add to them.
	internal := &apiextensions.CustomResourceDefinition{}
	err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(c.DeepCopy(), internal, nil)
	if err != nil {
		return nil, field.ErrorList{field.InternalError(nil, fmt.Errorf("convert customresourcedefinition %q: %w", c.Name, err))}
	}
	return internal, nil
}

// validate takes a nil old on create. The library also checks the metadata, which the
// generic code has done already: those errors are left out.
func validate(ctx context.Context, c, old *apiextensionsv1.CustomResourceDefinition) field.ErrorList {
	internal, errs := convert(c)
	if internal == nil {
		return errs
	}
	if old == nil {
		errs = crdvalidation.ValidateCustomResourceDefinition(ctx, internal)
		return without(errs, apivalidation.ValidateObjectMeta(&c.ObjectMeta, false, anyName, field.NewPath("metadata")))
	}
	before, errs := convert(old)
	if before == nil {
		return errs
	}
	errs = crdvalidation.ValidateCustomResourceDefinitionUpdate(ctx, internal, before)
	return without(errs, metadataUpdateErrors(&c.ObjectMeta, &old.ObjectMeta))
}

func metadataUpdateErrors(m, old *metav1.ObjectMeta) field.ErrorList {
	p := field.NewPath("metadata")
	return append(apivalidation.ValidateObjectMetaUpdate(m, old, p), apivalidation.ValidateObjectMeta(m, false, anyName, p)...)
}

func without(errs, known field.ErrorList) field.ErrorList {
	return slices.DeleteFunc(errs, func(e *field.Error) bool {
		return slices.ContainsFunc(known, func(k *field.Error) bool { return k.Error() == e.Error() })
	})
}
