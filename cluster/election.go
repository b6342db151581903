package cluster

import (
	"context"
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
}

// lead runs f while this process holds the Lease.
func (e Election) lead(client kubernetes.Interface, log *slog.Logger, f func(context.Context) error) (component.Component, error) {
	if e.Off {
		return component.Func(f), nil
	}
	return leader.New(leader.Config{
		Client: client, Namespace: e.Namespace, Name: e.Name, Identity: e.Identity,
		LeaseDuration: e.LeaseDuration, RenewDeadline: e.RenewDeadline, RetryPeriod: e.RetryPeriod,
		Logger: log, Run: f,
	})
}

// election of a component of the cluster on this host. The identity is the cluster's and
// node's: a control plane that was killed takes its own Lease up again at once, however long it
// lasts. The API server is in the same process: what keeps a renewal from it for long is a
// starved machine, and a process that ended for that would make matters worse.
func (c *Config) election(name string) Election {
	return Election{
		Name: name, Identity: c.NodeName + "_" + c.ID,
		LeaseDuration: time.Minute, RenewDeadline: 45 * time.Second, RetryPeriod: 2 * time.Second,
	}
}
