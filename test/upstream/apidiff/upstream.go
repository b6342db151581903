package main

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"time"

	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/printers"
	"k8s.io/kubernetes/pkg/printers/internalversion"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/apitest"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

// upstream is an object in upstream's hands: in its internal form.
type upstream struct {
	r    *api.Resource
	obj  runtime.Object
	meta metav1.Object
}

// take defaults a copy of the object as upstream does when it reads a request.
func take(r *api.Resource, obj runtime.Object) upstream {
	obj = obj.DeepCopyObject()
	obj.GetObjectKind().SetGroupVersionKind(r.GVK())
	legacyscheme.Scheme.Default(obj)
	internal, err := legacyscheme.Scheme.ConvertToVersion(obj, schema.GroupVersion{Group: r.Group, Version: runtime.APIVersionInternal})
	must(err)
	m, err := apimeta.Accessor(internal)
	must(err)
	return upstream{r, internal, m}
}

// served is the object as upstream would answer it.
func (u upstream) served() api.Object {
	obj, err := legacyscheme.Scheme.ConvertToVersion(u.obj, u.r.GVK().GroupVersion())
	must(err)
	legacyscheme.Scheme.Default(obj)
	return copied(u.r, obj)
}

// copied sends an object through JSON.
func copied(r *api.Resource, obj any) api.Object {
	text, err := json.Marshal(obj)
	must(err)
	out := r.New()
	must(json.Unmarshal(text, out))
	out.GetObjectKind().SetGroupVersionKind(r.GVK())
	return out
}

type recorder struct{ list []string }

func (r *recorder) AddWarning(_, text string) { r.list = append(r.list, text) }

func (u upstream) context(verb string) (context.Context, *recorder) {
	w := &recorder{}
	ctx := request.WithNamespace(context.Background(), "ns")
	ctx = request.WithRequestInfo(ctx, &request.RequestInfo{
		APIGroup: u.r.Group, APIVersion: u.r.Version, Resource: u.r.Plural, IsResourceRequest: true, Verb: verb,
	})
	return warning.WithWarningRecorder(ctx, w), w
}

func (u upstream) create(s strategy) (errs, warnings []string) {
	ctx, w := u.context("create")
	s.PrepareForCreate(ctx, u.obj)
	errs = texts(rest.ValidateCreate(ctx, u.obj, s))
	if len(errs) == 0 {
		warnings = append(w.list, s.WarningsOnCreate(ctx, u.obj)...)
	}
	return errs, apitest.Told(warnings)
}

func (u upstream) update(s strategy, old upstream) []string {
	ctx, _ := u.context("update")
	s.PrepareForUpdate(ctx, u.obj, old.obj)
	if old.meta.GetDeletionTimestamp() != nil {
		u.meta.SetDeletionTimestamp(old.meta.GetDeletionTimestamp())
	}
	return texts(rest.ValidateUpdate(ctx, u.obj, old.obj, s))
}

func texts(errs field.ErrorList) []string { return apitest.Told(apitest.Texts(errs)) }

var (
	tables = printers.NewTableGenerator().With(internalversion.AddHandlers)
	age    = regexp.MustCompile(`\b(\d+[ydhms])+\b`)
)

// row is the object as kubectl prints it, with its ages left out; "" if upstream
// has no columns for it.
func (u upstream) row() (cells string, columns []metav1.TableColumnDefinition) {
	table, err := tables.GenerateTable(u.obj, printers.GenerateOptions{Wide: true})
	if err != nil {
		return "", nil
	}
	return cellText(table.Rows[0].Cells), table.ColumnDefinitions
}

func cellText(cells []any) string {
	text, err := json.Marshal(cells)
	must(err)
	return age.ReplaceAllString(string(text), "AGE")
}

func ourRow(r *api.Resource, obj runtime.Object) string {
	if r.Row == nil {
		return ""
	}
	return cellText(r.Row(obj, time.Now()))
}

func indented(v any) string {
	text, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return fmt.Sprint(err)
	}
	return string(text)
}
