// Package table prints objects as meta.k8s.io/v1 Tables and cuts them down to their
// metadata.
//
// Owns: the transforms that "as=" asks for. Must not: know HTTP or any kind's columns.
package table

import (
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/api"
)

// Options is how to print.
type Options struct {
	// Version of meta.k8s.io asked for.
	Version string
	// Include says what Row.Object holds.
	Include metav1.IncludeObjectPolicy
	// NoHeaders leaves the column definitions out.
	NoHeaders bool
	Now       time.Time
}

// defaults are the columns of a resource that declares none.
func defaults() []metav1.TableColumnDefinition {
	return []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: metav1.ObjectMeta{}.SwaggerDoc()["name"]},
		{Name: "Created At", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"]},
	}
}

// New prints objects. They may be shared: they are not changed.
func New(r *api.Resource, objs []runtime.Object, list metav1.ListMeta, o Options) (*metav1.Table, error) {
	t := &metav1.Table{ListMeta: list, Rows: make([]metav1.TableRow, 0, len(objs))}
	t.SetGroupVersionKind(schema.GroupVersionKind{Group: metav1.GroupName, Version: o.Version, Kind: "Table"})
	own := len(r.Columns) > 0 && r.Row != nil
	if !o.NoHeaders {
		if own {
			t.ColumnDefinitions = r.Columns
		} else {
			t.ColumnDefinitions = defaults()
		}
	}
	for _, obj := range objs {
		row := metav1.TableRow{}
		if own {
			row.Cells = r.Row(obj, o.Now)
		} else {
			m, err := meta.Accessor(obj)
			if err != nil {
				return nil, fmt.Errorf("metadata of %T: %w", obj, err)
			}
			row.Cells = []any{m.GetName(), m.GetCreationTimestamp().Time.UTC().Format(time.RFC3339)}
		}
		switch o.Include {
		case metav1.IncludeNone:
		case metav1.IncludeObject:
			row.Object.Object = obj
		default:
			p, err := Metadata(obj, o.Version)
			if err != nil {
				return nil, err
			}
			row.Object.Object = p
		}
		t.Rows = append(t.Rows, row)
	}
	return t, nil
}

// Metadata is the object's metadata alone.
func Metadata(obj runtime.Object, version string) (*metav1.PartialObjectMetadata, error) {
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, fmt.Errorf("metadata of %T: %w", obj, err)
	}
	p := meta.AsPartialObjectMetadata(m)
	p.SetGroupVersionKind(schema.GroupVersionKind{Group: metav1.GroupName, Version: version, Kind: "PartialObjectMetadata"})
	return p, nil
}

// MetadataList is that of several. Its items carry kind and apiVersion.
func MetadataList(objs []runtime.Object, list metav1.ListMeta, version string) (*metav1.PartialObjectMetadataList, error) {
	out := &metav1.PartialObjectMetadataList{ListMeta: list, Items: make([]metav1.PartialObjectMetadata, 0, len(objs))}
	out.SetGroupVersionKind(schema.GroupVersionKind{Group: metav1.GroupName, Version: version, Kind: "PartialObjectMetadataList"})
	for _, obj := range objs {
		p, err := Metadata(obj, version)
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, *p)
	}
	return out, nil
}
