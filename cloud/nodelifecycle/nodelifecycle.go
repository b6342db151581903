// Package nodelifecycle takes away Nodes whose machine the provider no longer has, and taints those
// whose machine is shut down. It asks only about nodes whose kubelet is silent.
package nodelifecycle

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	cloudprovider "k8s.io/cloud-provider"
	cloudapi "k8s.io/cloud-provider/api"
	nodehelpers "k8s.io/cloud-provider/node/helpers"

	"github.com/skiff-k8s/skiff/cloud/metrics"
	"github.com/skiff-k8s/skiff/controllers/controller"
)

// Config of a Controller.
type Config struct {
	controller.Config
	Provider cloudprovider.Interface
	// Every is how often all nodes are looked at (--node-monitor-period); 0: 5 s.
	Every time.Duration
	// Workers is how many nodes are looked at at a time; 0: one.
	Workers int
	Metrics *metrics.Metrics
}

// Controller looks at all nodes by turns.
type Controller struct {
	cfg    Config
	nodes  corelisters.NodeLister
	synced cache.InformerSynced
}

// New asks the informers for nodes and starts nothing.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Every <= 0 {
		cfg.Every = 5 * time.Second
	}
	nodes := cfg.Informers.Core().V1().Nodes()
	return &Controller{cfg: cfg, nodes: nodes.Lister(), synced: nodes.Informer().HasSynced}, nil
}

// Run looks at all nodes each period until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	if !controller.WaitSynced(ctx, c.synced) {
		return nil
	}
	ticker := c.cfg.Clock.NewTicker(c.cfg.Every)
	defer ticker.Stop()
	for {
		c.monitor(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

func (c *Controller) monitor(ctx context.Context) {
	start := c.cfg.Clock.Now()
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		c.cfg.Logger.Error("list nodes", "err", err)
		return
	}
	var group errgroup.Group
	group.SetLimit(max(1, c.cfg.Workers))
	for _, n := range nodes {
		group.Go(func() error {
			if err := c.look(ctx, n); err != nil && ctx.Err() == nil {
				// The next period tries again.
				c.cfg.Logger.Warn("look after a node's machine", "node", n.Name, "err", err)
			}
			return nil
		})
	}
	_ = group.Wait() // none fails
	c.cfg.Metrics.Observe(metrics.MonitorNodes, c.cfg.Clock.Since(start).Seconds())
}

func shutdownTaint() *corev1.Taint {
	return &corev1.Taint{Key: cloudapi.TaintNodeShutdown, Effect: corev1.TaintEffectNoSchedule}
}

// look brings one node to what its machine is.
func (c *Controller) look(ctx context.Context, n *corev1.Node) error {
	if ready(n) {
		if err := nodehelpers.RemoveTaintOffNode(c.cfg.Client, n.Name, n, shutdownTaint()); err != nil {
			return fmt.Errorf("take the shutdown taint: %w", err)
		}
		return nil
	}
	exists, err := c.exists(ctx, n)
	if err != nil {
		return fmt.Errorf("ask whether the machine exists: %w", err)
	}
	if !exists {
		return c.remove(ctx, n)
	}
	down, err := c.isDown(ctx, n)
	if err != nil {
		return fmt.Errorf("ask whether the machine is shut down: %w", err)
	}
	if !down {
		return nil
	}
	if err := nodehelpers.AddOrUpdateTaintOnNode(c.cfg.Client, n.Name, shutdownTaint()); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("add the shutdown taint: %w", err)
	}
	return nil
}

func ready(n *corev1.Node) bool {
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			return cond.Status == corev1.ConditionTrue
		}
	}
	return false
}

// remove deletes the Node, unless another of the name has come meanwhile.
func (c *Controller) remove(ctx context.Context, n *corev1.Node) error {
	ref := &corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID}
	c.cfg.Events.Eventf(ref, corev1.EventTypeNormal, "DeletingNode", "Deleting node %s because it does not exist in the cloud provider", n.Name)
	err := c.cfg.Client.CoreV1().Nodes().Delete(ctx, n.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(n.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		c.cfg.Events.Eventf(ref, corev1.EventTypeWarning, "DeletingNodeFailed", "Failed deleting node %s: %v", n.Name, err)
		return fmt.Errorf("delete node: %w", err)
	}
	return nil
}

func (c *Controller) exists(ctx context.Context, n *corev1.Node) (bool, error) {
	if v2, ok := c.cfg.Provider.InstancesV2(); ok {
		exists, err := v2.InstanceExists(ctx, n)
		c.count("instance_exists", found(exists, err))
		return exists, err
	}
	instances, ok := c.cfg.Provider.Instances()
	if !ok {
		return false, errors.New("the provider has no instances")
	}
	id, err := c.providerID(ctx, n)
	if errors.Is(err, cloudprovider.InstanceNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	exists, err := instances.InstanceExistsByProviderID(ctx, id)
	c.count("instance_exists", found(exists, err))
	return exists, err
}

func found(exists bool, err error) error {
	if err == nil && !exists {
		return cloudprovider.InstanceNotFound
	}
	return err
}

func (c *Controller) isDown(ctx context.Context, n *corev1.Node) (bool, error) {
	if v2, ok := c.cfg.Provider.InstancesV2(); ok {
		down, err := v2.InstanceShutdown(ctx, n)
		c.count("instance_shutdown", err)
		return down, err
	}
	instances, ok := c.cfg.Provider.Instances()
	if !ok {
		return false, errors.New("the provider has no instances")
	}
	id, err := c.providerID(ctx, n)
	if errors.Is(err, cloudprovider.InstanceNotFound) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	down, err := instances.InstanceShutdownByProviderID(ctx, id)
	c.count("instance_shutdown", err)
	if errors.Is(err, cloudprovider.NotImplemented) {
		return false, nil
	}
	return down, err
}

// providerID of a node of a provider without InstancesV2: its own, else what the provider says.
func (c *Controller) providerID(ctx context.Context, n *corev1.Node) (string, error) {
	if n.Spec.ProviderID != "" {
		return n.Spec.ProviderID, nil
	}
	id, err := cloudprovider.GetInstanceProviderID(ctx, c.cfg.Provider, types.NodeName(n.Name))
	c.count("instance_metadata", err)
	return id, err
}

func (c *Controller) count(operation string, err error) {
	result := "success"
	switch {
	case errors.Is(err, cloudprovider.NotImplemented):
		result = "not_implemented"
	case errors.Is(err, cloudprovider.InstanceNotFound):
		result = "instance_not_found"
	case errors.Is(err, context.Canceled):
		result = "canceled"
	case err != nil:
		result = "error"
	}
	c.cfg.Metrics.Count(metrics.ProviderCalls, "operation", operation, "result", result)
}
