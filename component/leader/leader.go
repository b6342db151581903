// Package leader runs a component while this process holds a Lease.
//
// Owns: acquiring, renewing and releasing the Lease on client-go's leaderelection with
// upstream's durations, so that an upstream process of the same name takes turns with
// ours. Must not: be taken for fencing. Two leaders can overlap for a moment, so every
// write of a leader carries a uid or resourceVersion precondition where it matters.
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Upstream's defaults of --leader-elect-lease-duration and its siblings.
const (
	LeaseDuration = 15 * time.Second
	RenewDeadline = 10 * time.Second
	RetryPeriod   = 2 * time.Second
)

// ErrLost says that another process may lead now; the caller should exit.
var ErrLost = errors.New("leader lease lost")

// Config of an election.
type Config struct {
	Client kubernetes.Interface
	// Name of the Lease ("kube-scheduler", "kube-controller-manager").
	Name string
	// Namespace of the Lease; kube-system if empty.
	Namespace string
	// Identity must differ between processes, also on one host.
	Identity string
	// LeaseDuration, RenewDeadline and RetryPeriod; 0: the defaults.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration

	Logger *slog.Logger
	// Run is called at most once, when elected. Its context ends when the lease is lost.
	Run func(ctx context.Context) error
}

// Elected is a component that runs while its process leads. It is run once.
type Elected struct {
	cfg     Config
	elector *leaderelection.LeaderElector
	result  chan error
	stop    chan struct{} // closed when what we lead must stop

	mu      sync.Mutex
	leading bool
	closed  bool
}

// New checks the configuration; nothing runs yet.
func New(cfg Config) (*Elected, error) {
	if cfg.Name == "" || cfg.Identity == "" || cfg.Client == nil || cfg.Run == nil {
		return nil, errors.New("leader election: Client, Name, Identity and Run are required")
	}
	if cfg.Namespace == "" {
		cfg.Namespace = metav1.NamespaceSystem
	}
	for _, d := range []struct {
		value    *time.Duration
		standard time.Duration
	}{{&cfg.LeaseDuration, LeaseDuration}, {&cfg.RenewDeadline, RenewDeadline}, {&cfg.RetryPeriod, RetryPeriod}} {
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	e := &Elected{cfg: cfg, result: make(chan error, 1), stop: make(chan struct{})}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: &resourcelock.LeaseLock{
			LeaseMeta:  metav1.ObjectMeta{Namespace: cfg.Namespace, Name: cfg.Name},
			Client:     cfg.Client.CoordinationV1(),
			LockConfig: resourcelock.ResourceLockConfig{Identity: cfg.Identity},
		},
		LeaseDuration:   cfg.LeaseDuration,
		RenewDeadline:   cfg.RenewDeadline,
		RetryPeriod:     cfg.RetryPeriod,
		ReleaseOnCancel: true,
		Name:            cfg.Name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: e.lead,
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("leader election %s: %w", cfg.Name, err)
	}
	e.elector = elector
	return e, nil
}

// lead runs in a goroutine of the elector's; ctx ends when the lease is lost.
func (e *Elected) lead(ctx context.Context) {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return
	}
	e.leading = true
	e.mu.Unlock()

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-e.stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	e.cfg.Logger.Info("leading", "lease", e.cfg.Name, "identity", e.cfg.Identity)
	e.result <- e.cfg.Run(ctx)
}

// IsLeader reports whether this process holds the lease as far as it knows.
func (e *Elected) IsLeader() bool { return e.elector.IsLeader() }

// Run waits to be elected, runs and returns when what it ran has stopped: with that
// one's error, ErrLost when the lease was lost, or nil when ctx ended. The lease is
// given up only after what it ran has stopped.
func (e *Elected) Run(ctx context.Context) error {
	ectx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	electorDone := make(chan struct{})
	go func() {
		defer close(electorDone)
		e.elector.Run(ectx)
	}()
	select {
	case err := <-e.result: // what we lead has ended by itself
		cancel()
		<-electorDone
		return err
	case <-electorDone: // nobody cancelled it, so it led and lost
		err := <-e.result
		return errors.Join(ErrLost, err)
	case <-ctx.Done():
	}

	e.mu.Lock()
	leading := e.leading
	e.closed = true
	e.mu.Unlock()
	close(e.stop)
	var err error
	if leading {
		err = <-e.result
	}
	cancel()
	<-electorDone
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}
