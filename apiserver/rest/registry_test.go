package rest

import (
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

type noCaches struct{ cacher.Set }

func (noCaches) Resource(string) (cacher.Resource, bool) { return nil, false }

// A definition with several versions comes, changes and goes: its watches must end once.
func TestReplaceTakesAwayAllVersions(t *testing.T) {
	g := NewRegistry(Config{Scheme: runtime.NewScheme(), Caches: noCaches{}})
	version := func(v string) *seams.Served {
		return &seams.Served{Resource: &api.Resource{Group: "skiff.test", Version: v, Kind: "Boat", Plural: "boats"}}
	}
	gr := version("v1").GR()
	for range 2 {
		if err := g.Replace(gr, version("v1"), version("v1beta1")); err != nil {
			t.Fatal(err)
		}
		gone := g.table.Load().groups[gr][0].gone
		if err := g.Replace(gr, version("v1")); err != nil {
			t.Fatal(err)
		}
		select {
		case <-gone:
			t.Fatal("watches ended although a version is still served")
		default:
		}
		if err := g.Replace(gr); err != nil {
			t.Fatal(err)
		}
		<-gone
		if got := g.Served(gr); len(got) != 0 {
			t.Fatalf("%d versions are still served", len(got))
		}
	}
}
