package events

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func event(change func(*eventsv1.Event)) *eventsv1.Event {
	e := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "p.1", Namespace: "default"}, EventTime: metav1.NewMicroTime(time.Unix(1000, 0)),
		ReportingController: "example.com/scheduler", ReportingInstance: "s-1", Action: "Binding", Reason: "Scheduled", Type: "Normal", Note: "hello",
		Regarding: corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "p"},
	}
	if change != nil {
		change(e)
	}
	return e
}

func TestStrictRules(t *testing.T) {
	r := events()
	apitest.Want(t, apitest.Create(r, event(nil)))
	apitest.Want(t, apitest.Create(r, event(func(e *eventsv1.Event) {
		e.Type, e.DeprecatedCount, e.DeprecatedSource.Component = "Odd", 3, "x"
		e.DeprecatedFirstTimestamp = metav1.Unix(1, 0)
		e.Series = &eventsv1.EventSeries{Count: 1}
	})), `type: Invalid value: "": has invalid value: Odd`, `firstTimestamp: Invalid value: "": needs to be unset`,
		`count: Invalid value: "": needs to be unset`, `source: Invalid value: "": needs to be unset`,
		`series.count: Invalid value: "": should be at least 2`, "series.lastObservedTime: Required value")

	old := event(nil)
	next := old.DeepCopy()
	next.Series = &eventsv1.EventSeries{Count: 2, LastObservedTime: old.EventTime}
	next.EventTime.Time = next.EventTime.Add(time.Nanosecond)
	apitest.Want(t, apitest.Update(r, next, old))
	next.Note, next.Regarding.Name = "other", "q"
	apitest.Want(t, apitest.Update(r, next, old), "involvedObject: Invalid value", `message: Invalid value: "other": field is immutable`)
}

func TestConversion(t *testing.T) {
	s := runtime.NewScheme()
	if err := AddConversions(s); err != nil {
		t.Fatal(err)
	}
	in := event(func(e *eventsv1.Event) {
		e.Series = &eventsv1.EventSeries{Count: 2, LastObservedTime: e.EventTime}
		e.DeprecatedCount, e.DeprecatedSource.Host = 4, "h"
	})
	stored, back := &corev1.Event{}, &eventsv1.Event{}
	if err := s.Convert(in, stored, nil); err != nil {
		t.Fatal(err)
	}
	if stored.InvolvedObject.Name != "p" || stored.Message != "hello" || stored.Count != 4 {
		t.Errorf("%+v", stored)
	}
	if err := s.Convert(stored, back, nil); err != nil {
		t.Fatal(err)
	}
	if !equality.Semantic.DeepEqual(in, back) {
		t.Errorf("%+v\n%+v", in, back)
	}
	r := events()
	if r.Fields(in)["regarding.name"] != "p" || r.FieldAliases["regarding.name"] != "involvedObject.name" {
		t.Error("fields")
	}
}
