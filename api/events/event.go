// Package events declares the resources of events.k8s.io.
//
// Owns: its view of the Events that the core group stores: the conversion between the two
// and the stricter rules of this one. Must not: store anything of its own.
package events

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/conversion"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/core"
)

// Resources lists what the group serves.
func Resources() []*api.Resource { return []*api.Resource{events()} }

// AddConversions lets a scheme convert between the two kinds of Event.
func AddConversions(s *runtime.Scheme) error {
	if err := s.AddConversionFunc((*corev1.Event)(nil), (*eventsv1.Event)(nil), func(in, out any, _ conversion.Scope) error {
		fromCore(in.(*corev1.Event), out.(*eventsv1.Event))
		return nil
	}); err != nil {
		return err
	}
	return s.AddConversionFunc((*eventsv1.Event)(nil), (*corev1.Event)(nil), func(in, out any, _ conversion.Scope) error {
		toCore(in.(*eventsv1.Event), out.(*corev1.Event))
		return nil
	})
}

func events() *api.Resource {
	stored := coreEvents()
	labels := map[string]string{
		"regarding.kind":            "involvedObject.kind",
		"regarding.namespace":       "involvedObject.namespace",
		"regarding.name":            "involvedObject.name",
		"regarding.uid":             "involvedObject.uid",
		"regarding.apiVersion":      "involvedObject.apiVersion",
		"regarding.resourceVersion": "involvedObject.resourceVersion",
		"regarding.fieldPath":       "involvedObject.fieldPath",
		"reportingController":       "reportingComponent",
		"reason":                    "reason",
		"type":                      "type",
	}
	r := &api.Resource{
		Group: eventsv1.GroupName, Version: "v1",
		Kind: "Event", Plural: "events", ShortNames: []string{"ev"},
		Namespaced:  true,
		StoragePath: stored.StoragePath,
		New:         func() api.Object { return &eventsv1.Event{} },
		NewList:     func() runtime.Object { return &eventsv1.EventList{} },
		Strategy: api.Strategy{
			Validate:       api.Check(validateEvent),
			ValidateUpdate: api.CheckUpdate(validateEventUpdate),
			CreateOnUpdate: true,
		},
		TTL: stored.TTL,
		Fields: api.Selectable(func(e *eventsv1.Event) fields.Set {
			all, own := core.EventFields(asCore(e)), fields.Set{}
			for label, in := range labels {
				own[label] = all[in]
			}
			return own
		}),
		FieldAliases: labels,
		Columns:      stored.Columns,
		Row: api.Cells(func(e *eventsv1.Event, now time.Time) []any {
			return core.EventRow(asCore(e), now)
		}),
	}
	r.FieldLabels = slices.Sorted(maps.Keys(labels))
	return r
}

// coreEvents is the resource that stores events.
func coreEvents() *api.Resource {
	for _, r := range core.Resources() {
		if r.Kind == "Event" {
			return r
		}
	}
	return &api.Resource{}
}

func asCore(e *eventsv1.Event) *corev1.Event {
	out := &corev1.Event{}
	toCore(e, out)
	return out
}

func toCore(e *eventsv1.Event, out *corev1.Event) {
	e = e.DeepCopy()
	out.ObjectMeta = e.ObjectMeta
	out.InvolvedObject = e.Regarding
	out.Related = e.Related
	out.Reason, out.Message, out.Action, out.Type = e.Reason, e.Note, e.Action, e.Type
	out.ReportingController, out.ReportingInstance = e.ReportingController, e.ReportingInstance
	out.EventTime = e.EventTime
	out.Series = nil
	if e.Series != nil {
		out.Series = &corev1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	out.Source = e.DeprecatedSource
	out.FirstTimestamp, out.LastTimestamp, out.Count = e.DeprecatedFirstTimestamp, e.DeprecatedLastTimestamp, e.DeprecatedCount
}

func fromCore(e *corev1.Event, out *eventsv1.Event) {
	e = e.DeepCopy()
	out.ObjectMeta = e.ObjectMeta
	out.Regarding = e.InvolvedObject
	out.Related = e.Related
	out.Reason, out.Note, out.Action, out.Type = e.Reason, e.Message, e.Action, e.Type
	out.ReportingController, out.ReportingInstance = e.ReportingController, e.ReportingInstance
	out.EventTime = e.EventTime
	out.Series = nil
	if e.Series != nil {
		out.Series = &eventsv1.EventSeries{Count: e.Series.Count, LastObservedTime: e.Series.LastObservedTime}
	}
	out.DeprecatedSource = e.Source
	out.DeprecatedFirstTimestamp, out.DeprecatedLastTimestamp, out.DeprecatedCount = e.FirstTimestamp, e.LastTimestamp, e.Count
}

// validateEvent reports errors at the fields of the stored form, as upstream does.
func validateEvent(e *eventsv1.Event) field.ErrorList {
	errs := core.ValidateEvent(asCore(e), "reportingController")
	for _, msg := range apivalidation.NameIsDNSSubdomain(e.Name, false) {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), e.Name, msg))
	}
	errs = append(errs, validateSeries(e.Series)...)
	if e.EventTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("eventTime"), ""))
	}
	if e.Type != corev1.EventTypeNormal && e.Type != corev1.EventTypeWarning {
		errs = append(errs, field.Invalid(field.NewPath("type"), "", "has invalid value: "+e.Type))
	}
	unset := func(is bool, name string) {
		if !is {
			errs = append(errs, field.Invalid(field.NewPath(name), "", "needs to be unset"))
		}
	}
	unset(e.DeprecatedFirstTimestamp.IsZero(), "firstTimestamp")
	unset(e.DeprecatedLastTimestamp.IsZero(), "lastTimestamp")
	unset(e.DeprecatedCount == 0, "count")
	unset(e.DeprecatedSource == corev1.EventSource{}, "source")
	return errs
}

func validateSeries(s *eventsv1.EventSeries) field.ErrorList {
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	if s.Count < 2 {
		errs = append(errs, field.Invalid(field.NewPath("series.count"), "", "should be at least 2"))
	}
	if s.LastObservedTime.IsZero() {
		errs = append(errs, field.Required(field.NewPath("series.lastObservedTime"), ""))
	}
	return errs
}

// validateEventUpdate lets only the series change.
func validateEventUpdate(e, old *eventsv1.Event) field.ErrorList {
	now, before := asCore(e), asCore(old)
	errs := core.ValidateEvent(now, "reportingController")
	if !equality.Semantic.DeepEqual(e.Series, old.Series) {
		errs = append(errs, validateSeries(e.Series)...)
	}
	immutable := func(a, b any, name string) {
		errs = append(errs, apivalidation.ValidateImmutableField(a, b, field.NewPath(name))...)
	}
	immutable(now.InvolvedObject, before.InvolvedObject, "involvedObject")
	immutable(now.Reason, before.Reason, "reason")
	immutable(now.Message, before.Message, "message")
	immutable(now.Source, before.Source, "source")
	immutable(now.FirstTimestamp, before.FirstTimestamp, "firstTimestamp")
	immutable(now.LastTimestamp, before.LastTimestamp, "lastTimestamp")
	immutable(now.Count, before.Count, "count")
	immutable(now.Type, before.Type, "type")
	// Clients keep microseconds only, as the wire does.
	if !now.EventTime.Truncate(time.Microsecond).Equal(before.EventTime.Truncate(time.Microsecond)) {
		immutable(now.EventTime, before.EventTime, "eventTime")
	}
	immutable(now.Action, before.Action, "action")
	immutable(now.Related, before.Related, "related")
	immutable(now.ReportingController, before.ReportingController, "reportingController")
	immutable(now.ReportingInstance, before.ReportingInstance, "reportingInstance")
	return errs
}
