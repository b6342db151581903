package cluster

import (
	"context"
	"fmt"
	"log/slog"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"

	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/scheduler"
)

// SchedulerConfig is a scheduler and how it reaches the API.
type SchedulerConfig struct {
	Client kubernetes.Interface
	// Informers makes those that it reads; called when it leads.
	Informers func() informers.SharedInformerFactory
	Election  Election
	// Profiles and PercentageOfNodesToScore as in scheduler.Config.
	Profiles                 []scheduler.Profile
	PercentageOfNodesToScore int32
	// Serve is its secure port.
	Serve  ServeConfig
	Logger *slog.Logger
}

// RunScheduler runs a scheduler alone until ctx ends.
func RunScheduler(ctx context.Context, c SchedulerConfig) error {
	s, err := newScheduler(c)
	if err != nil {
		return err
	}
	return runServed(ctx, Scheduler, s, c.Serve, c.Logger)
}

func newScheduler(c SchedulerConfig) (component.Component, error) {
	return c.Election.lead(c.Client, c.Logger, func(ctx context.Context) error {
		shared := c.Informers()
		broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: c.Client.EventsV1()})
		if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
			return fmt.Errorf("record scheduler events: %w", err)
		}
		defer broadcaster.Shutdown()
		s, err := scheduler.New(scheduler.Config{
			Client: c.Client, Informers: shared, Logger: c.Logger,
			Profiles: c.Profiles, PercentageOfNodesToScore: c.PercentageOfNodesToScore,
			Events: broadcaster.NewRecorder(scheme.Scheme, "default-scheduler"),
		})
		if err != nil {
			return err
		}
		return runWith(ctx, shared, s)
	})
}

// runWith runs a component and the informers that it reads.
func runWith(ctx context.Context, shared informers.SharedInformerFactory, c component.Component) error {
	ctx, cancel := context.WithCancel(ctx)
	defer shared.Shutdown()
	defer cancel()
	shared.StartWithContext(ctx)
	return c.Run(ctx)
}
