package aggregator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/clock"

	"golang.org/x/sync/errgroup"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// Served is what this server has itself, and when that changes.
type Served interface {
	All() []*seams.Served
	Changed() <-chan struct{}
}

// RegistrarConfig configures a Registrar.
type RegistrarConfig struct {
	Caches lookup.Caches
	// Served knows this server's own group versions; those of custom resources as well.
	Served Served
	Log    *slog.Logger
	// Clock defaults to the real one.
	Clock clock.Clock
}

// Registrar keeps an APIService without a service for each group version that this server
// has itself, so that all there is can be listed in one place. Like kube-aggregator's, it
// writes those of built-in groups once a start, and keeps those of custom resources.
type Registrar struct {
	RegistrarConfig
	services cacher.Resource
	follower *lookup.Follower
	wake     chan struct{} // holds one token

	mu   sync.Mutex
	have map[string]*apiregistrationv1.APIService

	started map[string]bool // built-in ones that this process has written or seen
	ready   chan struct{}   // closed after the first pass
}

// managedLabel says whether, and for how long, an APIService is the registrar's. Without it
// the object is its user's.
const managedLabel = "kube-aggregator.kubernetes.io/automanaged"

const (
	onStart = "onstart"
	always  = "true"
)

// replaceable are groups that others may serve in this server's place: an APIService that is
// there is its user's, whoever made it, and one that was deleted stays away until the next start.
var replaceable = map[string]bool{"metrics.k8s.io": true}

// NewRegistrar returns a Registrar. It must run after custom resources are known.
func NewRegistrar(c RegistrarConfig) (*Registrar, error) {
	if c.Caches == nil || c.Served == nil {
		return nil, errors.New("aggregator: Caches and Served must be set")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	r, err := lookup.Resource(c.Caches, gr)
	if err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	g := &Registrar{RegistrarConfig: c, services: r, wake: make(chan struct{}, 1), started: map[string]bool{}, ready: make(chan struct{})}
	g.follower = lookup.NewFollower(r, g, c.Log)
	return g, nil
}

// Run keeps the APIServices until ctx ends.
func (r *Registrar) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return r.follower.Run(ctx) })
	g.Go(func() error { r.keep(ctx); return nil })
	return g.Wait()
}

// WaitReady returns once all groups of the start are registered.
func (r *Registrar) WaitReady(ctx context.Context) error {
	select {
	case <-r.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// retry is how long after a write that failed the registrar tries again.
const retry = time.Second

func (r *Registrar) keep(ctx context.Context) {
	select {
	case <-r.follower.Synced():
	case <-ctx.Done():
		return
	}
	for complete := false; ; {
		changed := r.Served.Changed() // asked for before All: no change is missed
		var again <-chan time.Time
		if err := r.pass(ctx); err != nil {
			if ctx.Err() == nil {
				r.Log.Warn("register the server's own groups", "err", err)
			}
			again = r.Clock.After(retry)
		} else if !complete {
			complete = true
			close(r.ready)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-r.wake:
		case <-again:
		}
	}
}

// pass writes what differs.
func (r *Registrar) pass(ctx context.Context) error {
	r.mu.Lock()
	have := maps.Clone(r.have)
	r.mu.Unlock()
	want := wanted(r.Served.All())
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16) // the store commits them together
	for _, s := range plan(want, have, r.started) {
		g.Go(func() error {
			if err := s.do(gctx, r); err != nil {
				return fmt.Errorf("APIService %s: %w", s.name, err)
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	for name, s := range want {
		if s.Labels[managedLabel] != always {
			r.started[name] = true
		}
	}
	return nil
}

// wanted are the APIServices of group versions, by name.
func wanted(served []*seams.Served) map[string]*apiregistrationv1.APIService {
	out := map[string]*apiregistrationv1.APIService{}
	for _, s := range served {
		gv := schema.GroupVersion{Group: s.Group, Version: s.Version}
		name := gv.Version + "." + gv.Group
		if out[name] != nil {
			continue
		}
		managed, p := onStart, priorities[gv]
		if replaceable[gv.Group] {
			managed = ""
		}
		switch {
		case p != (priority{}):
		case !s.Custom(): // its place among the groups is not settled: upstream keeps such out, too
			continue
		default:
			managed, p = always, customPriority
		}
		out[name] = &apiregistrationv1.APIService{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: apiregistrationv1.APIServiceSpec{
				Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: p.group, VersionPriority: p.version,
			},
		}
		if managed != "" {
			out[name].Labels = map[string]string{managedLabel: managed}
		}
	}
	return out
}

// step is one write.
type step struct {
	name string
	// want is what to write; nil: delete.
	want *apiregistrationv1.APIService
}

// plan says what to write: what lacks or differs, and what is no longer served. An object
// without the label is never touched, a built-in one only before started says that it was.
func plan(want, have map[string]*apiregistrationv1.APIService, started map[string]bool) []step {
	var out []step
	for name, w := range want {
		h := have[name]
		managed := w.Labels[managedLabel]
		if managed != always && started[name] {
			continue
		}
		if h == nil || h.Labels[managedLabel] != "" && (h.Spec.Service != nil || h.Labels[managedLabel] != managed || !sameSpec(h, w) || !local(h)) {
			out = append(out, step{name, w})
		}
	}
	for name, h := range have {
		if h.Labels[managedLabel] != "" && want[name] == nil && (h.Labels[managedLabel] == always || !started[name]) {
			out = append(out, step{name: name})
		}
	}
	return out
}

func sameSpec(a, b *apiregistrationv1.APIService) bool {
	return a.Spec.Group == b.Spec.Group && a.Spec.Version == b.Spec.Version &&
		a.Spec.GroupPriorityMinimum == b.Spec.GroupPriorityMinimum && a.Spec.VersionPriority == b.Spec.VersionPriority
}

func local(s *apiregistrationv1.APIService) bool {
	for _, c := range s.Status.Conditions {
		if c.Type == apiregistrationv1.Available {
			return c.Status == apiregistrationv1.ConditionTrue && c.Reason == "Local"
		}
	}
	return false
}

func (s step) do(ctx context.Context, r *Registrar) error {
	if s.want == nil {
		_, err := r.services.Delete(ctx, "", s.name, cacher.Preconditions{}, func(current cacher.Object) error {
			if current.Meta().GetLabels()[managedLabel] == "" {
				return errNotOurs
			}
			return nil
		})
		if apierrors.IsNotFound(err) || errors.Is(err, errNotOurs) {
			return nil
		}
		return err
	}
	now := metav1.NewTime(r.Clock.Now()).Rfc3339Copy()
	_, err := r.services.Update(ctx, "", s.name, true, cacher.Preconditions{}, func(current cacher.Object) (runtime.Object, time.Duration, error) {
		next := s.want.DeepCopy()
		if current == nil {
			next.UID, next.CreationTimestamp = types.UID(uuid.NewString()), now
		} else {
			old, ok := current.Runtime().(*apiregistrationv1.APIService)
			if !ok {
				return nil, 0, fmt.Errorf("cache of %s holds a %T", gr, current.Runtime())
			}
			if old.Labels[managedLabel] == "" {
				return nil, 0, errNotOurs
			}
			next = old.DeepCopy()
			next.Labels[managedLabel], next.Spec = s.want.Labels[managedLabel], s.want.Spec
		}
		if !local(next) {
			next.Status.Conditions = []apiregistrationv1.APIServiceCondition{{
				Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionTrue, LastTransitionTime: now,
				Reason: "Local", Message: "Local APIServices are always available",
			}}
		}
		return next, 0, nil
	})
	if errors.Is(err, errNotOurs) {
		return nil
	}
	return err
}

var errNotOurs = errors.New("the APIService is its user's")

// Replace implements lookup.Index.
func (r *Registrar) Replace(objs []cacher.Object) {
	all := map[string]*apiregistrationv1.APIService{}
	for _, o := range objs {
		if s, ok := o.Runtime().(*apiregistrationv1.APIService); ok {
			all[s.Name] = s
		}
	}
	r.change(func() { r.have = all })
}

// Set implements lookup.Index.
func (r *Registrar) Set(o cacher.Object) {
	if s, ok := o.Runtime().(*apiregistrationv1.APIService); ok {
		r.change(func() { r.have[s.Name] = s })
	}
}

// Delete implements lookup.Index.
func (r *Registrar) Delete(o cacher.Object) {
	r.change(func() { delete(r.have, o.Meta().GetName()) })
}

func (r *Registrar) change(f func()) {
	r.mu.Lock()
	f()
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}
