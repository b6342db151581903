package meta

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func fieldsOf(errs field.ErrorList) string {
	var list []string
	for _, e := range errs {
		list = append(list, e.Field+": "+string(e.Type))
	}
	slices.Sort(list)
	return strings.Join(slices.Compact(list), ", ")
}

func TestObjectMeta(t *testing.T) {
	good := metav1.ObjectMeta{Name: "a", Namespace: "n"}
	for _, c := range []struct {
		change func(*metav1.ObjectMeta)
		names  NameErrors
		want   string
	}{
		{func(*metav1.ObjectMeta) {}, nil, ""},
		{func(m *metav1.ObjectMeta) { m.Name = "" }, nil, "metadata.name: FieldValueRequired"},
		{func(m *metav1.ObjectMeta) { m.Name = "A" }, nil, "metadata.name: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.Name = "a.b" }, nil, ""},
		{func(m *metav1.ObjectMeta) { m.Name = "a.b" }, DNSLabel, "metadata.name: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.Name = "1a" }, DNS1035Label, "metadata.name: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.Name = "system:A" }, PathSegment, ""},
		{func(m *metav1.ObjectMeta) { m.Name = "a/b" }, PathSegment, "metadata.name: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.Name = ".." }, func(string, bool) []string { return nil }, "metadata.name: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.GenerateName = "AB-" }, nil, "metadata.generateName: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.Namespace = "" }, nil, "metadata.namespace: FieldValueRequired"},
		{func(m *metav1.ObjectMeta) { m.Namespace = "A_" }, nil, "metadata.namespace: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.Labels = map[string]string{"a b": "c", "d": "e f"} }, nil, "metadata.labels: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.Annotations = map[string]string{"a b": ""} }, nil, "metadata.annotations: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.Annotations = map[string]string{"a": strings.Repeat("x", 1<<18)} }, nil, "metadata.annotations: FieldValueTooLong"},
		{func(m *metav1.ObjectMeta) { m.OwnerReferences = []metav1.OwnerReference{{}} }, nil,
			"metadata.ownerReferences[0].apiVersion: FieldValueRequired, metadata.ownerReferences[0].kind: FieldValueRequired, metadata.ownerReferences[0].name: FieldValueRequired, metadata.ownerReferences[0].uid: FieldValueRequired"},
		{func(m *metav1.ObjectMeta) { m.Finalizers = []string{"a b/c"} }, nil, "metadata.finalizers: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.Generation = -1 }, nil, "metadata.generation: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.ManagedFields = []metav1.ManagedFieldsEntry{{Operation: "X"}} }, nil,
			"metadata.managedFields[0].operation: FieldValueNotSupported"},
	} {
		m := good.DeepCopy()
		c.change(m)
		if got := fieldsOf(ValidateObjectMeta(m, true, c.names)); got != c.want {
			t.Errorf("%+v\ngot  %s\nwant %s", m, got, c.want)
		}
	}
	if got := fieldsOf(ValidateObjectMeta(&good, false, nil)); got != "metadata.namespace: FieldValueForbidden" {
		t.Errorf("a namespace where none is: %s", got)
	}
}

func TestObjectMetaUpdate(t *testing.T) {
	// The name is one that new objects may not have.
	old := metav1.ObjectMeta{Name: "A", Namespace: "n", UID: "u", ResourceVersion: "1", Generation: 2, CreationTimestamp: metav1.Unix(1, 0)}
	for _, c := range []struct {
		change func(*metav1.ObjectMeta)
		want   string
	}{
		{func(*metav1.ObjectMeta) {}, ""},
		{func(m *metav1.ObjectMeta) { m.Labels = map[string]string{"a": "b"} }, ""},
		{func(m *metav1.ObjectMeta) { m.Labels = map[string]string{"a b": "b"} }, "metadata.labels: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.Name = "b" }, "metadata.name: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.Namespace = "m" }, "metadata.namespace: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.UID = "v" }, "metadata.uid: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.CreationTimestamp = metav1.Unix(2, 0) }, "metadata.creationTimestamp: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.Generation = 1 }, "metadata.generation: FieldValueInvalid"},
		{func(m *metav1.ObjectMeta) { m.ResourceVersion = "" }, "metadata.resourceVersion: FieldValueInvalid"},
	} {
		m := old.DeepCopy()
		c.change(m)
		if got := fieldsOf(ValidateObjectMetaUpdate(m, &old, true)); got != c.want {
			t.Errorf("%+v\ngot  %s\nwant %s", m, got, c.want)
		}
	}
	dying := old.DeepCopy()
	dying.DeletionTimestamp = &metav1.Time{Time: old.CreationTimestamp.Time}
	late := dying.DeepCopy()
	late.Finalizers = []string{"a/b"}
	if got := fieldsOf(ValidateObjectMetaUpdate(late, dying, true)); got != "metadata.finalizers: FieldValueForbidden" {
		t.Errorf("a finalizer added to what is being deleted: %s", got)
	}
}

func TestFinalizers(t *testing.T) {
	m := &metav1.ObjectMeta{Finalizers: []string{"kubernetes", "orphan", "foregroundDeletion", "a/b", "x"}}
	if got := fieldsOf(BuiltinFinalizers(m)); got != "metadata.finalizers[4]: FieldValueInvalid" {
		t.Errorf("got %s", got)
	}
	if got := fieldsOf(FinalizerName("a b/c", field.NewPath("f"))); got != "f: FieldValueInvalid" {
		t.Errorf("got %s", got)
	}
}
