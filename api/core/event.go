package core

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/meta"
)

// EventTTL is how long events live after their last write.
const EventTTL = time.Hour

func events() *api.Resource {
	doc := v1.Event{}.SwaggerDoc()
	return &api.Resource{
		Version: "v1", Kind: "Event", Plural: "events", ShortNames: []string{"ev"},
		Namespaced: true, StoragePath: "events",
		New:     func() api.Object { return &v1.Event{} },
		NewList: func() runtime.Object { return &v1.EventList{} },
		Strategy: api.Strategy{
			NameErrors: meta.PathSegment,
			Validate:   api.Check(func(e *v1.Event) field.ErrorList { return ValidateEvent(e, "reportingComponent") }),
			ValidateUpdate: func(_ context.Context, obj, _ runtime.Object) field.ErrorList {
				return ValidateEvent(obj.(*v1.Event), "reportingComponent")
			},
			CreateOnUpdate: true,
		},
		TTL:    func(runtime.Object) time.Duration { return EventTTL },
		Fields: api.Selectable(EventFields),
		FieldLabels: []string{
			"involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
			"involvedObject.apiVersion", "involvedObject.resourceVersion", "involvedObject.fieldPath",
			"reason", "reportingComponent", "source", "type",
		},
		Columns: []metav1.TableColumnDefinition{
			api.Column("Last Seen", "string", doc["lastTimestamp"], 0),
			api.Column("Type", "string", doc["type"], 0),
			api.Column("Reason", "string", doc["reason"], 0),
			api.Column("Object", "string", doc["involvedObject"], 0),
			api.Column("Subobject", "string", v1.ObjectReference{}.SwaggerDoc()["fieldPath"], api.Wide),
			api.Column("Source", "string", doc["source"], api.Wide),
			api.Column("Message", "string", doc["message"], 0),
			api.Column("First Seen", "string", doc["firstTimestamp"], api.Wide),
			api.Column("Count", "string", doc["count"], api.Wide),
			{Name: "Name", Type: "string", Format: "name", Priority: api.Wide, Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]},
		},
		Row: api.Cells(EventRow),
	}
}

// EventFields are the selectable fields of an event.
func EventFields(e *v1.Event) fields.Set {
	source := e.Source.Component
	if source == "" {
		source = e.ReportingController
	}
	return fields.Set{
		"involvedObject.kind":            e.InvolvedObject.Kind,
		"involvedObject.namespace":       e.InvolvedObject.Namespace,
		"involvedObject.name":            e.InvolvedObject.Name,
		"involvedObject.uid":             string(e.InvolvedObject.UID),
		"involvedObject.apiVersion":      e.InvolvedObject.APIVersion,
		"involvedObject.resourceVersion": e.InvolvedObject.ResourceVersion,
		"involvedObject.fieldPath":       e.InvolvedObject.FieldPath,
		"reason":                         e.Reason,
		"reportingComponent":             e.ReportingController,
		"source":                         source,
		"type":                           e.Type,
	}
}

// EventRow prints an event.
func EventRow(e *v1.Event, now time.Time) []any {
	first := api.Age(e.FirstTimestamp, now)
	if e.FirstTimestamp.IsZero() {
		first = api.Age(metav1.Time(e.EventTime), now)
	}
	last, count := first, e.Count
	if !e.LastTimestamp.IsZero() {
		last = api.Age(e.LastTimestamp, now)
	}
	if e.Series != nil {
		last, count = api.Age(metav1.Time(e.Series.LastObservedTime), now), e.Series.Count
	} else if count == 0 {
		count = 1
	}
	object := strings.ToLower(e.InvolvedObject.Kind)
	if e.InvolvedObject.Name != "" {
		object += "/" + e.InvolvedObject.Name
	}
	source, host := e.Source.Component, e.Source.Host
	if source == "" {
		source = e.ReportingController
	}
	if host == "" {
		host = e.ReportingInstance
	}
	if host != "" {
		source += ", " + host
	}
	return []any{last, e.Type, e.Reason, object, e.InvolvedObject.FieldPath, source,
		strings.TrimSpace(e.Message), first, int64(count), e.Name}
}

// ValidateEvent checks what holds for events of both API groups; controllerField
// is what the group calls reportingController.
func ValidateEvent(e *v1.Event, controllerField string) field.ErrorList {
	var errs field.ErrorList
	namespace := field.NewPath("involvedObject", "namespace")
	const mismatch = "does not match event.namespace"
	if e.EventTime.IsZero() { // in the style of before events.k8s.io
		switch e.InvolvedObject.Namespace {
		case e.Namespace:
		case "":
			if e.Namespace != metav1.NamespaceDefault {
				errs = append(errs, field.Invalid(namespace, e.InvolvedObject.Namespace, mismatch))
			}
		default:
			errs = append(errs, field.Invalid(namespace, e.InvolvedObject.Namespace, mismatch))
		}
		return errs
	}
	if e.InvolvedObject.Namespace == "" && e.Namespace != metav1.NamespaceDefault && e.Namespace != metav1.NamespaceSystem {
		errs = append(errs, field.Invalid(namespace, e.InvolvedObject.Namespace, mismatch))
	}
	required := func(name, value string, most int) {
		if value == "" {
			errs = append(errs, field.Required(field.NewPath(name), ""))
		}
		if most > 0 && len(value) > most {
			errs = append(errs, field.Invalid(field.NewPath(name), "", fmt.Sprintf("can have at most %v characters", most)))
		}
	}
	required(controllerField, e.ReportingController, 0)
	errs = append(errs, qualifiedName(e.ReportingController, field.NewPath(controllerField))...)
	required("reportingInstance", e.ReportingInstance, 128)
	required("action", e.Action, 128)
	required("reason", e.Reason, 128)
	if len(e.Message) > 1024 {
		errs = append(errs, field.Invalid(field.NewPath("message"), "", "can have at most 1024 characters"))
	}
	return errs
}
