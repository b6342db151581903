package rest

import (
	"fmt"
	"log/slog"
	"net/http"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/negotiate"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// Config is what a Registry works with.
type Config struct {
	Caches cacher.Set
	Scheme *runtime.Scheme
	// Admission may be nil: everything is admitted.
	Admission seams.Admission
	// Authorizer decides about creates by PUT and apply; nil: allowed.
	Authorizer authorizer.Authorizer
	Endpoints  []seams.Endpoint
	Hooks      []seams.Hooks
	// Computed are the resources that are made when they are asked for.
	Computed map[schema.GroupResource]Computed
	// Types gives the schema of built-in kinds for managed fields; called at first use.
	// nil: deduced from the objects, which merges every list atomically.
	Types func() (managedfields.TypeConverter, error)
	Clock clock.PassiveClock
	// Logger may be nil.
	Logger *slog.Logger
	// Stopping ends watches when it closes: at once, or each at some time within StoppingGrace,
	// so that not all clients come to another server in the same moment.
	Stopping      <-chan struct{}
	StoppingGrace time.Duration
	// MaxBody is the largest request body; 0: 3 MiB, as upstream.
	MaxBody int64
	// MinTimeout is the least time a watch without timeoutSeconds lasts; 0: 30 minutes.
	MinTimeout time.Duration
}

// Registry is the table of served resources and the handler of their requests. It
// implements seams.Registry, seams.Stores and http.Handler.
type Registry struct {
	Config
	codecs *negotiate.Codecs
	types  func() (managedfields.TypeConverter, error)
	// virtual are the field managers of kinds that are not stored.
	virtual sync.Map // of virtualKind to func() (*managedfields.FieldManager, error)

	mu    sync.Mutex // held by writers of table
	table atomic.Pointer[routes]
}

var (
	_ seams.Registry = (*Registry)(nil)
	_ seams.Stores   = (*Registry)(nil)
	_ http.Handler   = (*Registry)(nil)
)

// routes is the table; it is immutable.
type routes struct {
	resources map[schema.GroupVersionResource]*resource
	groups    map[schema.GroupResource][]*resource // preferred version first
	versions  map[schema.GroupVersion]bool
	order     []schema.GroupResource // in order of registration
	changed   chan struct{}
}

// NewRegistry returns an empty table.
func NewRegistry(c Config) *Registry {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.MaxBody == 0 {
		c.MaxBody = 3 << 20
	}
	if c.MinTimeout == 0 {
		c.MinTimeout = 30 * time.Minute
	}
	g := &Registry{Config: c, codecs: negotiate.NewCodecs(c.Scheme)}
	if c.Types != nil {
		g.types = sync.OnceValues(c.Types)
	} else {
		g.types = sync.OnceValues(func() (managedfields.TypeConverter, error) { return managedfields.NewDeducedTypeConverter(), nil })
	}
	g.table.Store(&routes{changed: make(chan struct{})})
	return g
}

// Codecs are those of the scheme.
func (g *Registry) Codecs() *negotiate.Codecs { return g.codecs }

// Add serves built-in resources. All versions of one group and plural must come in
// one call.
func (g *Registry) Add(served ...*seams.Served) error {
	byGR := map[schema.GroupResource][]*seams.Served{}
	var order []schema.GroupResource
	for _, s := range served {
		if _, ok := byGR[s.GR()]; !ok {
			order = append(order, s.GR())
		}
		byGR[s.GR()] = append(byGR[s.GR()], s)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.table.Load().clone()
	for _, gr := range order {
		if err := g.put(next, gr, byGR[gr]); err != nil {
			return err
		}
	}
	g.swap(next)
	return nil
}

// Replace implements seams.Registry.
func (g *Registry) Replace(gr schema.GroupResource, versions ...*seams.Served) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	next := g.table.Load().clone()
	if err := g.put(next, gr, versions); err != nil {
		return err
	}
	g.swap(next)
	return nil
}

func (g *Registry) swap(next *routes) {
	old := g.table.Load()
	next.changed = make(chan struct{})
	next.versions = map[schema.GroupVersion]bool{}
	for gvr := range next.resources {
		next.versions[gvr.GroupVersion()] = true
	}
	g.table.Store(next)
	close(old.changed)
}

func (g *Registry) put(t *routes, gr schema.GroupResource, versions []*seams.Served) error {
	old := t.groups[gr]
	var rs []*resource
	for _, s := range versions {
		if s.GR() != gr {
			return fmt.Errorf("serving %s: version %s is of %s", gr, s.Version, s.GR())
		}
		rs = append(rs, g.newResource(s))
	}
	for _, r := range old {
		delete(t.resources, r.gvr)
	}
	if len(old) > 0 && len(versions) == 0 {
		close(old[0].gone) // all versions share it
	}
	if len(rs) == 0 {
		delete(t.groups, gr)
		for i, o := range t.order {
			if o == gr {
				t.order = append(t.order[:i:i], t.order[i+1:]...)
				break
			}
		}
		return nil
	}
	sort.SliceStable(rs, func(i, j int) bool {
		return version.CompareKubeAwareVersionStrings(rs[i].Version, rs[j].Version) > 0
	})
	if len(old) > 0 {
		for _, r := range rs {
			r.gone = old[0].gone // watches outlive a change of the definition
		}
	} else {
		gone := make(chan struct{})
		for _, r := range rs {
			r.gone = gone
		}
		t.order = append(t.order, gr)
	}
	for _, r := range rs {
		t.resources[r.gvr] = r
	}
	t.groups[gr] = rs
	return nil
}

func (t *routes) clone() *routes {
	n := &routes{
		resources: make(map[schema.GroupVersionResource]*resource, len(t.resources)+1),
		groups:    make(map[schema.GroupResource][]*resource, len(t.groups)+1),
		order:     append([]schema.GroupResource(nil), t.order...),
	}
	for k, v := range t.resources {
		n.resources[k] = v
	}
	for k, v := range t.groups {
		n.groups[k] = v
	}
	return n
}

// Served implements seams.Registry.
func (g *Registry) Served(gr schema.GroupResource) []*seams.Served {
	var out []*seams.Served
	for _, r := range g.table.Load().groups[gr] {
		out = append(out, r.Served)
	}
	return out
}

// All returns every served resource in order of registration, preferred versions first.
func (g *Registry) All() []*seams.Served {
	t := g.table.Load()
	var out []*seams.Served
	for _, gr := range t.order {
		for _, r := range t.groups[gr] {
			out = append(out, r.Served)
		}
	}
	return out
}

// EndpointsOf returns the custom endpoints under a resource, its own ("") included.
func (g *Registry) EndpointsOf(gvr schema.GroupVersionResource) []*seams.Endpoint {
	var out []*seams.Endpoint
	for i := range g.Endpoints {
		e := &g.Endpoints[i]
		if e.Resource == gvr.GroupResource() && (e.Version == "" || e.Version == gvr.Version) {
			out = append(out, e)
		}
	}
	return out
}

// TypeConverter gives the schema of built-in kinds.
func (g *Registry) TypeConverter() (managedfields.TypeConverter, error) { return g.types() }

// Changed implements seams.Registry.
func (g *Registry) Changed() <-chan struct{} { return g.table.Load().changed }

// Serves tells whether any resource of a group version is served.
func (g *Registry) Serves(gv schema.GroupVersion) bool { return g.table.Load().versions[gv] }

// Store implements seams.Stores.
func (g *Registry) Store(gr schema.GroupResource) (seams.Store, bool) {
	rs := g.table.Load().groups[gr]
	if len(rs) == 0 || rs[0].StoragePath == "" {
		return nil, false
	}
	return &direct{rs[0]}, true
}
