// Package cloud is the cloud-controller-manager: controllers that keep a cluster and what a provider
// of machines, load balancers and routes has equal, through the interface that Kubernetes publishes
// for providers (k8s.io/cloud-provider).
//
// Owns: which controllers there are, and running them. Any provider of the interface, of this tree
// or not, is one value of Config. Must not: hold a controller's or a provider's logic.
package cloud

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
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/cloud/metrics"
	"github.com/skiff-k8s/skiff/controllers/controller"
)

// Clients are one user's.
type Clients struct {
	Kubernetes kubernetes.Interface
	// REST is for providers that make clients of their own.
	REST *rest.Config
}

// Config of a manager.
type Config struct {
	Provider cloudprovider.Interface
	Clients
	// As returns the clients of a ServiceAccount in kube-system, so that each controller and the
	// provider have rights of their own; nil: all use Clients.
	As func(account string) (Clients, error)
	// Informers are started by the manager.
	Informers informers.SharedInformerFactory
	// Disabled controllers do not run; names as in Table.
	Disabled []string

	// ClusterName is what the provider is told of the cluster; empty: kubernetes.
	ClusterName string
	// Routes to pod CIDRs are made where the provider can, within ClusterCIDRs.
	Routes       bool
	ClusterCIDRs []netip.Prefix

	// Periods; 0: upstream's defaults.
	NodeStatusEvery, NodeMonitorEvery, RoutesEvery time.Duration
	// Workers of the controllers that have several; 0: one.
	ServiceWorkers, NodeWorkers, NodeStatusWorkers, NodeLifecycleWorkers int

	Metrics *metrics.Metrics // nil: counted nowhere
	Clock   clock.WithTickerAndDelayedExecution
	Logger  *slog.Logger
}

// Runner is a provider with work of its own to do while its manager runs.
type Runner interface {
	Run(ctx context.Context) error
}

// Manager runs the controllers.
type Manager struct {
	cfg     Config
	entries []Entry
}

// New checks the configuration and starts nothing.
func New(cfg Config) (*Manager, error) {
	if cfg.Provider == nil || cfg.Kubernetes == nil || cfg.Informers == nil || cfg.Logger == nil {
		return nil, errors.New("cloud: Provider, Clients.Kubernetes, Informers and Logger are required")
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.ClusterName == "" {
		cfg.ClusterName = "kubernetes"
	}
	m := &Manager{cfg: cfg}
	table := Table()
	for _, name := range cfg.Disabled {
		if !slices.ContainsFunc(table, func(e Entry) bool { return e.Name == name }) {
			return nil, fmt.Errorf("cloud: disabled controller %q does not exist", name)
		}
	}
	for _, e := range table {
		if slices.Contains(cfg.Disabled, e.Name) {
			continue
		}
		if why := e.skip(&cfg); why != "" {
			cfg.Logger.Info("controller left out", "controller", e.Name, "why", why)
			continue
		}
		m.entries = append(m.entries, e)
	}
	return m, nil
}

// Run makes and runs the controllers, and what the provider runs, until ctx ends. It runs once. The
// first to fail ends the others.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	defer broadcaster.Shutdown()
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: m.cfg.Kubernetes.CoreV1().Events("")})

	// What a provider starts here ends with the channel; its informers are asked for before they start.
	m.cfg.Provider.Initialize(builder{m.cfg}, ctx.Done())
	if user, ok := m.cfg.Provider.(cloudprovider.InformerUser); ok {
		user.SetInformers(m.cfg.Informers)
	}
	type running struct {
		name string
		run  func(context.Context) error
	}
	var all []running
	for _, e := range m.entries {
		base, err := m.base(e, broadcaster)
		if err != nil {
			return fmt.Errorf("making %s: %w", e.Name, err)
		}
		c, err := e.make(&m.cfg, base)
		if err != nil {
			return fmt.Errorf("making %s: %w", e.Name, err)
		}
		all = append(all, running{e.Name, c.Run})
	}
	if r, ok := m.cfg.Provider.(Runner); ok {
		all = append(all, running{"provider " + m.cfg.Provider.ProviderName(), r.Run})
	}
	defer m.cfg.Informers.Shutdown()
	defer cancel(nil)
	m.cfg.Informers.StartWithContext(ctx)

	var (
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	for _, r := range all {
		wg.Go(func() {
			err := r.run(ctx)
			if err == nil && ctx.Err() == nil {
				err = errors.New("it ended without being asked to")
			}
			if err != nil && !errors.Is(err, context.Canceled) {
				once.Do(func() { first = fmt.Errorf("running %s: %w", r.name, err) })
				cancel(err)
			}
		})
	}
	if len(all) == 0 {
		<-ctx.Done()
	}
	wg.Wait()
	once.Do(func() {})
	return first
}

func (m *Manager) base(e Entry, b record.EventBroadcaster) (controller.Config, error) {
	clients := m.cfg.Clients
	if m.cfg.As != nil {
		var err error
		if clients, err = m.cfg.As(e.Account); err != nil {
			return controller.Config{}, err
		}
	}
	return controller.Config{
		Client:    clients.Kubernetes,
		Informers: m.cfg.Informers,
		Events:    b.NewRecorder(scheme.Scheme, corev1.EventSource{Component: e.Source}),
		Clock:     m.cfg.Clock,
		Logger:    m.cfg.Logger,
	}, nil
}

// builder gives a provider clients, of whichever account it names.
type builder struct{ cfg Config }

func (b builder) clients(name string) (Clients, error) {
	if b.cfg.As == nil {
		return b.cfg.Clients, nil
	}
	return b.cfg.As(name)
}

// Config implements cloudprovider.ControllerClientBuilder.
func (b builder) Config(name string) (*rest.Config, error) {
	c, err := b.clients(name)
	if err != nil {
		return nil, err
	}
	if c.REST == nil {
		return nil, fmt.Errorf("the provider asks for a client configuration as %s, and there is none", name)
	}
	return rest.AddUserAgent(rest.CopyConfig(c.REST), name), nil
}

// Client implements cloudprovider.ControllerClientBuilder.
func (b builder) Client(name string) (kubernetes.Interface, error) {
	c, err := b.clients(name)
	return c.Kubernetes, err
}

// ConfigOrDie implements cloudprovider.ControllerClientBuilder, whose name says what happens.
func (b builder) ConfigOrDie(name string) *rest.Config { return orDie(b.Config(name)) }

// ClientOrDie implements cloudprovider.ControllerClientBuilder.
func (b builder) ClientOrDie(name string) kubernetes.Interface { return orDie(b.Client(name)) }

func orDie[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
