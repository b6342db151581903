// Package crd serves CustomResourceDefinitions: it turns each into the same value that
// declares a built-in resource, so that its objects go through the same machinery.
//
// Owns: a definition's conditions, schema, life and end. Must not: handle requests, or
// know how objects are stored.
package crd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
	"github.com/skiff-k8s/skiff/apiserver/webhook"
)

// Caches are those that resources can be added to.
type Caches interface {
	lookup.Caches
	Add(key string, r *api.Resource) error
	Remove(key string)
}

// Registry is what serves resources.
type Registry interface {
	seams.Registry
	seams.Stores
}

// Config configures a Controller.
type Config struct {
	Caches   Caches
	Registry Registry
	// Caller reaches conversion webhooks; nil: definitions that have one are not served.
	Caller *webhook.Caller
	Log    *slog.Logger
	// Clock defaults to the real one.
	Clock clock.Clock
}

// Controller follows CustomResourceDefinitions.
type Controller struct {
	Config
	definitions cacher.Resource
	follower    *lookup.Follower

	mu      sync.Mutex
	known   map[string]*apiextensionsv1.CustomResourceDefinition
	dirty   map[string]bool
	wake    chan struct{} // holds one token
	synced  chan struct{} // closed once all definitions of the start are served
	initial map[string]bool

	// Of the worker alone.
	served  map[string]*serving
	retries map[string]int
}

// serving is what is served for a definition, and what it was made from.
type serving struct {
	gr          schema.GroupResource
	key         string
	uid         types.UID
	spec        apiextensionsv1.CustomResourceDefinitionSpec
	names       apiextensionsv1.CustomResourceDefinitionNames
	terminating bool
	stop        context.CancelFunc // of the clean-up
}

var gr = schema.GroupResource{Group: apiextensionsv1.GroupName, Resource: "customresourcedefinitions"}

// New builds a Controller.
func New(c Config) (*Controller, error) {
	if c.Caches == nil || c.Registry == nil {
		return nil, errors.New("crd: Caches and Registry must be set")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	r, err := lookup.Resource(c.Caches, gr)
	if err != nil {
		return nil, err
	}
	ctl := &Controller{
		Config: c, definitions: r,
		known: map[string]*apiextensionsv1.CustomResourceDefinition{}, dirty: map[string]bool{},
		wake: make(chan struct{}, 1), synced: make(chan struct{}),
		served: map[string]*serving{}, retries: map[string]int{},
	}
	ctl.follower = lookup.NewFollower(r, ctl, c.Log)
	return ctl, nil
}

// Hooks begin a definition's end: it stays until its objects are gone.
func Hooks(c clock.PassiveClock) seams.Hooks {
	if c == nil {
		c = clock.RealClock{}
	}
	return seams.Hooks{
		Resource: gr,
		Deleting: func(_ context.Context, obj runtime.Object) {
			d := obj.(*apiextensionsv1.CustomResourceDefinition)
			if !apihelpers.CRDHasFinalizer(d, apiextensionsv1.CustomResourceCleanupFinalizer) {
				d.Finalizers = append(d.Finalizers, apiextensionsv1.CustomResourceCleanupFinalizer)
			}
			setCondition(d, c.Now(), apiextensionsv1.CustomResourceDefinitionCondition{
				Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionTrue, Reason: "InstanceDeletionPending",
				Message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
			})
		},
	}
}

func setCondition(d *apiextensionsv1.CustomResourceDefinition, now time.Time, c apiextensionsv1.CustomResourceDefinitionCondition) {
	c.LastTransitionTime = metav1.NewTime(now).Rfc3339Copy()
	apihelpers.SetCRDCondition(d, c)
}

// WaitReady returns once the definitions that were there at the start are served.
func (c *Controller) WaitReady(ctx context.Context) error {
	select {
	case <-c.synced:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run serves definitions until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.follower.Run(ctx) })
	g.Go(func() error {
		cleaning := &sync.WaitGroup{}
		defer cleaning.Wait()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-c.wake:
			}
			for _, name := range c.takeDirty() {
				c.process(ctx, name, cleaning)
			}
		}
	})
	return g.Wait()
}

func (c *Controller) process(ctx context.Context, name string, cleaning *sync.WaitGroup) {
	err := c.sync(ctx, name, cleaning)
	if err == nil {
		delete(c.retries, name)
		c.noteInitial(name)
		return
	}
	if ctx.Err() != nil {
		return
	}
	c.Log.Warn("serve custom resource definition", "name", name, "err", err)
	c.noteInitial(name) // one that is broken must not keep the server from being ready
	n := min(c.retries[name], 8)
	c.retries[name]++
	delay := c.Clock.NewTimer(50 * time.Millisecond << n)
	cleaning.Go(func() {
		defer delay.Stop()
		select {
		case <-ctx.Done():
		case <-delay.C():
			c.enqueue(name)
		}
	})
}

// Replace implements lookup.Index.
func (c *Controller) Replace(objs []cacher.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name := range c.known {
		c.dirty[name] = true
	}
	clear(c.known)
	for _, o := range objs {
		c.known[o.Meta().GetName()] = o.Runtime().(*apiextensionsv1.CustomResourceDefinition)
		c.dirty[o.Meta().GetName()] = true
	}
	if c.initial == nil {
		c.initial = make(map[string]bool, len(objs))
		for name := range c.known {
			c.initial[name] = true
		}
		if len(c.initial) == 0 {
			close(c.synced)
		}
	}
	c.poke()
}

// Set implements lookup.Index.
func (c *Controller) Set(o cacher.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.known[o.Meta().GetName()] = o.Runtime().(*apiextensionsv1.CustomResourceDefinition)
	c.dirty[o.Meta().GetName()] = true
	c.poke()
}

// Delete implements lookup.Index. The names that it had may be what others wait for.
func (c *Controller) Delete(o cacher.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	gone := c.known[o.Meta().GetName()]
	delete(c.known, o.Meta().GetName())
	c.dirty[o.Meta().GetName()] = true
	if gone != nil {
		for name, d := range c.known {
			if d.Spec.Group == gone.Spec.Group && !apihelpers.IsCRDConditionTrue(d, apiextensionsv1.NamesAccepted) {
				c.dirty[name] = true
			}
		}
	}
	c.poke()
}

func (c *Controller) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *Controller) enqueue(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dirty[name] = true
	c.poke()
}

func (c *Controller) takeDirty() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := make([]string, 0, len(c.dirty))
	for name := range c.dirty {
		names = append(names, name)
	}
	clear(c.dirty)
	return names
}

func (c *Controller) noteInitial(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.initial[name] {
		return
	}
	delete(c.initial, name)
	if len(c.initial) == 0 {
		close(c.synced)
	}
}

// get returns a definition and all of them.
func (c *Controller) get(name string) (*apiextensionsv1.CustomResourceDefinition, []*apiextensionsv1.CustomResourceDefinition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(c.known))
	for _, d := range c.known {
		all = append(all, d)
	}
	return c.known[name], all
}

// sync brings what is served, and the definition's status, in line with the definition.
func (c *Controller) sync(ctx context.Context, name string, cleaning *sync.WaitGroup) error {
	d, all := c.get(name)
	if s := c.served[name]; s != nil && (d == nil || d.UID != s.uid) {
		if err := c.unserve(name, s); err != nil {
			return err
		}
	}
	if d == nil {
		return nil
	}
	next, differs := decideStatus(d, all)
	// Served first, said afterwards: who sees Established can use it.
	if apihelpers.IsCRDConditionTrue(next, apiextensionsv1.Established) {
		if err := c.serve(next); err != nil {
			return err
		}
	}
	if differs {
		if err := c.writeStatus(ctx, d, all); err != nil {
			return err
		}
	}
	if d.DeletionTimestamp != nil && apihelpers.CRDHasFinalizer(d, apiextensionsv1.CustomResourceCleanupFinalizer) {
		c.startCleanup(ctx, d, cleaning)
	}
	return nil
}

func (c *Controller) serve(d *apiextensionsv1.CustomResourceDefinition) error {
	terminating := d.DeletionTimestamp != nil
	old := c.served[d.Name]
	if old != nil && old.terminating == terminating &&
		apiequality.Semantic.DeepEqual(old.names, d.Status.AcceptedNames) && apiequality.Semantic.DeepEqual(old.spec, d.Spec) {
		return nil
	}
	cached, versions, err := build(d, c.Caller)
	if err != nil {
		return fmt.Errorf("build resource: %w", err)
	}
	s := &serving{
		gr: cached.GR(), key: cached.Group + "/" + cached.Plural, uid: d.UID,
		spec: d.Spec, names: d.Status.AcceptedNames, terminating: terminating,
	}
	if old == nil {
		// A built-in resource of that name stays what it is.
		if len(c.Registry.Served(s.gr)) > 0 {
			return fmt.Errorf("resource %s is served already", s.gr)
		}
	} else {
		s.stop = old.stop
	}
	if old == nil || !apiequality.Semantic.DeepEqual(old.spec, d.Spec) || !apiequality.Semantic.DeepEqual(old.names, d.Status.AcceptedNames) {
		if err := c.Caches.Add(s.key, cached); err != nil {
			return err
		}
	}
	if err := c.Registry.Replace(s.gr, versions...); err != nil {
		if old == nil {
			c.Caches.Remove(s.key)
		}
		return err
	}
	c.served[d.Name] = s
	return nil
}

func (c *Controller) unserve(name string, s *serving) error {
	if s.stop != nil {
		s.stop()
	}
	if err := c.Registry.Replace(s.gr); err != nil {
		return fmt.Errorf("stop serving: %w", err)
	}
	c.Caches.Remove(s.key)
	delete(c.served, name)
	return nil
}

// writeStatus writes what decideStatus says about the state that is stored now.
func (c *Controller) writeStatus(ctx context.Context, d *apiextensionsv1.CustomResourceDefinition, all []*apiextensionsv1.CustomResourceDefinition) error {
	_, err := c.definitions.Update(ctx, "", d.Name, false, cacher.Preconditions{UID: &d.UID},
		func(current cacher.Object) (runtime.Object, time.Duration, error) {
			next, differs := decideStatus(current.Runtime().(*apiextensionsv1.CustomResourceDefinition), all)
			if !differs {
				return nil, 0, cacher.ErrNoChange
			}
			return next, 0, nil
		})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // its own event follows
	}
	if err != nil {
		return fmt.Errorf("write status: %w", err)
	}
	return nil
}
