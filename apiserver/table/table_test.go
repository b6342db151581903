package table

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/api"
)

func TestTable(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a", CreationTimestamp: metav1.NewTime(at)}}
	own := &api.Resource{Columns: []metav1.TableColumnDefinition{{Name: "Name"}, {Name: "Age"}},
		Row: func(obj runtime.Object, now time.Time) []any {
			m := obj.(metav1.Object)
			return []any{m.GetName(), now.Sub(m.GetCreationTimestamp().Time).String()}
		}}
	for _, c := range []struct {
		r       *api.Resource
		include metav1.IncludeObjectPolicy
		columns int
		cell    any
		kind    string
	}{
		{own, "", 2, "1m0s", "PartialObjectMetadata"},
		{own, metav1.IncludeMetadata, 2, "1m0s", "PartialObjectMetadata"},
		{own, metav1.IncludeNone, 2, "1m0s", ""},
		{own, metav1.IncludeObject, 2, "1m0s", "ConfigMap"},
		{&api.Resource{}, "", 2, "2026-01-02T03:04:05Z", "PartialObjectMetadata"},
	} {
		tb, err := New(c.r, []runtime.Object{cm}, metav1.ListMeta{ResourceVersion: "7"}, Options{Version: "v1", Include: c.include, Now: at.Add(time.Minute)})
		if err != nil {
			t.Fatal(err)
		}
		if len(tb.ColumnDefinitions) != c.columns || tb.Rows[0].Cells[1] != c.cell || tb.ResourceVersion != "7" {
			t.Errorf("%+v: %+v", c, tb)
		}
		kind := ""
		switch o := tb.Rows[0].Object.Object.(type) {
		case *metav1.PartialObjectMetadata:
			kind = o.Kind
		case *corev1.ConfigMap:
			kind = "ConfigMap"
		}
		if kind != c.kind {
			t.Errorf("%v: object %q, want %q", c.include, kind, c.kind)
		}
	}
	tb, err := New(own, nil, metav1.ListMeta{}, Options{Version: "v1", NoHeaders: true})
	if err != nil || tb.ColumnDefinitions != nil || tb.Rows == nil {
		t.Errorf("%+v %v", tb, err)
	}
}
