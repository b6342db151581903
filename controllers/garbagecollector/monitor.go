package garbagecollector

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

// rediscover is how often the kinds are asked for though nothing hints at a change.
const rediscover = 2 * time.Minute

// soon are the delays after a CustomResourceDefinition changed: a new one takes a moment
// until it is served.
var soon = []time.Duration{time.Second, 5 * time.Second, 30 * time.Second}

// ignored kinds are too many and too short-lived; they never own anything.
var ignored = []schema.GroupResource{{Resource: "events"}, {Group: "events.k8s.io", Resource: "events"}}

var crds = schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}

// monitors keeps one metadata watch per kind that is served, and feeds the graph.
type monitors struct {
	cfg     controller.Config
	logger  *slog.Logger
	changed func(resource, *metav1.PartialObjectMetadata)
	gone    func(types.UID)
	refresh chan struct{}
	began   chan struct{} // closed after the first discovery

	wg      sync.WaitGroup
	mu      sync.Mutex
	kinds   map[schema.GroupVersionKind]resource
	running map[schema.GroupVersionResource]*monitor
}

// monitor is one kind's watch.
type monitor struct {
	parent *monitors
	res    resource
	stop   context.CancelFunc
	done   chan struct{}
	synced chan struct{}

	once sync.Once
	mu   sync.Mutex
	uids map[string]types.UID // by namespace/name, what the graph was told of
}

func newMonitors(cfg controller.Config, changed func(resource, *metav1.PartialObjectMetadata), gone func(types.UID)) *monitors {
	return &monitors{
		cfg: cfg, logger: cfg.Logger.With("controller", "garbage-collector-controller"), changed: changed, gone: gone,
		refresh: make(chan struct{}, 1), began: make(chan struct{}),
		kinds: map[schema.GroupVersionKind]resource{}, running: map[schema.GroupVersionResource]*monitor{},
	}
}

// resourceOf maps an owner reference's kind, in any served version.
func (m *monitors) resourceOf(gvk schema.GroupVersionKind) (resource, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r, ok := m.kinds[gvk]
	return r, ok
}

// run keeps the watches in step with discovery until ctx ends and all have stopped.
func (m *monitors) run(ctx context.Context) {
	first := true
	var due []time.Time
	for {
		if err := m.sync(ctx); err != nil && ctx.Err() == nil {
			m.logger.Warn("discovering kinds failed in part", "err", err)
			due = append(due, m.cfg.Clock.Now().Add(soon[1]))
		}
		if first {
			close(m.began)
			first = false
		}
		now := m.cfg.Clock.Now()
		due = slices.DeleteFunc(due, func(t time.Time) bool { return !t.After(now) })
		wait := rediscover
		for _, t := range due {
			wait = min(wait, t.Sub(now))
		}
		timer := m.cfg.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			m.stopAll()
			return
		case <-timer.C():
		case <-m.refresh:
			timer.Stop()
			for _, d := range soon {
				due = append(due, now.Add(d))
			}
			due = due[max(0, len(due)-3*len(soon)):]
		}
	}
}

func (m *monitors) stopAll() {
	m.mu.Lock()
	all := m.running
	m.running = nil
	m.mu.Unlock()
	for _, w := range all {
		w.stop()
	}
	for _, w := range all {
		<-w.done
	}
	m.wg.Wait()
}

// waitSynced waits for the first lists of all kinds.
func (m *monitors) waitSynced(ctx context.Context, patience time.Duration) {
	timer := m.cfg.Clock.NewTimer(patience)
	defer timer.Stop()
	wait := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		case <-timer.C():
			m.logger.Warn("some kinds cannot be listed, collecting without them")
			return false
		case <-ctx.Done():
			return false
		}
	}
	if !wait(m.began) {
		return
	}
	m.mu.Lock()
	all := make([]*monitor, 0, len(m.running))
	for _, w := range m.running {
		all = append(all, w)
	}
	m.mu.Unlock()
	for _, w := range all {
		if !wait(w.synced) {
			return
		}
	}
}

// sync starts watches of new kinds and stops those of kinds that are gone. Kinds of
// groups that could not be discovered stay.
func (m *monitors) sync(ctx context.Context) error {
	groups, lists, err := m.cfg.Discovery.ServerGroupsAndResources()
	if err != nil && len(lists) == 0 {
		return fmt.Errorf("discovering resources: %w", err)
	}
	preferred := map[string]string{}
	for _, g := range groups {
		preferred[g.Name] = g.PreferredVersion.Version
	}
	kinds := map[schema.GroupVersionKind]resource{}
	want := map[schema.GroupResource]resource{}
	for _, l := range lists {
		gv, perr := schema.ParseGroupVersion(l.GroupVersion)
		if perr != nil {
			continue
		}
		for _, r := range l.APIResources {
			res := resource{schema.GroupVersionResource{Group: cmp.Or(r.Group, gv.Group), Version: cmp.Or(r.Version, gv.Version), Resource: r.Name}, r.Namespaced}
			gr := res.gvr.GroupResource()
			if !has(r.Verbs, "get") || strings.Contains(r.Name, "/") {
				continue
			}
			kinds[schema.GroupVersionKind{Group: res.gvr.Group, Version: res.gvr.Version, Kind: r.Kind}] = res
			if !has(r.Verbs, "list", "watch", "delete") || slices.Contains(ignored, gr) {
				continue
			}
			if old, ok := want[gr]; !ok || old.gvr.Version != preferred[gr.Group] && res.gvr.Version == preferred[gr.Group] {
				want[gr] = res
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.running == nil {
		return nil
	}
	m.kinds = kinds
	for gvr, w := range m.running {
		if res, ok := want[gvr.GroupResource()]; (ok && res.gvr != gvr) || (!ok && err == nil) {
			w.stop()
			delete(m.running, gvr)
			// The objects of a kind that is gone are gone, too.
			if !ok {
				m.wg.Go(w.forgetAll)
			}
		}
	}
	for _, res := range want {
		if m.running[res.gvr] == nil {
			m.running[res.gvr] = m.start(ctx, res)
		}
	}
	return err
}

func has(verbs metav1.Verbs, all ...string) bool {
	for _, v := range all {
		if !slices.Contains(verbs, v) {
			return false
		}
	}
	return true
}

func (m *monitors) start(ctx context.Context, res resource) *monitor {
	ctx, cancel := context.WithCancel(ctx)
	w := &monitor{parent: m, res: res, stop: cancel, done: make(chan struct{}), synced: make(chan struct{}), uids: map[string]types.UID{}}
	client := m.cfg.Metadata.Resource(res.gvr)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return client.List(ctx, o) },
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, o)
		},
	}
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(lw, m.cfg.Metadata), &metav1.PartialObjectMetadata{}, w, cache.ReflectorOptions{
		Name: "garbage-collector", TypeDescription: res.gvr.String(),
	})
	go func() {
		defer close(w.done)
		r.RunWithContext(ctx)
	}()
	return w
}

func keyOf(o *metav1.PartialObjectMetadata) string { return o.Namespace + "/" + o.Name }

// Add, Update, Delete and Replace are the reflector's store.
func (w *monitor) Add(o any) error {
	obj, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("unexpected %T in a metadata watch", o)
	}
	w.mu.Lock()
	was := w.uids[keyOf(obj)]
	w.uids[keyOf(obj)] = obj.UID
	w.mu.Unlock()
	if was != "" && was != obj.UID {
		w.parent.gone(was)
	}
	w.parent.changed(w.res, obj)
	w.hint()
	return nil
}

// Update is Add.
func (w *monitor) Update(o any) error { return w.Add(o) }

// Delete forgets an object.
func (w *monitor) Delete(o any) error {
	obj, ok := o.(*metav1.PartialObjectMetadata)
	if !ok {
		return fmt.Errorf("unexpected %T in a metadata watch", o)
	}
	w.mu.Lock()
	delete(w.uids, keyOf(obj))
	w.mu.Unlock()
	w.parent.gone(obj.UID)
	w.hint()
	return nil
}

// Replace takes a fresh list.
func (w *monitor) Replace(list []any, _ string) error {
	seen := make(map[string]types.UID, len(list))
	var dropped []types.UID
	for _, o := range list {
		obj, ok := o.(*metav1.PartialObjectMetadata)
		if !ok {
			return fmt.Errorf("unexpected %T in a metadata list", o)
		}
		seen[keyOf(obj)] = obj.UID
	}
	w.mu.Lock()
	for key, uid := range w.uids {
		if seen[key] != uid {
			dropped = append(dropped, uid)
		}
	}
	w.uids = seen
	w.mu.Unlock()
	for _, o := range list {
		w.parent.changed(w.res, o.(*metav1.PartialObjectMetadata))
	}
	for _, uid := range dropped {
		w.parent.gone(uid)
	}
	w.once.Do(func() { close(w.synced) })
	if len(list) > 0 {
		w.hint() // kinds that came since the last discovery
	}
	return nil
}

// Resync has nothing to do.
func (w *monitor) Resync() error { return nil }

// hint asks for discovery when kinds have changed.
func (w *monitor) hint() {
	if w.res.gvr.GroupResource() == crds {
		w.parent.look()
	}
}

// look asks for discovery soon.
func (m *monitors) look() {
	select {
	case m.refresh <- struct{}{}:
	default:
	}
}

func (w *monitor) forgetAll() {
	<-w.done
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, uid := range w.uids {
		w.parent.gone(uid)
	}
}
