package crd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/jsonpath"

	"github.com/skiff-k8s/skiff/api"
)

func equalJSON(a, b any) bool { return apiequality.Semantic.DeepEqual(a, b) }

// table is how objects of a version print: their name and the columns that the definition names, or
// their age.
func (v *version) table() ([]metav1.TableColumnDefinition, func(runtime.Object, time.Time) []any) {
	columns := v.AdditionalPrinterColumns
	if len(columns) == 0 {
		columns = []apiextensionsv1.CustomResourceColumnDefinition{{
			Name: "Age", Type: "date", Description: metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"], JSONPath: ".metadata.creationTimestamp",
		}}
	}
	heads := []metav1.TableColumnDefinition{api.NameColumn()}
	var paths []*jsonpath.JSONPath
	for _, c := range columns {
		p := jsonpath.New(c.Name).AllowMissingKeys(true)
		if err := p.Parse("{" + c.JSONPath + "}"); err != nil {
			p = nil // validation does not let it in; the column stays empty
		}
		description := c.Description
		if description == "" {
			description = fmt.Sprintf("Custom resource definition column (in JSONPath format): %s", c.JSONPath)
		}
		heads = append(heads, metav1.TableColumnDefinition{Name: c.Name, Type: c.Type, Format: c.Format, Description: description, Priority: c.Priority})
		paths = append(paths, p)
	}
	row := func(obj runtime.Object, now time.Time) []any {
		u := obj.(*unstructured.Unstructured)
		cells := []any{u.GetName()}
		for i, p := range paths {
			cells = append(cells, cell(p, u.Object, columns[i].Type, now))
		}
		return cells
	}
	return heads, row
}

func cell(p *jsonpath.JSONPath, obj map[string]any, kind string, now time.Time) any {
	if p == nil {
		return nil
	}
	results, err := p.FindResults(obj)
	if err != nil || len(results) == 0 || len(results[0]) == 0 {
		return nil
	}
	value := results[0][0].Interface()
	if value == nil {
		return nil
	}
	switch kind {
	case "string":
		var b bytes.Buffer
		if err := p.PrintResults(&b, []reflect.Value{reflect.ValueOf(value)}); err != nil {
			return nil
		}
		return b.String()
	case "integer":
		switch n := value.(type) {
		case int64:
			return n
		case float64:
			return int64(n)
		case json.Number:
			if i, err := n.Int64(); err == nil {
				return i
			}
		}
	case "number":
		switch n := value.(type) {
		case int64:
			return float64(n)
		case float64:
			return n
		case json.Number:
			if f, err := n.Float64(); err == nil {
				return f
			}
		}
	case "boolean":
		if b, ok := value.(bool); ok {
			return b
		}
	case "date":
		s, ok := value.(string)
		if !ok {
			return nil
		}
		var t metav1.Time
		if err := t.UnmarshalQueryParameter(s); err != nil {
			return "<invalid>"
		}
		return api.Age(t, now)
	}
	return nil
}

// selectable are the fields by which lists and watches can be narrowed (KEP-4358).
func (v *version) selectable() ([]string, func(runtime.Object) fields.Set) {
	if len(v.SelectableFields) == 0 {
		return nil, nil
	}
	var labels []string
	var paths []*jsonpath.JSONPath
	for _, f := range v.SelectableFields {
		p := jsonpath.New("selectableField").AllowMissingKeys(true)
		if err := p.Parse("{" + f.JSONPath + "}"); err != nil {
			continue // validation does not let it in
		}
		labels = append(labels, strings.TrimPrefix(f.JSONPath, "."))
		paths = append(paths, p)
	}
	return labels, func(obj runtime.Object) fields.Set {
		set := make(fields.Set, len(labels))
		for i, p := range paths {
			set[labels[i]] = ""
			results, err := p.FindResults(obj.(*unstructured.Unstructured).Object)
			if err == nil && len(results) > 0 && len(results[0]) > 0 {
				if value := results[0][0].Interface(); value != nil {
					set[labels[i]] = fmt.Sprint(value)
				}
			}
		}
		return set
	}
}
