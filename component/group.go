package component

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Group runs members in the order they were added: each starts when the one before is
// ready, and they stop in reverse. The first error ends the group and is its result.
// A Group is used once, by one goroutine until Run.
type Group struct {
	logger  *slog.Logger
	clock   clock.PassiveClock
	members []*member
	ready   chan struct{}
}

// Member is a Component with its name. Ready overrides the component's own WaitReady.
type Member struct {
	Name      string
	Component Component
	Ready     func(ctx context.Context) error
	// Background members are not waited for before the next one starts.
	Background bool
}

type member struct {
	Member
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// NewGroup makes an empty group.
func NewGroup(logger *slog.Logger) *Group {
	return &Group{logger: logger, clock: clock.RealClock{}, ready: make(chan struct{})}
}

// Add appends a member.
func (g *Group) Add(m Member) {
	g.members = append(g.members, &member{Member: m, done: make(chan struct{})})
}

// WaitReady returns when every member that is waited for is ready.
func (g *Group) WaitReady(ctx context.Context) error {
	select {
	case <-g.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Run starts the members in order and blocks until ctx ends or one of them returns.
// A member that returns nil before it was told to stop ends the group without error
// of its own only if ctx has ended; otherwise that is an error too.
func (g *Group) Run(ctx context.Context) error {
	var (
		once  sync.Once
		first error
	)
	// Members outlive ctx until it is their turn to stop.
	base := context.WithoutCancel(ctx)
	running, stop := context.WithCancel(ctx)
	defer stop()
	fail := func(err error) {
		once.Do(func() { first = err })
		stop()
	}

	started := 0
	allReady := true
	for _, m := range g.members {
		if running.Err() != nil {
			allReady = false
			break
		}
		g.start(base, m, running, fail)
		started++
		if err := g.waitMember(running, m); err != nil {
			if running.Err() == nil {
				fail(fmt.Errorf("starting %s: %w", m.Name, err))
			}
			allReady = false
			break
		}
	}
	if allReady {
		close(g.ready)
		<-running.Done()
	}
	for i := started - 1; i >= 0; i-- {
		m := g.members[i]
		begin := g.clock.Now()
		m.cancel()
		<-m.done
		g.logger.Debug("component stopped", "component", m.Name, "took", g.clock.Since(begin).Round(time.Millisecond))
	}
	// Claim the slot so that no late member error is read while it is written.
	once.Do(func() {
		for i := started - 1; i >= 0; i-- {
			if err := g.members[i].err; err != nil {
				first = err
				return
			}
		}
	})
	return first
}

func (g *Group) start(base context.Context, m *member, running context.Context, fail func(error)) {
	mctx, cancel := context.WithCancel(base)
	m.cancel = cancel
	go func() {
		defer close(m.done)
		err := m.Component.Run(mctx)
		stopped := mctx.Err() != nil
		switch {
		case stopped && (err == nil || errors.Is(err, context.Canceled)):
		case err != nil:
			m.err = fmt.Errorf("running %s: %w", m.Name, err)
		case running.Err() == nil:
			m.err = fmt.Errorf("running %s: it ended without being asked to", m.Name)
		}
		if m.err != nil {
			fail(m.err)
		}
	}()
}

// waitMember returns when m is ready, has ended, or the group is stopping.
func (g *Group) waitMember(running context.Context, m *member) error {
	wait := m.Ready
	if w, ok := m.Component.(Waiter); wait == nil && ok {
		wait = w.WaitReady
	}
	if wait == nil || m.Background {
		return nil
	}
	begin := g.clock.Now()
	wctx, cancel := context.WithCancelCause(running)
	defer cancel(nil)
	go func() {
		select {
		case <-m.done:
			cancel(errors.New("it ended before it was ready"))
		case <-wctx.Done():
		}
	}()
	if err := wait(wctx); err != nil {
		if cause := context.Cause(wctx); cause != nil {
			return cause
		}
		return err
	}
	g.logger.Debug("component ready", "component", m.Name, "took", g.clock.Since(begin).Round(time.Millisecond))
	return nil
}
