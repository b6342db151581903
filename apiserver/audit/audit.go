// Package audit records who asked the API server for what, and with which outcome, as
// audit.k8s.io/v1 events (https://kubernetes.io/docs/tasks/debug/debug-cluster/audit/).
//
// Owns: the policy, the stages of a request's record, the form of events and the
// backends that keep them. Must not: decide about requests, or hold them up longer
// than a blocking backend's write takes.
//
// Annotations come through k8s.io/apiserver/pkg/audit, whose context a request carries;
// bodies come from the handlers through RequestObject, RequestPatch and Response.
package audit

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	"k8s.io/apiserver/pkg/apis/audit"
	upstream "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"
	"k8s.io/utils/clock"
)

// Config is what an Auditor is made of.
type Config struct {
	// Policy says which requests are recorded, and how much of them (LoadPolicy).
	Policy *audit.Policy
	// Log keeps events in a file; nil: it does not.
	Log *LogConfig
	// Webhook sends events away; nil: it does not.
	Webhook *WebhookConfig

	Logger *slog.Logger
	Clock  clock.WithTicker
}

// Auditor records requests.
type Auditor struct {
	rules    upstream.PolicyRuleEvaluator
	backends []backend
	log      *slog.Logger
	clock    clock.PassiveClock
	buffers  sync.Pool

	events, rejected atomic.Int64
}

// backend keeps events.
type backend interface {
	// put takes an event and keeps nothing of it. false: the request must not go on,
	// because it could not be recorded.
	put(ev event) bool
	// run does the backend's work until ctx ends and everything taken is kept.
	run(ctx context.Context) error
}

// event is what backends get: the event, its users' extra fields, and all of it as a
// line of JSON.
type event struct {
	*audit.Event
	extra, impersonated map[string][]string
	line                []byte
}

// New builds an Auditor; backends that batch need Run.
func New(c Config) (*Auditor, error) {
	if c.Policy == nil {
		return nil, errors.New("audit: Config.Policy is required")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	a := &Auditor{rules: policy.NewPolicyRuleEvaluator(c.Policy.DeepCopy()), log: c.Logger, clock: c.Clock}
	a.buffers.New = func() any { b := make([]byte, 0, 2<<10); return &b }
	if c.Log != nil {
		b, err := newLogBackend(*c.Log, c.Logger, c.Clock)
		if err != nil {
			return nil, err
		}
		a.backends = append(a.backends, b)
	}
	if c.Webhook != nil {
		b, err := newWebhookBackend(*c.Webhook, c.Logger, c.Clock)
		if err != nil {
			return nil, err
		}
		a.backends = append(a.backends, b)
	}
	return a, nil
}

// Run works for the backends until ctx ends and what they took is kept.
func (a *Auditor) Run(ctx context.Context) error {
	g := &errgroup.Group{}
	for _, b := range a.backends {
		g.Go(func() error { return b.run(ctx) })
	}
	return g.Wait()
}

// Counts are the events recorded, and the requests refused because their event was not kept.
func (a *Auditor) Counts() (events, rejected int64) { return a.events.Load(), a.rejected.Load() }

// maxBuffer bounds the buffers that are kept for further events.
const maxBuffer = 64 << 10

// put encodes an event and hands it to the backends.
func (a *Auditor) put(ev *audit.Event, extra, impersonated map[string][]string) bool {
	a.events.Add(1)
	buf := a.buffers.Get().(*[]byte)
	line := appendEvent((*buf)[:0], ev, extra, impersonated)
	ok := true
	for _, b := range a.backends {
		ok = b.put(event{ev, extra, impersonated, line}) && ok
	}
	if cap(line) <= maxBuffer {
		*buf = line
		a.buffers.Put(buf)
	}
	return ok
}
