// Package controller is what every controller is made of: its configuration, a queue of
// keys and the loop that reconciles them, and typed informer handlers.
//
// A controller is a pure function from observed state to actions and a thin Loop around
// it. Objects from informers are shared with the API server's cache and are never
// changed: DeepCopy first. Must not: know any particular controller.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
)

// Controller runs until its context ends.
type Controller interface {
	Run(ctx context.Context) error
}

// Config is what the composer gives to every controller.
type Config struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	// Metadata and Discovery serve those that handle kinds unknown at build time.
	Metadata  metadata.Interface
	Discovery discovery.DiscoveryInterface
	Events    record.EventRecorder
	Clock     clock.WithTickerAndDelayedExecution
	Logger    *slog.Logger
}

// Validate names what is missing of the parts that all controllers need.
func (c *Config) Validate() error {
	var missing []error
	need := func(ok bool, name string) {
		if !ok {
			missing = append(missing, fmt.Errorf("controller config: %s is required", name))
		}
	}
	need(c.Client != nil, "Client")
	need(c.Informers != nil, "Informers")
	need(c.Events != nil, "Events")
	need(c.Clock != nil, "Clock")
	need(c.Logger != nil, "Logger")
	return errors.Join(missing...)
}
