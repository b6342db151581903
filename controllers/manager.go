package controllers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/csr"
	"github.com/skiff-k8s/skiff/controllers/podautoscaler"
)

// Clients are one user's.
type Clients struct {
	Kubernetes kubernetes.Interface
	Metadata   metadata.Interface
}

// Config of a manager.
type Config struct {
	Clients
	// As returns the clients of a ServiceAccount in kube-system, so that each controller
	// has its own rights; nil: all use Clients.
	As func(account string) Clients
	// Informers are started by the manager; handlers are added when it runs.
	Informers informers.SharedInformerFactory
	Discovery discovery.DiscoveryInterface

	// Disabled controllers do not run; names as in Table.
	Disabled []string

	ClusterCIDRs []netip.Prefix // pod network, one per IP family
	NodeMasks    []int
	RootCA       []byte // PEM, published as kube-root-ca.crt
	// ClientCA signs client certificates (of kubelets and users), ServingCA kubelets'
	// serving certificates. Without either the signing controller does not run.
	ClientCA, ServingCA csr.CA
	SigningDuration     time.Duration // 0: a year
	// NodeGrace is how long a kubelet may be silent (--node-monitor-grace-period); 0: 50 s.
	NodeGrace time.Duration
	// Autoscaling are the settings of horizontal pod autoscaling; zero: upstream's defaults.
	Autoscaling podautoscaler.Settings

	Clock  clock.WithTickerAndDelayedExecution
	Logger *slog.Logger
}

// Manager runs the controllers.
type Manager struct {
	cfg     Config
	entries []Entry
	ready   chan struct{}
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Manager, error) {
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Kubernetes == nil || cfg.Informers == nil || cfg.Logger == nil {
		return nil, errors.New("controllers: Clients.Kubernetes, Informers and Logger are required")
	}
	m := &Manager{cfg: cfg, ready: make(chan struct{})}
	table := Table()
	for _, name := range cfg.Disabled {
		if !slices.ContainsFunc(table, func(e Entry) bool { return e.Name == name }) {
			return nil, fmt.Errorf("controllers: disabled controller %q does not exist", name)
		}
	}
	for _, e := range table {
		if slices.Contains(cfg.Disabled, e.Name) {
			continue
		}
		if e.skip != nil {
			if why := e.skip(&cfg); why != "" {
				cfg.Logger.Info("controller left out", "controller", e.Name, "why", why)
				continue
			}
		}
		m.entries = append(m.entries, e)
	}
	return m, nil
}

// WaitReady returns when all controllers run.
func (m *Manager) WaitReady(ctx context.Context) error {
	select {
	case <-m.ready:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Run makes and runs all controllers until ctx ends. It runs once: informers cannot be
// handed back. The first controller to fail ends the others.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: m.cfg.Kubernetes.CoreV1().Events("")})

	running := make([]controller.Controller, len(m.entries))
	for i, e := range m.entries {
		c, err := e.make(&m.cfg, m.base(e, broadcaster))
		if err != nil {
			return fmt.Errorf("making %s: %w", e.Name, err)
		}
		running[i] = c
	}
	defer m.cfg.Informers.Shutdown()
	defer cancel(nil)
	m.cfg.Informers.StartWithContext(ctx)

	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	for i, c := range running {
		name := m.entries[i].Name
		wg.Go(func() {
			err := c.Run(ctx)
			if err == nil && ctx.Err() == nil {
				err = errors.New("it ended without being asked to")
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				once.Do(func() { first = fmt.Errorf("running %s: %w", name, err) })
				cancel(err)
			}
		})
	}
	close(m.ready)
	wg.Wait()
	once.Do(func() {})
	return first
}

func (m *Manager) base(e Entry, b record.EventBroadcaster) controller.Config {
	clients := m.cfg.Clients
	if m.cfg.As != nil {
		clients = m.cfg.As(e.Account)
	}
	return controller.Config{
		Client:    clients.Kubernetes,
		Metadata:  clients.Metadata,
		Informers: m.cfg.Informers,
		Discovery: m.cfg.Discovery,
		Events:    b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: e.Account}),
		Clock:     m.cfg.Clock,
		Logger:    m.cfg.Logger,
	}
}
