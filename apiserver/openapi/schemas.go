package openapi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// Names of schemas that every document uses.
const (
	metaPrefix    = "io.k8s.apimachinery.pkg.apis.meta.v1."
	statusName    = metaPrefix + "Status"
	listMetaName  = metaPrefix + "ListMeta"
	patchName     = metaPrefix + "Patch"
	deleteOptions = metaPrefix + "DeleteOptions"
	schemaRef     = "#/components/schemas/"
)

// schemas are those that a document needs, found by following references.
type schemas struct {
	all  map[string]json.RawMessage
	used map[string]json.RawMessage
	// names of kinds and of list kinds.
	names map[schema.GroupVersionKind]string
}

var reference = regexp.MustCompile(`"\$ref":\s*"#/components/schemas/([^"]+)"`)

func (h *Handler) schemas(served []*seams.Served) (*schemas, error) {
	s := &schemas{all: map[string]json.RawMessage{}, used: map[string]json.RawMessage{}, names: map[schema.GroupVersionKind]string{}}
	if h.Definitions != nil {
		all, err := h.Definitions()
		if err != nil {
			return nil, fmt.Errorf("reading the built-in schemas: %w", err)
		}
		s.all = all
	}
	for _, r := range served {
		if err := s.add(r); err != nil {
			return nil, err
		}
		for _, e := range h.Source.EndpointsOf(r.GVR()) {
			if e.New != nil {
				s.name(e.Kind, e.New())
			}
		}
		if r.Scale != nil {
			s.names[schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}] = "io.k8s.api.autoscaling.v1.Scale"
		}
	}
	for _, n := range s.names {
		s.use(n)
	}
	if err := s.tie(); err != nil {
		return nil, err
	}
	for _, n := range []string{statusName, patchName, deleteOptions} {
		s.use(n)
	}
	return s, nil
}

// add registers the kind and list kind of a resource.
func (s *schemas) add(r *seams.Served) error {
	if r.OpenAPI == nil {
		if r.New != nil {
			s.name(r.GVK(), r.New())
		}
		if r.NewList != nil {
			s.name(listKind(r), r.NewList())
		}
		return nil
	}
	name := customName(r.GVK())
	b, err := json.Marshal(r.OpenAPI())
	if err != nil {
		return fmt.Errorf("encoding the schema of %s: %w", r.GVK(), err)
	}
	if b, err = withKind(b, r.GVK()); err != nil {
		return err
	}
	list, err := json.Marshal(map[string]any{
		"description": r.Kind + "List is a list of " + r.Kind, "type": "object", "required": []string{"items"},
		"properties": map[string]any{
			"apiVersion": map[string]any{"type": "string", "description": "APIVersion defines the versioned schema of this representation of an object."},
			"kind":       map[string]any{"type": "string", "description": "Kind is a string value representing the REST resource this object represents."},
			"metadata":   map[string]any{"$ref": schemaRef + listMetaName, "description": "Standard list metadata."},
			"items":      map[string]any{"type": "array", "description": "List of " + r.Plural + ".", "items": map[string]any{"$ref": schemaRef + name}},
		},
		kindExtension: []any{kindMap(listKind(r))},
	})
	if err != nil {
		return err
	}
	s.all = with(s.all, name, b)
	s.all = with(s.all, customName(listKind(r)), list)
	s.names[r.GVK()], s.names[listKind(r)] = name, customName(listKind(r))
	return nil
}

// with adds to a map that may be shared.
func with(m map[string]json.RawMessage, k string, v json.RawMessage) map[string]json.RawMessage {
	out := make(map[string]json.RawMessage, len(m)+1)
	for a, b := range m {
		out[a] = b
	}
	out[k] = v
	return out
}

// withKind gives a custom schema the extension that ties it to its kind.
func withKind(b []byte, gvk schema.GroupVersionKind) ([]byte, error) {
	m := map[string]any{}
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("the schema of %s: %w", gvk, err)
	}
	wrapReferences(m)
	m[kindExtension] = []any{kindMap(gvk)}
	return json.Marshal(m)
}

// wrapReferences puts references that have a description of their own into allOf, as
// OpenAPI 3.0 ignores what stands beside a reference.
func wrapReferences(t map[string]any) {
	if ref := t["$ref"]; ref != nil && len(t) > 1 {
		delete(t, "$ref")
		t["allOf"] = []any{map[string]any{"$ref": ref}}
	}
	for _, k := range []string{"items", "additionalProperties"} {
		if s, ok := t[k].(map[string]any); ok {
			wrapReferences(s)
		}
	}
	if ps, ok := t["properties"].(map[string]any); ok {
		for _, p := range ps {
			if s, ok := p.(map[string]any); ok {
				wrapReferences(s)
			}
		}
	}
}

func kindMap(gvk schema.GroupVersionKind) map[string]any {
	return map[string]any{"group": gvk.Group, "version": gvk.Version, "kind": gvk.Kind}
}

func listKind(r *seams.Served) schema.GroupVersionKind {
	k := r.GVK()
	if k.Kind += "List"; r.ListKind != "" {
		k.Kind = r.ListKind
	}
	return k
}

// customName reverses the group's domain: com.example.stable.v1.CronTab.
func customName(gvk schema.GroupVersionKind) string {
	parts := strings.Split(gvk.Group, ".")
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	return strings.Join(append(parts, gvk.Version, gvk.Kind), ".")
}

// name records the OpenAPI name that a Go type gives itself.
func (s *schemas) name(gvk schema.GroupVersionKind, obj runtime.Object) {
	if n, ok := obj.(interface{ OpenAPIModelName() string }); ok {
		s.names[gvk] = n.OpenAPIModelName()
	}
}

// tie adds to the schemas of kinds which kinds they are, as clients look them up by that.
func (s *schemas) tie() error {
	kinds := map[string][]any{}
	for gvk, n := range s.names {
		kinds[n] = append(kinds[n], kindMap(gvk))
	}
	for n, ks := range kinds {
		b, ok := s.used[n]
		if !ok || bytes.Contains(b, []byte(`"x-kubernetes-group-version-kind"`)) {
			continue
		}
		ext, err := json.Marshal(map[string]any{kindExtension: ks})
		if err != nil {
			return err
		}
		rest := bytes.TrimLeft(b, " \n\t{")
		if len(rest) == 0 || rest[0] == '}' {
			s.used[n] = ext
			continue
		}
		s.used[n] = slices.Concat(ext[:len(ext)-1], []byte(","), rest)
	}
	return nil
}

func (s *schemas) use(name string) {
	b, ok := s.all[name]
	if _, done := s.used[name]; done || !ok {
		return
	}
	s.used[name] = b
	for _, m := range reference.FindAllSubmatch(b, -1) {
		s.use(string(m[1]))
	}
}

// ref is a reference to a schema, or a free-form object where there is none.
func (s *schemas) ref(prefix, name string) map[string]any {
	if _, ok := s.used[name]; !ok {
		return map[string]any{"type": "object"}
	}
	return map[string]any{"$ref": prefix + name}
}

func (s *schemas) refKind(prefix string, gvk schema.GroupVersionKind) map[string]any {
	return s.ref(prefix, s.names[gvk])
}
