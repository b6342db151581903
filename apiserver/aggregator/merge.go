package aggregator

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strings"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kubeversion "k8s.io/apimachinery/pkg/version"
)

// recorder keeps an answer for changing it.
type recorder struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (r *recorder) Header() http.Header { return r.header }

func (r *recorder) WriteHeader(code int) {
	if r.code == 0 {
		r.code = code
	}
}

func (r *recorder) Write(b []byte) (int, error) {
	r.WriteHeader(http.StatusOK)
	return r.body.Write(b)
}

// merge answers /apis, /apis/<group> and /openapi/v3 with what next says and what the others have.
func merge(w http.ResponseWriter, req *http.Request, next http.Handler, table map[schema.GroupVersion]*remote, parts []string) {
	group := ""
	if len(parts) == 2 {
		group = parts[1]
		if !slices.ContainsFunc(slices.Collect(maps.Keys(table)), func(gv schema.GroupVersion) bool { return gv.Group == group }) {
			next.ServeHTTP(w, req)
			return
		}
	}
	inner := req.Clone(req.Context())
	for _, k := range []string{"Accept-Encoding", "If-None-Match", "If-Modified-Since"} {
		inner.Header.Del(k)
	}
	inner.Header.Set("Accept", jsonOnly(req.Header.Get("Accept")))
	rec := &recorder{header: http.Header{}}
	next.ServeHTTP(rec, inner)
	body, ok := rec.body.Bytes(), false
	switch {
	case strings.HasPrefix(req.URL.Path, "/openapi/v3"):
		body, ok = addPaths(body, table)
	case group != "":
		body, ok = groupOf(body, rec.code, group, table)
	case strings.Contains(rec.header.Get("Content-Type"), "as=APIGroupDiscoveryList"):
		body, ok = addDiscovery(body, table)
	default:
		body, ok = addGroups(body, table)
	}
	for k, v := range rec.header {
		if k != "Content-Length" && k != "Etag" {
			w.Header()[k] = v
		}
	}
	code := rec.code
	if ok || code == 0 {
		code = http.StatusOK
	}
	if ok {
		if group != "" {
			w.Header().Set("Content-Type", "application/json")
		}
	}
	w.WriteHeader(code)
	_, _ = w.Write(body) // a client that went away
}

// jsonOnly drops what is not JSON from an Accept header.
func jsonOnly(accept string) string {
	var keep []string
	for _, part := range strings.Split(accept, ",") {
		if strings.Contains(part, "json") {
			keep = append(keep, part)
		}
	}
	if len(keep) == 0 {
		return "application/json"
	}
	return strings.Join(keep, ",")
}

// versionsOf are the versions of a group that are elsewhere, best first.
func versionsOf(group string, table map[schema.GroupVersion]*remote) []string {
	var out []string
	for gv := range table {
		if gv.Group == group {
			out = append(out, gv.Version)
		}
	}
	slices.SortFunc(out, func(a, b string) int {
		pa := table[schema.GroupVersion{Group: group, Version: a}].service.Spec.VersionPriority
		pb := table[schema.GroupVersion{Group: group, Version: b}].service.Spec.VersionPriority
		if pa != pb {
			return int(pb - pa)
		}
		return -kubeversion.CompareKubeAwareVersionStrings(a, b)
	})
	return out
}

// groupsOf are the groups of which a version is elsewhere, the most important first.
func groupsOf(table map[schema.GroupVersion]*remote) []string {
	priority := map[string]int32{}
	for gv, r := range table {
		priority[gv.Group] = max(priority[gv.Group], r.service.Spec.GroupPriorityMinimum)
	}
	return slices.SortedFunc(maps.Keys(priority), func(a, b string) int {
		if priority[a] != priority[b] {
			return int(priority[b] - priority[a])
		}
		return strings.Compare(a, b)
	})
}

// extend adds the versions that are elsewhere to a group.
func extend(g *metav1.APIGroup, table map[schema.GroupVersion]*remote) {
	for _, v := range versionsOf(g.Name, table) {
		d := metav1.GroupVersionForDiscovery{GroupVersion: schema.GroupVersion{Group: g.Name, Version: v}.String(), Version: v}
		if !slices.Contains(g.Versions, d) {
			g.Versions = append(g.Versions, d)
		}
	}
	if g.PreferredVersion.Version == "" && len(g.Versions) > 0 {
		g.PreferredVersion = g.Versions[0]
	}
}

func addGroups(body []byte, table map[schema.GroupVersion]*remote) ([]byte, bool) {
	list := &metav1.APIGroupList{}
	if json.Unmarshal(body, list) != nil || list.Kind != "APIGroupList" {
		return body, false
	}
	for _, name := range groupsOf(table) {
		i := slices.IndexFunc(list.Groups, func(g metav1.APIGroup) bool { return g.Name == name })
		if i < 0 {
			i = len(list.Groups)
			list.Groups = append(list.Groups, metav1.APIGroup{Name: name})
		}
		extend(&list.Groups[i], table)
	}
	return encoded(list, body)
}

func groupOf(body []byte, code int, name string, table map[schema.GroupVersion]*remote) ([]byte, bool) {
	g := &metav1.APIGroup{}
	if code != http.StatusOK || json.Unmarshal(body, g) != nil || g.Kind != "APIGroup" {
		g = &metav1.APIGroup{TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: name}
	}
	extend(g, table)
	return encoded(g, body)
}

// addDiscovery adds what the servers said; one that has not answered yet is stale and empty.
func addDiscovery(body []byte, table map[schema.GroupVersion]*remote) ([]byte, bool) {
	list := &discoveryv2.APIGroupDiscoveryList{}
	if json.Unmarshal(body, list) != nil || list.Kind != "APIGroupDiscoveryList" {
		return body, false
	}
	for _, name := range groupsOf(table) {
		i := slices.IndexFunc(list.Items, func(g discoveryv2.APIGroupDiscovery) bool { return g.Name == name })
		if i < 0 {
			i = len(list.Items)
			list.Items = append(list.Items, discoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		for _, v := range versionsOf(name, table) {
			r := table[schema.GroupVersion{Group: name, Version: v}]
			d := discoveryv2.APIVersionDiscovery{Version: v, Freshness: discoveryv2.DiscoveryFreshnessStale}
			if known := r.discovery.Load(); known != nil {
				d = *known
			}
			if !available(r.service) {
				d.Freshness = discoveryv2.DiscoveryFreshnessStale
			}
			// A version that this server has, too, is another's now.
			others := slices.DeleteFunc(list.Items[i].Versions, func(o discoveryv2.APIVersionDiscovery) bool { return o.Version == v })
			list.Items[i].Versions = append(others, d)
		}
	}
	return encoded(list, body)
}

// addPaths adds where the schemas of the others are, which the proxy fetches.
func addPaths(body []byte, table map[schema.GroupVersion]*remote) ([]byte, bool) {
	var index struct {
		Paths map[string]map[string]string `json:"paths"`
	}
	if json.Unmarshal(body, &index) != nil || index.Paths == nil {
		return body, false
	}
	for gv, r := range table {
		if available(r.service) {
			path := "apis/" + gv.String()
			index.Paths[path] = map[string]string{"serverRelativeURL": "/openapi/v3/" + path}
		}
	}
	return encoded(index, body)
}

func encoded(v any, otherwise []byte) ([]byte, bool) {
	b, err := json.Marshal(v)
	if err != nil {
		return otherwise, false
	}
	return b, true
}
