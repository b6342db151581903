// Package flowcontrol is API Priority and Fairness (KEP-1040): FlowSchemas say at which
// priority level a request is, levels have seats of their own and lend what they do not
// use, and within a level flows get a fair share. So no client, however busy, keeps the
// others, or the cluster's own components, from being served.
//
// Owns: classification, seats, queues, the Dangling condition of FlowSchemas. Must not:
// answer requests; the chain of filters does.
//
// One thing differs from upstream: a write does not keep seats for the events it causes,
// because a watch event costs a small part here of the five milliseconds that are
// reckoned with there.
package flowcontrol

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apischema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

// Config configures a Controller.
type Config struct {
	Caches lookup.Caches
	// Seats are those of the whole server.
	Seats int
	Log   *slog.Logger
	// Clock defaults to the real one.
	Clock clock.Clock
}

// Controller decides when requests may go. Safe for concurrent use.
type Controller struct {
	Config
	flows   flowHasher
	schemas cacher.Resource
	wake    chan struct{} // holds one token: FlowSchemas changed
	follow  []*lookup.Follower

	table atomic.Pointer[table]

	mu      sync.Mutex // held by writers of what follows and of table
	fs      map[string]*flowcontrolv1.FlowSchema
	plc     map[string]*flowcontrolv1.PriorityLevelConfiguration
	levels  map[string]*level
	leaving []*level // deleted, with requests in them
}

// table is one state of the configuration.
type table struct {
	schemas []*schema // in order
	levels  map[string]*listed
}

type listed struct {
	*level
	uid      []string
	seats    seats
	maxSeats int // of one request
}

var (
	flowSchemas    = apischema.GroupResource{Group: flowcontrolv1.GroupName, Resource: "flowschemas"}
	priorityLevels = apischema.GroupResource{Group: flowcontrolv1.GroupName, Resource: "prioritylevelconfigurations"}
)

// New returns a Controller that knows the mandatory objects until Run has read the others.
func New(c Config) (*Controller, error) {
	if c.Caches == nil || c.Seats <= 0 {
		return nil, errors.New("flowcontrol: Caches and Seats must be set")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	k := &Controller{
		Config: c, flows: newFlowHasher(), wake: make(chan struct{}, 1),
		fs: map[string]*flowcontrolv1.FlowSchema{}, plc: map[string]*flowcontrolv1.PriorityLevelConfiguration{}, levels: map[string]*level{},
	}
	var err error
	if k.schemas, err = lookup.Resource(c.Caches, flowSchemas); err != nil {
		return nil, fmt.Errorf("flowcontrol: %w", err)
	}
	levels, err := lookup.Resource(c.Caches, priorityLevels)
	if err != nil {
		return nil, fmt.Errorf("flowcontrol: %w", err)
	}
	k.follow = []*lookup.Follower{
		lookup.NewFollower(k.schemas, index[flowcontrolv1.FlowSchema, *flowcontrolv1.FlowSchema]{k, func() map[string]*flowcontrolv1.FlowSchema { return k.fs }}, c.Log),
		lookup.NewFollower(levels, index[flowcontrolv1.PriorityLevelConfiguration, *flowcontrolv1.PriorityLevelConfiguration]{k, func() map[string]*flowcontrolv1.PriorityLevelConfiguration { return k.plc }}, c.Log),
	}
	k.change(func() {})
	return k, nil
}

// adjustEvery is how often seats move between levels.
const adjustEvery = 10 * time.Second

// Run follows the configuration until ctx ends.
func (k *Controller) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, f := range k.follow {
		g.Go(func() error { return f.Run(ctx) })
	}
	g.Go(func() error { k.keepStatus(ctx); return nil })
	g.Go(func() error {
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-k.Clock.After(adjustEvery):
				k.adjust()
			}
		}
	})
	return g.Wait()
}

// WaitReady returns once the objects that were there at the start count.
func (k *Controller) WaitReady(ctx context.Context) error {
	for _, f := range k.follow {
		select {
		case <-f.Synced():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// named is a pointer to an object.
type named[T any] interface {
	*T
	GetName() string
}

// index keeps one kind of object by name.
type index[T any, P named[T]] struct {
	k  *Controller
	of func() map[string]P
}

func (i index[T, P]) Replace(objs []cacher.Object) {
	i.k.change(func() {
		clear(i.of())
		for _, o := range objs {
			if p, ok := o.Runtime().(P); ok {
				i.of()[p.GetName()] = p
			}
		}
	})
}

func (i index[T, P]) Set(o cacher.Object) {
	if p, ok := o.Runtime().(P); ok {
		i.k.change(func() { i.of()[p.GetName()] = p })
	}
}

func (i index[T, P]) Delete(o cacher.Object) {
	i.k.change(func() { delete(i.of(), o.Meta().GetName()) })
}

// change takes over what f changes of the objects.
func (k *Controller) change(f func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f()
	specs := map[string]*flowcontrolv1.PriorityLevelConfigurationSpec{}
	uids := map[string]string{}
	// The mandatory levels are as they are whatever an object says, and without one.
	for _, p := range bootstrap.MandatoryPriorityLevelConfigurations {
		specs[p.Name] = &p.Spec
	}
	for name, p := range k.plc {
		uids[name] = string(p.UID)
		if specs[name] == nil || name == flowcontrolv1.PriorityLevelConfigurationNameExempt {
			specs[name] = &p.Spec
		}
	}
	t := &table{levels: map[string]*listed{}}
	k.limits(t, specs)
	for name, spec := range specs {
		t.levels[name].uid = []string{uids[name]}
		q := queuing{}
		if spec.Limited != nil && spec.Limited.LimitResponse.Type == flowcontrolv1.LimitResponseTypeQueue && spec.Limited.LimitResponse.Queuing != nil {
			c := spec.Limited.LimitResponse.Queuing
			q = queuing{queues: int(c.Queues), hand: int(c.HandSize), length: int(c.QueueLengthLimit)}
		}
		t.levels[name].configure(spec.Type == flowcontrolv1.PriorityLevelEnablementExempt, q)
	}
	schemas := maps.Clone(k.fs)
	for _, f := range bootstrap.MandatoryFlowSchemas {
		if o := schemas[f.Name]; o != nil {
			f = f.DeepCopy()
			f.UID = o.UID
		}
		schemas[f.Name] = f
	}
	for _, f := range schemas {
		if t.levels[f.Spec.PriorityLevelConfiguration.Name] != nil { // else it is dangling, and matches nothing
			t.schemas = append(t.schemas, newSchema(f))
		}
	}
	order(t.schemas)
	k.table.Store(t)
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// limits lists the levels with their seats; those that are new begin with half of what they lend lent.
func (k *Controller) limits(t *table, specs map[string]*flowcontrolv1.PriorityLevelConfigurationSpec) {
	for name, s := range nominalSeats(k.Seats, specs) {
		l := k.levels[name]
		if l == nil {
			l = newLevel(name, k.Clock)
			k.levels[name] = l
		}
		before := k.table.Load()
		if before == nil || before.levels[name] == nil || before.levels[name].seats != s {
			l.setLimit(max(s.nominal-(s.nominal-s.least)/2, 1))
		}
		t.levels[name] = &listed{level: l, seats: s, maxSeats: maxSeats(s.nominal)}
	}
	for name, l := range k.levels {
		if specs[name] == nil {
			delete(k.levels, name)
			k.leaving = append(k.leaving, l) // what is in it goes on with the seats it had
		}
	}
}

// adjust moves seats between levels by what they wanted lately.
func (k *Controller) adjust() {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.Clock.Now()
	wishes := map[string]wish{}
	levels := k.table.Load().levels
	for name, l := range levels {
		l.mu.Lock()
		high, smooth := l.demand.take(now)
		l.mu.Unlock()
		wishes[name] = wish{l.seats, high, smooth}
	}
	for name, n := range share(k.Seats, wishes) {
		levels[name].setLimit(n)
	}
	var still []*level
	for _, l := range k.leaving {
		if !l.idle() {
			still = append(still, l)
		}
	}
	k.leaving = still
}

// Turn is a request that may go. Done must be called once.
type Turn struct {
	level  *level
	ticket *ticket
	once   sync.Once
}

// Done gives the seats back.
func (t *Turn) Done() { t.once.Do(func() { t.level.leave(t.ticket) }) }

// Refusal says that a request may not go.
type Refusal struct {
	Reason string
	// RetryAfter is in seconds.
	RetryAfter int64
}

// Class is where a request belongs; SchemaUID and LevelUID are values of headers, not to be changed.
type Class struct {
	SchemaUID, LevelUID []string
	schema              *schema
	level               *listed
	flow                uint64
}

// Classify finds the first FlowSchema that matches. There is always one.
func (k *Controller) Classify(u user.Info, info *request.RequestInfo) Class {
	t := k.table.Load()
	s := t.schemas[len(t.schemas)-1] // catch-all
	for _, c := range t.schemas {
		if c.matches(u, info) {
			s = c
			break
		}
	}
	l := t.levels[s.level]
	c := Class{SchemaUID: s.uid, LevelUID: l.uid, schema: s, level: l}
	if !l.seats.exempt {
		c.flow = k.flows.hash(s.name, s.flow(u, info))
	}
	return c
}

// Enter waits, at most as long as waitLimit, until the request may go.
func (k *Controller) Enter(ctx context.Context, c Class, width int, waitLimit time.Duration) (*Turn, *Refusal) {
	t, reason := c.level.enter(ctx, c.schema, c.flow, max(1, min(width, c.level.maxSeats)), waitLimit)
	if reason != "" {
		return nil, &Refusal{Reason: reason, RetryAfter: c.level.retryAfter()}
	}
	return &Turn{level: c.level.level, ticket: t}, nil
}
