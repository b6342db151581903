package crd

import (
	"errors"
	"fmt"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeversion "k8s.io/apimachinery/pkg/version"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/seams"
	"github.com/skiff-k8s/skiff/apiserver/webhook"
)

// build turns a definition into the resource that is cached and stored, in the storage
// version, and the versions that are served.
//
// Objects stay in the store in the version they were written in. The cache holds them in the
// storage version if only apiVersion tells the versions apart; else as they are, since what a
// webhook makes of them may fail and then must fail the requests that need it.
func build(crd *apiextensionsv1.CustomResourceDefinition, caller *webhook.Caller) (*api.Resource, []*seams.Served, error) {
	convert, err := converterOf(crd, caller)
	if err != nil {
		return nil, nil, err
	}
	mixed := crd.Spec.Conversion != nil && crd.Spec.Conversion.Strategy == apiextensionsv1.WebhookConverter
	names := &crd.Status.AcceptedNames
	if names.Plural == "" || names.Kind == "" {
		return nil, nil, errors.New("the names have not been accepted")
	}
	var stored *version
	var versions []*version
	for i := range crd.Spec.Versions {
		v, err := newVersion(crd, &crd.Spec.Versions[i])
		if err != nil {
			return nil, nil, err
		}
		if v.Storage {
			stored = v
		}
		versions = append(versions, v)
	}
	if stored == nil {
		return nil, nil, errors.New("no version is stored")
	}
	cached := resourceOf(crd, stored)
	cached.Default = func(obj runtime.Object) {
		u := obj.(*unstructured.Unstructured)
		if !mixed {
			u.SetGroupVersionKind(stored.gvk)
			stored.read(u)
		} else if i := slices.IndexFunc(versions, func(v *version) bool { return v.gvk == u.GroupVersionKind() }); i >= 0 {
			versions[i].read(u)
		}
	}
	var served []*seams.Served
	for _, v := range versions {
		if !v.Served {
			continue
		}
		s := &seams.Served{
			Resource: resourceOf(crd, v),
			Storage:  cached.Group + "/" + cached.Plural,
			Prune:    v.prune,
			Types:    v.types(),
			OpenAPI:  v.openAPI,
		}
		s.StorageVersion = stored.gvk.GroupVersion()
		if v != stored {
			s.ToStored = convert.converted(stored)
		}
		// Also for the stored version itself: which one that is may just be changing, and for a
		// moment the cache holds the other.
		if len(versions) > 1 || mixed {
			s.FromStored = convert.converted(v)
		}
		if v.Deprecated {
			s.Deprecated = deprecation(crd, v)
		}
		if crd.DeletionTimestamp != nil {
			gr := schema.GroupResource{Group: crd.Spec.Group, Resource: names.Plural}
			s.Unavailable = func() error {
				err := apierrors.NewMethodNotSupported(gr, "create")
				err.ErrStatus.Message = "create not allowed while custom resource definition is terminating"
				return err
			}
		}
		served = append(served, s)
	}
	selectByVersion(cached, served, versions, convert, mixed)
	return cached, served, nil
}

func resourceOf(crd *apiextensionsv1.CustomResourceDefinition, v *version) *api.Resource {
	names := &crd.Status.AcceptedNames
	gv := v.gvk.GroupVersion()
	r := &api.Resource{
		Group: crd.Spec.Group, Version: v.Name, Kind: names.Kind, ListKind: names.ListKind,
		Plural: names.Plural, Singular: names.Singular, ShortNames: names.ShortNames, Categories: names.Categories,
		Namespaced:  v.namespaced,
		StoragePath: crd.Spec.Group + "/" + names.Plural,
		New: func() api.Object {
			u := &unstructured.Unstructured{}
			u.SetGroupVersionKind(v.gvk)
			return u
		},
		NewList: func() runtime.Object {
			l := &unstructured.UnstructuredList{}
			l.SetGroupVersionKind(gv.WithKind(names.ListKind))
			return l
		},
		Default:  v.fill,
		Strategy: v.strategy(),
		Scale:    scaleOf(v.scale()),
	}
	if v.hasStatus() {
		r.Subresources = []api.Subresource{{Name: "status", Verbs: []string{"get", "patch", "update"}, Strategy: v.statusStrategy()}}
	}
	r.FieldLabels, r.Fields = v.selectable()
	r.Columns, r.Row = v.table()
	return r
}

func deprecation(crd *apiextensionsv1.CustomResourceDefinition, v *version) string {
	if v.DeprecationWarning != nil {
		return *v.DeprecationWarning
	}
	msg := fmt.Sprintf("%s/%s %s is deprecated", crd.Spec.Group, v.Name, crd.Spec.Names.Kind)
	var newer []string
	for _, o := range crd.Spec.Versions {
		if o.Served && !o.Deprecated && kubeversion.CompareKubeAwareVersionStrings(v.Name, o.Name) < 0 {
			newer = append(newer, o.Name)
		}
	}
	if len(newer) == 0 {
		return msg
	}
	newest := slices.MaxFunc(newer, kubeversion.CompareKubeAwareVersionStrings)
	return msg + fmt.Sprintf("; use %s/%s %s", crd.Spec.Group, newest, crd.Spec.Names.Kind)
}
