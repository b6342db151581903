// Package scheduler gives each pending pod a node.
//
// One goroutine, the loop, owns the snapshot and the queue: informers post what changed,
// and between two attempts the loop applies it. An attempt is a pure function of the
// snapshot (filter, score, pick); what it decides is written elsewhere: bindings and
// failures go to the API server in goroutines that report back to the loop.
//
// Owns: bindings, the PodScheduled condition and nominations of pods that name one of its
// profiles. Must not: write anything else.
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/queue"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// maxWrites bounds bindings and status patches under way at a time.
const maxWrites = 128

// Config of a scheduler.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	// Events for schedulers' clients; see events.NewBroadcaster.
	Events events.EventRecorder
	// Profiles; one named default-scheduler if empty.
	Profiles []Profile
	// PercentageOfNodesToScore 0 adapts to the number of nodes.
	PercentageOfNodesToScore int32
	// Seed decides between equal nodes; 0: random.
	Seed   uint64
	Clock  clock.WithTickerAndDelayedExecution
	Logger *slog.Logger
}

// Scheduler schedules pods.
type Scheduler struct {
	cfg      Config
	profiles map[string]*profile
	events   events.EventRecorder
	synced   []cache.InformerSynced
	inbox    inbox
	writes   chan struct{} // holds a token per write under way
	wg       sync.WaitGroup

	volumeBinding framework.Plugin

	// The loop's own.
	ctx       context.Context // of Run
	snap      *snapshot.Snapshot
	queue     *queue.Queue
	search    searcher
	nominated map[string]map[types.UID]*snapshot.Pod
	bindings  map[types.UID]*binding
}

// New makes a scheduler; it starts nothing, but asks Informers for what it needs.
func New(cfg Config) (*Scheduler, error) {
	if cfg.Client == nil || cfg.Informers == nil || cfg.Logger == nil || cfg.Events == nil {
		return nil, errors.New("scheduler config: Client, Informers, Events and Logger are required")
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if len(cfg.Profiles) == 0 {
		cfg.Profiles = []Profile{{}}
	}
	if cfg.Seed == 0 {
		cfg.Seed = rand.Uint64()
	}
	s := &Scheduler{
		cfg:       cfg,
		profiles:  map[string]*profile{},
		events:    cfg.Events,
		writes:    make(chan struct{}, maxWrites),
		snap:      snapshot.New(),
		nominated: map[string]map[types.UID]*snapshot.Pod{},
		bindings:  map[types.UID]*binding{},
	}
	s.inbox.signal = make(chan struct{}, 1)
	s.search.rnd = rand.New(rand.NewPCG(cfg.Seed, 0))
	for _, p := range cfg.Profiles {
		pr, err := newProfile(p, s.sharedPlugins())
		if err != nil {
			return nil, err
		}
		if s.profiles[pr.Name] != nil {
			return nil, fmt.Errorf("scheduler: two profiles are named %s", pr.Name)
		}
		s.profiles[pr.Name] = pr
	}
	s.queue = queue.New(func(p *corev1.Pod) *framework.Status {
		if pr := s.profiles[p.Spec.SchedulerName]; pr != nil {
			return pr.gate(p)
		}
		return nil
	})
	if err := s.watch(); err != nil {
		return nil, fmt.Errorf("scheduler: %w", err)
	}
	return s, nil
}

// Run schedules until ctx ends and all that was under way has stopped.
func (s *Scheduler) Run(ctx context.Context) error {
	defer s.wg.Wait()
	s.ctx = ctx
	if !s.waitSynced(ctx) {
		return nil
	}
	timer := s.cfg.Clock.NewTimer(time.Hour)
	defer timer.Stop()
	for ctx.Err() == nil {
		now := s.cfg.Clock.Now()
		s.inbox.drain(now)
		if it := s.queue.Pop(now); it != nil {
			s.attempt(ctx, it)
			continue
		}
		wait := time.Hour
		if next := s.queue.Next(); !next.IsZero() {
			wait = max(next.Sub(now), time.Millisecond)
		}
		timer.Reset(wait)
		select {
		case <-ctx.Done():
		case <-s.inbox.signal:
		case <-timer.C():
		}
	}
	return nil
}

func (s *Scheduler) waitSynced(ctx context.Context) bool {
	t := time.NewTicker(10 * time.Millisecond)
	defer t.Stop()
	for _, synced := range s.synced {
		for !synced() {
			select {
			case <-ctx.Done():
				return false
			case <-t.C:
			}
		}
	}
	return true
}

// attempt is one scheduling cycle.
func (s *Scheduler) attempt(ctx context.Context, it *queue.Item) {
	pr := s.profiles[it.Spec.SchedulerName]
	if pr == nil || it.DeletionTimestamp != nil {
		s.queue.Delete(it.UID)
		if it.DeletionTimestamp != nil {
			s.events.Eventf(it.Pod.Pod, nil, corev1.EventTypeWarning, "FailedScheduling", "Scheduling", "skip schedule deleting pod: %s/%s", it.Namespace, it.Name)
		}
		return
	}
	s.snap.Order()
	c := &framework.Cycle{Pod: it.Pod, Snap: s.snap, Now: s.cfg.Clock.Now()}
	if len(s.nominated) > 0 {
		c.Nominated = s.rivals(it.Pod)
	}
	node, f := s.find(c, pr)
	if node == nil {
		s.failed(ctx, it, pr, c, f)
		return
	}
	if st := s.reserve(c, pr, node); st != nil {
		f := &failure{nodes: len(s.snap.Nodes), pre: st, err: st.Err}
		s.failed(ctx, it, pr, nil, f)
		return
	}
	s.settle(it, node.Name(), s.cfg.Clock.Now())
	s.bind(ctx, it, pr, c, node.Name())
}

// settle puts a pod on the node that was found for it.
func (s *Scheduler) settle(it *queue.Item, node string, now time.Time) {
	s.denominate(it.UID, node, now)
	s.snap.Assume(it.Pod, node)
}

// find picks the best node, or says why there is none.
func (s *Scheduler) find(c *framework.Cycle, pr *profile) (*snapshot.Node, *failure) {
	se := &s.search
	se.profile, se.cycle = pr, c
	f := &failure{nodes: len(s.snap.Nodes)}
	if f.nodes == 0 {
		return nil, f
	}
	if st := se.preFilter(); st != nil {
		if st.Code == framework.Error {
			f.err = st.Err
		} else {
			f.pre = st
		}
		return nil, f
	}
	percent := s.cfg.PercentageOfNodesToScore
	if pr.PercentageOfNodesToScore != 0 {
		percent = pr.PercentageOfNodesToScore
	}
	if st := se.find(percent); st != nil {
		f.err = st.Err
		return nil, f
	}
	if len(se.feasible) == 0 {
		f.statuses = se.statuses
		return nil, f
	}
	return se.best(), nil
}

// reserve asks all Reserve plugins, undoing what succeeded when one fails.
func (s *Scheduler) reserve(c *framework.Cycle, pr *profile, n *snapshot.Node) *framework.Status {
	for i, r := range pr.reserves {
		if st := r.Reserve(c, n); st != nil {
			for j := i; j >= 0; j-- {
				pr.reserves[j].Unreserve(c, n.Name())
			}
			return st
		}
	}
	return nil
}

// failed handles an attempt without a node. c is nil when preemption makes no sense.
func (s *Scheduler) failed(ctx context.Context, it *queue.Item, pr *profile, c *framework.Cycle, f *failure) {
	now := s.cfg.Clock.Now()
	reason, nominate := corev1.PodReasonUnschedulable, ""
	rejected := f.rejectedBy()
	if f.err != nil {
		reason = corev1.PodReasonSchedulerError
		s.cfg.Logger.Error("scheduling failed, it will be retried", "pod", it.Namespace+"/"+it.Name, "err", f.err)
	} else if c != nil && f.nodes > 0 {
		nominate = s.postFilter(it, pr, c, f)
	}
	s.queue.Failed(it, rejected, pr.hintsOf(rejected), f.err != nil, now)
	message := f.message()
	pod := it.Pod.Pod
	s.write(ctx, func(ctx context.Context) { s.tell(ctx, pod, reason, message, nominate) })
}

// postFilter lets plugins make room. It returns the node to nominate, "-" to withdraw a
// nomination, or "".
func (s *Scheduler) postFilter(it *queue.Item, pr *profile, c *framework.Cycle, f *failure) string {
	nominate := ""
	for _, pl := range pr.postFilters {
		n, st := pl.PostFilter(c, f.statuses)
		switch {
		case n == nil: // a pod that waits for its victims keeps the room that they leave
		case n.Node == "":
			nominate = "-"
		default:
			s.denominate(it.UID, n.Node, c.Now)
			s.nominate(it.Pod, n.Node)
			return n.Node
		}
		if st != nil {
			f.post = st.Message()
		}
	}
	if nominate == "-" {
		s.denominate(it.UID, "", c.Now)
	}
	return nominate
}

// nominate notes that room on a node is meant for a pod.
func (s *Scheduler) nominate(p *snapshot.Pod, node string) {
	if s.nominated[node] == nil {
		s.nominated[node] = map[types.UID]*snapshot.Pod{}
	}
	s.nominated[node][p.UID] = p
}

// denominate withdraws a pod's nomination. Unless the pod goes to that very node, others for
// whom it left no room may fit now.
func (s *Scheduler) denominate(uid types.UID, to string, now time.Time) {
	for node, pods := range s.nominated {
		p, ok := pods[uid]
		if !ok {
			continue
		}
		delete(pods, uid)
		if len(pods) == 0 {
			delete(s.nominated, node)
		}
		if node != to {
			s.queue.Event(framework.Event{Kind: framework.PodDelete, Pod: p}, now)
		}
	}
}

// renominate follows a nomination that was written to the pod's status, by whomever.
func (s *Scheduler) renominate(old, pod *corev1.Pod, p *snapshot.Pod, now time.Time) {
	was, is := old.Status.NominatedNodeName, pod.Status.NominatedNodeName
	if was == is {
		return
	}
	s.denominate(pod.UID, is, now)
	if is != "" {
		s.nominate(p, is)
	}
}

// rivals are the pods nominated to a node that go before p.
func (s *Scheduler) rivals(p *snapshot.Pod) func(string, func(*snapshot.Pod)) {
	return func(node string, yield func(*snapshot.Pod)) {
		for uid, q := range s.nominated[node] {
			if uid != p.UID && q.Priority >= p.Priority {
				yield(q)
			}
		}
	}
}

// write runs f in a goroutine, at most maxWrites at a time.
func (s *Scheduler) write(ctx context.Context, f func(ctx context.Context)) {
	s.wg.Go(func() {
		select {
		case s.writes <- struct{}{}:
			defer func() { <-s.writes }()
			f(ctx)
		case <-ctx.Done():
		}
	})
}
