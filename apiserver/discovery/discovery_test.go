package discovery

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// fixed is a table that does not change.
type fixed struct {
	served    []*seams.Served
	endpoints map[string][]*seams.Endpoint
}

func (f fixed) All() []*seams.Served { return f.served }
func (f fixed) EndpointsOf(r schema.GroupVersionResource) []*seams.Endpoint {
	return f.endpoints[r.Resource]
}
func (f fixed) Changed() <-chan struct{} { return nil }

func TestDocuments(t *testing.T) {
	serve := func(group, version, kind, plural string) *seams.Served {
		return &seams.Served{Resource: &api.Resource{Group: group, Version: version, Kind: kind, Plural: plural, Namespaced: true, StoragePath: plural}}
	}
	pods := serve("", "v1", "Pod", "pods")
	pods.Subresources = []api.Subresource{{Name: "status"}}
	pods.ShortNames = []string{"po"}
	deployments := serve("apps", "v1", "Deployment", "deployments")
	deployments.Scale = &api.Scale{}
	src := fixed{
		served: []*seams.Served{serve("zoo.example.com", "v1beta1", "Cat", "cats"), serve("zoo.example.com", "v1", "Cat", "cats"),
			serve("aaa.example.com", "v1", "Dog", "dogs"), deployments, pods},
		endpoints: map[string][]*seams.Endpoint{"pods": {
			{Subresource: "binding", Kind: schema.GroupVersionKind{Version: "v1", Kind: "Binding"}},
			{Subresource: "eviction", Kind: schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"}},
		}},
	}
	d := build(src)
	var groups []string
	for _, g := range d.groups {
		groups = append(groups, g.Name+"="+g.PreferredVersion.Version)
	}
	if want := []string{"=v1", "apps=v1", "aaa.example.com=v1", "zoo.example.com=v1"}; !slices.Equal(groups, want) {
		t.Errorf("groups %v, want %v", groups, want)
	}
	var names []string
	for _, r := range d.resources[schema.GroupVersion{Version: "v1"}].APIResources {
		names = append(names, r.Name)
		if r.Name == "pods/eviction" && (r.Group != "policy" || r.Version != "v1" || r.Kind != "Eviction") {
			t.Errorf("%+v", r)
		}
		if r.Name == "pods" && (r.SingularName != "pod" || r.StorageVersionHash == "" || !slices.Equal(r.Verbs, metav1.Verbs{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"})) {
			t.Errorf("%+v", r)
		}
	}
	if want := []string{"pods", "pods/binding", "pods/eviction", "pods/status"}; !slices.Equal(names, want) {
		t.Errorf("resources %v, want %v", names, want)
	}
	agg := d.named.Items[0].Versions[0].Resources[0]
	if agg.Resource != "deployments" || len(agg.Subresources) != 1 || agg.Subresources[0].ResponseKind.Group != "autoscaling" || agg.Scope != "Namespaced" {
		t.Errorf("%+v", agg)
	}
	if len(d.legacy.Items) != 1 || len(d.named.Items) != 3 {
		t.Errorf("%d legacy and %d named groups", len(d.legacy.Items), len(d.named.Items))
	}
}

// TestStorageHash: the value that upstream shows for pods.
func TestStorageHash(t *testing.T) {
	pods := &seams.Served{Resource: &api.Resource{Version: "v1", Kind: "Pod"}}
	if got := storageHash(pods); got != "xPOwRZ+Yhw8=" {
		t.Errorf("hash %s", got)
	}
}
