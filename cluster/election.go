package cluster

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/component/leader"
)

// Election is which Lease a component must hold to be at work.
type Election struct {
	// Off: the component works without a Lease.
	Off             bool
	Namespace, Name string
	// Identity must differ between processes.
	Identity string
	// Durations; 0: upstream's defaults.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration
	// Again: a component that has lost its Lease competes for it again. Upstream's processes
	// end then, which would here be the end of the API server beside it.
	Again bool
}

// lead runs f while this process holds the Lease; each time anew, with Again.
func (e Election) lead(client kubernetes.Interface, log *slog.Logger, f func(context.Context) error) (component.Component, error) {
	if e.Off {
		return component.Func(f), nil
	}
	candidate := func() (*leader.Elected, error) {
		return leader.New(leader.Config{
			Client: client, Namespace: e.Namespace, Name: e.Name, Identity: e.Identity,
			LeaseDuration: e.LeaseDuration, RenewDeadline: e.RenewDeadline, RetryPeriod: e.RetryPeriod,
			Logger: log, Run: f,
		})
	}
	elected, err := candidate()
	if err != nil || !e.Again {
		return elected, err
	}
	return component.Func(func(ctx context.Context) error {
		for {
			err := elected.Run(ctx)
			if !errors.Is(err, leader.ErrLost) || ctx.Err() != nil {
				return err
			}
			log.Warn("competing for the lease again", "lease", e.Name, "err", err)
			if elected, err = candidate(); err != nil {
				return err
			}
		}
	}), nil
}

// election of a component of the cluster on this host. The identity is the cluster's and
// node's: a control plane that was killed takes its own Lease up again at once.
func (c *Config) election(name string) Election {
	return Election{Name: name, Identity: c.NodeName + "_" + c.ID, Again: true}
}
