package cacher

import (
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// matcher is a Selection made ready for many objects. What it can it decides by the key.
type matcher struct {
	r      *resource
	prefix string // of keys: the namespace with its slash, or empty
	suffix string // of keys: the slash and a name in any namespace, or empty
	exact  string // the only key that matches, or empty
	never  bool   // contradicting namespaces or names
	labels labels.Selector
	fields fields.Selector
}

func newMatcher(r *resource, s Selection) *matcher {
	m := &matcher{r: r}
	ns, name := s.Namespace, s.Name
	if s.Fields != nil && !s.Fields.Empty() {
		if v, ok := s.Fields.RequiresExactMatch("metadata.name"); ok {
			m.never = name != "" && name != v
			name = v
		}
		if v, ok := s.Fields.RequiresExactMatch("metadata.namespace"); ok {
			m.never = m.never || ns != "" && ns != v || !r.api.Namespaced && v != ""
			ns = v
		}
		if !onlyMetadata(s.Fields) {
			m.fields = s.Fields
		}
	}
	if s.Labels != nil && !s.Labels.Empty() {
		m.labels = s.Labels
	}
	switch {
	case !r.api.Namespaced:
		m.exact = name
	case ns == "" && name != "":
		m.suffix = "/" + name
	case ns != "":
		m.prefix = ns + "/"
		if name != "" {
			m.exact = m.prefix + name
		}
	}
	return m
}

// onlyMetadata tells whether a selector is no more than exact matches of name and namespace.
func onlyMetadata(s fields.Selector) bool {
	for _, q := range s.Requirements() {
		if q.Field != "metadata.name" && q.Field != "metadata.namespace" {
			return false
		}
		if v, ok := s.RequiresExactMatch(q.Field); !ok || v != q.Value {
			return false
		}
	}
	return true
}

// fieldNames are the fields that the selector names.
func (m *matcher) fieldNames() []string {
	var names []string
	for _, q := range m.fields.Requirements() {
		names = append(names, q.Field)
	}
	return names
}

// scope tells whether a key can match at all.
func (m *matcher) scope(key string) bool {
	switch {
	case m.never:
		return false
	case m.exact != "":
		return key == m.exact
	}
	return strings.HasPrefix(key, m.prefix) && strings.HasSuffix(key, m.suffix)
}

// looks tells whether the matcher looks into objects.
func (m *matcher) looks() bool { return m.labels != nil || m.fields != nil }

// selects tells whether the matcher passes over objects within its range of keys.
func (m *matcher) selects() bool { return m.looks() || m.suffix != "" || m.never }

// match tells whether an object is selected; the error says that it cannot be decoded.
func (m *matcher) match(e *entry) (bool, error) {
	if !m.scope(e.key) {
		return false, nil
	}
	if !m.looks() {
		return true, nil
	}
	f, err := e.decode()
	if err != nil {
		return false, storeReadError(err)
	}
	if m.labels != nil && !m.labels.Matches(labels.Set(f.meta.GetLabels())) {
		return false, nil
	}
	if m.fields == nil {
		return true, nil
	}
	set := fields.Set{}
	if m.r.api.Fields != nil {
		for k, v := range m.r.api.Fields(f.obj) {
			set[k] = v
		}
	}
	if m.r.api.SelectedFields != nil {
		selected, err := m.r.api.SelectedFields(f.obj, m.fieldNames())
		if err != nil {
			return false, err
		}
		maps.Copy(set, selected)
	}
	set["metadata.name"] = f.meta.GetName()
	if m.r.api.Namespaced {
		set["metadata.namespace"] = f.meta.GetNamespace()
	}
	return m.fields.Matches(set), nil
}
