package cluster

import (
	"context"

	"k8s.io/client-go/informers"

	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/controllers"
)

// ControllersConfig is the controllers and how they reach the API.
type ControllersConfig struct {
	controllers.Config
	// NewInformers makes those that they read; called when they lead.
	NewInformers func() informers.SharedInformerFactory
	Election     Election
	// Serve is their secure port.
	Serve ServeConfig
}

// RunControllers runs the controllers alone until ctx ends.
func RunControllers(ctx context.Context, c ControllersConfig) error {
	m, err := newControllers(c)
	if err != nil {
		return err
	}
	return runServed(ctx, ControllerManager, m, c.Serve, c.Logger)
}

func newControllers(c ControllersConfig) (component.Component, error) {
	return c.Election.lead(c.Kubernetes, c.Logger, func(ctx context.Context) error {
		cfg := c.Config
		cfg.Informers = c.NewInformers()
		m, err := controllers.New(cfg)
		if err != nil {
			return err
		}
		return m.Run(ctx)
	})
}
