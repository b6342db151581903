package openapi

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/apiserver/rest"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// dialect is what differs between OpenAPI 2 and 3 in operations.
type dialect interface {
	refPrefix() string
	parameter(name, in, typ, description string) map[string]any
	body(op map[string]any, schema map[string]any, media []string)
	response(schema map[string]any, media []string) map[string]any
	produces(op map[string]any, media []string)
}

var medias = []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}

// produced are the types of an action's answers; a list can become a watch.
func produced(action string) []string {
	if action == "list" {
		return append(slices.Clip(medias), "application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch")
	}
	return medias
}

// builder writes the paths of some resources.
type builder struct {
	s   *schemas
	d   dialect
	out map[string]any
}

func paths(served []*seams.Served, src Source, s *schemas, d dialect) map[string]any {
	b := &builder{s: s, d: d, out: map[string]any{}}
	for _, r := range served {
		b.resource(r, src.EndpointsOf(r.GVR()))
	}
	return b.out
}

func (b *builder) resource(r *seams.Served, endpoints []*seams.Endpoint) {
	base := "/" + pathOf(schema.GroupVersion{Group: r.Group, Version: r.Version})
	verbs := r.Verbs
	if verbs == nil {
		verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	}
	scope := base
	if r.Namespaced {
		scope = base + "/namespaces/{namespace}"
		if slices.Contains(verbs, "list") {
			b.op(r, base+"/"+r.Plural, "get", "list", "ForAllNamespaces", "", listKind(r), r.GVK())
		}
	}
	all := scope + "/" + r.Plural
	one := all + "/{name}"
	for _, v := range []struct{ verb, path, method, action string }{
		{"list", all, "get", "list"}, {"create", all, "post", "post"}, {"deletecollection", all, "delete", "deletecollection"},
		{"get", one, "get", "get"}, {"update", one, "put", "put"}, {"patch", one, "patch", "patch"}, {"delete", one, "delete", "delete"},
	} {
		if !slices.Contains(verbs, v.verb) {
			continue
		}
		returns := r.GVK()
		if v.action == "list" {
			returns = listKind(r)
		}
		b.op(r, v.path, v.method, v.action, "", "", returns, r.GVK())
	}
	for _, sub := range r.Subresources {
		b.sub(r, one, sub.Name, sub.Verbs, r.GVK())
	}
	if r.Scale != nil {
		b.sub(r, one, "scale", nil, rest.ScaleKind)
	}
	for _, e := range endpoints {
		switch {
		case e.Subresource == "":
			b.op(r, all, "post", "post", "", "", e.Kind, e.Kind)
		case e.Create != nil:
			b.op(r, one+"/"+e.Subresource, "post", "post", "", e.Subresource, e.Kind, e.Kind)
		case e.Subresource == "log":
			b.op(r, one+"/log", "get", "get", "", "log", schema.GroupVersionKind{}, e.Kind)
		default:
			for _, m := range []string{"get", "post"} {
				b.op(r, one+"/"+e.Subresource, m, "connect", "", e.Subresource, schema.GroupVersionKind{}, e.Kind)
			}
		}
	}
}

func (b *builder) sub(r *seams.Served, one, name string, verbs []string, kind schema.GroupVersionKind) {
	if verbs == nil {
		verbs = []string{"get", "patch", "update"}
	}
	for _, v := range verbs {
		method := map[string]string{"get": "get", "update": "put", "patch": "patch"}[v]
		if method != "" {
			b.op(r, one+"/"+name, method, method, "", name, kind, kind)
		}
	}
}

// op writes one operation, and the parameters of its path.
func (b *builder) op(r *seams.Served, path, method, action, suffix, sub string, returns, kind schema.GroupVersionKind) {
	item, ok := b.out[path].(map[string]any)
	if !ok {
		item = map[string]any{"parameters": b.pathParameters(path)}
		b.out[path] = item
	}
	op := map[string]any{
		"description": describe(action, kind.Kind, sub),
		"operationId": operationID(r, method, action, suffix, sub),
		"tags":        []string{tag(r)},
		"responses":   b.responses(returns, action),

		"x-kubernetes-action":             action,
		"x-kubernetes-group-version-kind": kindMap(kind),
	}
	b.d.produces(op, produced(action))
	op["parameters"] = b.query(action)
	switch method {
	case "post", "put":
		if action != "connect" {
			b.d.body(op, b.s.refKind(b.d.refPrefix(), kind), []string{"*/*"})
		}
	case "patch":
		types := []string{"application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"}
		if r.OpenAPI == nil {
			types = slices.Insert(types, 2, "application/strategic-merge-patch+json")
		}
		b.d.body(op, b.s.ref(b.d.refPrefix(), patchName), types)
	case "delete":
		b.d.body(op, b.s.ref(b.d.refPrefix(), deleteOptions), []string{"*/*"})
	}
	item[method] = op
}

func (b *builder) responses(returns schema.GroupVersionKind, action string) map[string]any {
	unauthorized := map[string]any{"description": "Unauthorized"}
	prefix := b.d.refPrefix()
	var ok map[string]any
	switch {
	case action == "delete" || action == "deletecollection":
		ok = b.d.response(b.s.ref(prefix, statusName), medias)
	case returns.Empty():
		ok = b.d.response(map[string]any{"type": "string"}, []string{"*/*"})
	default:
		ok = b.d.response(b.s.refKind(prefix, returns), produced(action))
	}
	out := map[string]any{"200": ok, "401": unauthorized}
	switch action {
	case "post":
		created := clone(ok)
		created["description"] = "Created"
		accepted := clone(ok)
		accepted["description"] = "Accepted"
		out["201"], out["202"] = created, accepted
	case "put", "patch":
		created := clone(ok)
		created["description"] = "Created"
		out["201"] = created
	case "delete":
		accepted := clone(ok)
		accepted["description"] = "Accepted"
		out["202"] = accepted
	}
	return out
}

func clone(m map[string]any) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}

func (b *builder) pathParameters(path string) []any {
	var out []any
	if strings.Contains(path, "{name}") {
		p := b.d.parameter("name", "path", "string", "name of the object")
		p["required"] = true
		out = append(out, p)
	}
	if strings.Contains(path, "{namespace}") {
		p := b.d.parameter("namespace", "path", "string", "object name and auth scope, such as for teams and projects")
		p["required"] = true
		out = append(out, p)
	}
	return append(out, b.d.parameter("pretty", "query", "string", "If 'true', then the output is pretty printed."))
}

// query are the query parameters of an action.
func (b *builder) query(action string) []any {
	var out []any
	add := func(name, typ, description string) {
		out = append(out, b.d.parameter(name, "query", typ, description))
	}
	if action == "list" || action == "deletecollection" {
		add("continue", "string", "The token of the next page, from the page before.")
		add("fieldSelector", "string", "A selector to restrict the list of returned objects by their fields.")
		add("labelSelector", "string", "A selector to restrict the list of returned objects by their labels.")
		add("limit", "integer", "The maximum number of objects to return.")
		add("resourceVersion", "string", "Which resource versions a request may be served from.")
		add("resourceVersionMatch", "string", "How resourceVersion is applied to list calls.")
		add("sendInitialEvents", "boolean", "Begin the watch with synthetic events for the current state.")
		add("timeoutSeconds", "integer", "Timeout for the list or watch call.")
	}
	if action == "list" {
		add("allowWatchBookmarks", "boolean", "Ask for watch events of type BOOKMARK.")
		add("watch", "boolean", "Watch for changes of the described resources.")
	}
	if action == "post" || action == "put" || action == "patch" || action == "delete" || action == "deletecollection" {
		add("dryRun", "string", "When present, nothing is persisted. The only valid value is All.")
	}
	if action == "post" || action == "put" || action == "patch" {
		add("fieldManager", "string", "The name of the actor that makes these changes.")
		add("fieldValidation", "string", "How to treat unknown and duplicate fields: Ignore, Warn (default) or Strict.")
	}
	if action == "patch" {
		add("force", "boolean", "Force an apply: take fields from other managers.")
	}
	if action == "delete" || action == "deletecollection" {
		add("gracePeriodSeconds", "integer", "Seconds before the object should be deleted.")
		add("orphanDependents", "boolean", "Deprecated: use propagationPolicy.")
		add("propagationPolicy", "string", "Whether and how garbage collection is performed: Orphan, Background or Foreground.")
	}
	return out
}

func describe(action, kind, sub string) string {
	of := kind
	if sub != "" {
		of = sub + " of the specified " + kind
	}
	switch action {
	case "list":
		return "list or watch objects of kind " + of
	case "post":
		return "create " + article(of)
	case "put":
		return "replace the specified " + of
	case "patch":
		return "partially update the specified " + of
	case "get":
		return "read the specified " + of
	case "deletecollection":
		return "delete collection of " + of
	case "delete":
		return "delete " + article(of)
	}
	return action + " requests to " + of
}

func article(s string) string {
	if s != "" && strings.ContainsRune("AEIOUaeiou", rune(s[0])) {
		return "an " + s
	}
	return "a " + s
}

// tag is the group and version as upstream's client generators know it: apps_v1.
func tag(r *seams.Served) string { return strings.ToLower(groupName(r)) + "_" + r.Version }

func groupName(r *seams.Served) string {
	if r.Group == "" {
		return "Core"
	}
	first, _, _ := strings.Cut(r.Group, ".")
	return title(first)
}

func title(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

// operationID is unique in a document: createAppsV1NamespacedDeployment.
func operationID(r *seams.Served, method, action, suffix, sub string) string {
	verb := map[string]string{"list": "list", "post": "create", "put": "replace", "patch": "patch", "get": "read",
		"delete": "delete", "deletecollection": "deleteCollection", "connect": "connect" + title(method)}[action]
	scope := ""
	if r.Namespaced && suffix == "" {
		scope = "Namespaced"
	}
	return verb + groupName(r) + title(r.Version) + scope + r.Kind + title(sub) + suffix
}
