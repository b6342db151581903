package apps

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func controllerRevisions() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "ControllerRevision", Plural: "controllerrevisions",
		Namespaced:  true,
		StoragePath: "controllerrevisions",
		New:         func() api.Object { return &appsv1.ControllerRevision{} },
		NewList:     func() runtime.Object { return &appsv1.ControllerRevisionList{} },
		Strategy: api.Strategy{
			Validate: api.Check(func(r *appsv1.ControllerRevision) field.ErrorList {
				errs := nonNegative(r.Revision, field.NewPath("revision"))
				return append(errs, validateRevisionData(r, field.NewPath("data"))...)
			}),
			ValidateUpdate: api.CheckUpdate(func(r, old *appsv1.ControllerRevision) field.ErrorList {
				errs := nonNegative(r.Revision, field.NewPath("revision"))
				return append(errs, apivalidation.ValidateImmutableField(r.Data, old.Data, field.NewPath("data"))...)
			}),
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Controller", "string", "Controller of the object", 0),
			api.Column("Revision", "string", appsv1.ControllerRevision{}.SwaggerDoc()["revision"], 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(r *appsv1.ControllerRevision, now time.Time) []any {
			return []any{r.Name, controllerName(r), r.Revision, api.Age(r.CreationTimestamp, now)}
		}),
	}
}

func controllerName(obj metav1.Object) string {
	ref := metav1.GetControllerOf(obj)
	if ref == nil {
		return "<none>"
	}
	gk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
	return strings.ToLower(gk.String()) + "/" + ref.Name
}

func validateRevisionData(r *appsv1.ControllerRevision, p *field.Path) field.ErrorList {
	if r.Data.Raw == nil {
		return field.ErrorList{field.Required(p, "data is mandatory")}
	}
	var v any
	if err := json.Unmarshal(r.Data.Raw, &v); err != nil {
		return field.ErrorList{field.Invalid(p, "<value omitted>", fmt.Sprintf("error parsing data: %v", err))}
	}
	if v == nil {
		return field.ErrorList{field.Required(p, "data is mandatory")}
	}
	if _, ok := v.(map[string]any); !ok {
		return field.ErrorList{field.Required(p, "data must be a valid JSON object")}
	}
	return nil
}
