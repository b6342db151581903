// Package discovery serves what the API consists of: /api, /apis and below, in the
// plain form and the aggregated one (KEP-3352).
//
// Owns: the documents and their order. Must not: know how resources are served.
package discovery

import (
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"sort"
	"strings"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/skiff-k8s/skiff/apiserver/rest"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// Source is the table of what is served.
type Source interface {
	All() []*seams.Served
	EndpointsOf(gvr schema.GroupVersionResource) []*seams.Endpoint
	Changed() <-chan struct{}
}

// documents are all documents of one state of the table.
type documents struct {
	groups    []metav1.APIGroup // legacy "" first if served
	resources map[schema.GroupVersion]*metav1.APIResourceList
	legacy    *discoveryv2.APIGroupDiscoveryList
	named     *discoveryv2.APIGroupDiscoveryList
}

// priority orders the built-in groups as upstream's aggregator does; others follow by name.
func priority(group string) int {
	order := []string{"apiregistration.k8s.io", "", "apps", "events.k8s.io", "authentication.k8s.io", "authorization.k8s.io",
		"autoscaling", "batch", "certificates.k8s.io", "networking.k8s.io", "policy", "rbac.authorization.k8s.io",
		"storage.k8s.io", "admissionregistration.k8s.io", "apiextensions.k8s.io", "scheduling.k8s.io", "coordination.k8s.io",
		"node.k8s.io", "discovery.k8s.io", "resource.k8s.io", "flowcontrol.apiserver.k8s.io", "internal.apiserver.k8s.io",
		"storagemigration.k8s.io"}
	if i := slices.Index(order, group); i >= 0 {
		return i
	}
	return len(order)
}

func build(src Source) *documents {
	d := &documents{resources: map[schema.GroupVersion]*metav1.APIResourceList{}}
	aggregated := map[schema.GroupVersion][]discoveryv2.APIResourceDiscovery{}
	versions := map[string][]string{}
	custom := map[schema.GroupVersion]bool{}
	for _, s := range src.All() {
		gv := schema.GroupVersion{Group: s.Group, Version: s.Version}
		list := d.resources[gv]
		if list == nil {
			list = &metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: gv.String()}
			if gv.Group == "" {
				list.APIVersion = "" // clients of old could not read it
			}
			d.resources[gv] = list
			versions[s.Group] = append(versions[s.Group], s.Version)
		}
		custom[gv] = s.Custom()
		rs := describe(s, src.EndpointsOf(s.GVR()))
		list.APIResources = append(list.APIResources, rs...)
		aggregated[gv] = append(aggregated[gv], aggregate(s, rs))
	}
	for gv, list := range d.resources {
		if !custom[gv] {
			sort.SliceStable(list.APIResources, func(i, j int) bool { return list.APIResources[i].Name < list.APIResources[j].Name })
		}
		rs := aggregated[gv]
		sort.SliceStable(rs, func(i, j int) bool { return rs[i].Resource < rs[j].Resource })
	}
	d.order(versions)
	d.legacy, d.named = newAggregated(), newAggregated()
	for _, g := range d.groups {
		item := discoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: g.Name}}
		for _, v := range g.Versions {
			item.Versions = append(item.Versions, discoveryv2.APIVersionDiscovery{Version: v.Version,
				Resources: aggregated[schema.GroupVersion{Group: g.Name, Version: v.Version}], Freshness: discoveryv2.DiscoveryFreshnessCurrent})
		}
		if g.Name == "" {
			d.legacy.Items = append(d.legacy.Items, item)
		} else {
			d.named.Items = append(d.named.Items, item)
		}
	}
	return d
}

func newAggregated() *discoveryv2.APIGroupDiscoveryList {
	l := &discoveryv2.APIGroupDiscoveryList{Items: []discoveryv2.APIGroupDiscovery{}}
	l.SetGroupVersionKind(discoveryv2.SchemeGroupVersion.WithKind("APIGroupDiscoveryList"))
	return l
}

// order sorts groups by priority and versions by Kubernetes' notion of newer.
func (d *documents) order(versions map[string][]string) {
	for group, vs := range versions {
		sort.SliceStable(vs, func(i, j int) bool { return version.CompareKubeAwareVersionStrings(vs[i], vs[j]) > 0 })
		g := metav1.APIGroup{Name: group}
		for _, v := range vs {
			gv := schema.GroupVersion{Group: group, Version: v}
			g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: v})
		}
		g.PreferredVersion = g.Versions[0]
		d.groups = append(d.groups, g)
	}
	sort.Slice(d.groups, func(i, j int) bool {
		a, b := d.groups[i].Name, d.groups[j].Name
		if x, y := priority(a), priority(b); x != y {
			return x < y
		}
		return a < b
	})
}

// describe lists a resource and its subresources.
func describe(s *seams.Served, endpoints []*seams.Endpoint) []metav1.APIResource {
	verbs := s.Verbs
	if verbs == nil {
		verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	}
	main := metav1.APIResource{Name: s.Plural, SingularName: s.Singular, Namespaced: s.Namespaced, Kind: s.Kind,
		Verbs: ordered(s, verbs), ShortNames: s.ShortNames, Categories: s.Categories}
	if main.SingularName == "" {
		main.SingularName = strings.ToLower(s.Kind)
	}
	if s.StoragePath != "" {
		main.StorageVersionHash = storageHash(s)
	}
	out := []metav1.APIResource{main}
	for _, sub := range s.Subresources {
		v := sub.Verbs
		if v == nil {
			v = []string{"get", "patch", "update"}
		}
		out = append(out, metav1.APIResource{Name: s.Plural + "/" + sub.Name, Namespaced: s.Namespaced, Kind: s.Kind, Verbs: sorted(v)})
	}
	if s.Scale != nil {
		out = append(out, foreign(s, "scale", rest.ScaleKind, []string{"get", "patch", "update"}))
	}
	for _, e := range endpoints {
		if e.Subresource != "" {
			out = append(out, foreign(s, e.Subresource, e.Kind, rest.Verbs(e)))
		}
	}
	return out
}

// foreign describes a subresource of another kind.
func foreign(s *seams.Served, sub string, kind schema.GroupVersionKind, verbs []string) metav1.APIResource {
	r := metav1.APIResource{Name: s.Plural + "/" + sub, Namespaced: s.Namespaced, Kind: kind.Kind, Verbs: sorted(verbs)}
	if kind.Group != s.Group || kind.Version != s.Version {
		r.Group, r.Version = kind.Group, kind.Version
	}
	return r
}

// ordered sorts the verbs of a resource, as upstream does but for custom ones.
func ordered(s *seams.Served, verbs []string) metav1.Verbs {
	if !s.Custom() {
		return sorted(verbs)
	}
	if s.Unavailable != nil {
		return metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}
	}
	return metav1.Verbs{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}
}

func sorted(v []string) metav1.Verbs { return slices.Sorted(slices.Values(v)) }

// storageHash tells clients whether the stored version changed; they only compare it.
func storageHash(s *seams.Served) string {
	gv := s.StorageVersion
	if !s.StoredKind.Empty() {
		gv = s.StoredKind.GroupVersion()
	}
	if gv.Empty() {
		gv = schema.GroupVersion{Group: s.Group, Version: s.Version}
	}
	sum := sha256.Sum256([]byte(gv.Group + "/" + gv.Version + "/" + s.Kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}

// aggregate folds a resource and its subresources into one entry.
func aggregate(s *seams.Served, rs []metav1.APIResource) discoveryv2.APIResourceDiscovery {
	kind := func(r metav1.APIResource) *metav1.GroupVersionKind {
		k := metav1.GroupVersionKind{Kind: r.Kind} // group and version are told where they are others
		if s.Custom() {
			k.Group, k.Version = s.Group, s.Version
		}
		if r.Version != "" {
			k.Group, k.Version = r.Group, r.Version
		}
		return &k
	}
	m := rs[0]
	out := discoveryv2.APIResourceDiscovery{Resource: m.Name, ResponseKind: kind(m), Scope: discoveryv2.ScopeCluster,
		SingularResource: m.SingularName, Verbs: m.Verbs, ShortNames: m.ShortNames, Categories: m.Categories}
	if m.Namespaced {
		out.Scope = discoveryv2.ScopeNamespace
	}
	for _, r := range rs[1:] {
		_, sub, _ := strings.Cut(r.Name, "/")
		out.Subresources = append(out.Subresources, discoveryv2.APISubresourceDiscovery{Subresource: sub, ResponseKind: kind(r), Verbs: r.Verbs})
	}
	if !s.Custom() {
		sort.Slice(out.Subresources, func(i, j int) bool { return out.Subresources[i].Subresource < out.Subresources[j].Subresource })
	}
	return out
}
