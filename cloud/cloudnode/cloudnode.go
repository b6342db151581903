// Package cloudnode tells new Nodes what the provider knows of their machine (provider ID, addresses,
// instance type, zone, region), takes the taint from them with which a kubelet of an external
// provider registers, and keeps addresses as the provider has them.
//
// Must not: know any provider.
package cloudnode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	cloudprovider "k8s.io/cloud-provider"
	cloudapi "k8s.io/cloud-provider/api"
	nodehelpers "k8s.io/cloud-provider/node/helpers"
	nodeutil "k8s.io/component-helpers/node/util"

	"github.com/skiff-k8s/skiff/cloud/metrics"
	"github.com/skiff-k8s/skiff/controllers/controller"
)

// Config of a Controller.
type Config struct {
	controller.Config
	Provider cloudprovider.Interface
	// StatusEvery is how often addresses are asked for (--node-status-update-frequency); 0: 5 min.
	StatusEvery time.Duration
	// Workers initialize nodes, StatusWorkers look after addresses; 0: one.
	Workers, StatusWorkers int
	Metrics                *metrics.Metrics
}

// Controller initializes nodes.
type Controller struct {
	cfg   Config
	nodes corelisters.NodeLister
	loop  *controller.Loop[controller.Key]
}

// New asks the informers for nodes and starts nothing.
func New(cfg Config) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.StatusEvery <= 0 {
		cfg.StatusEvery = 5 * time.Minute
	}
	inf := cfg.Informers.Core().V1().Nodes()
	c := &Controller{cfg: cfg, nodes: inf.Lister()}
	c.loop = controller.NewLoop("cloud-node", max(1, cfg.Workers), cfg.Clock, cfg.Logger, c.reconcile)
	add := func(n *corev1.Node) { c.loop.Add(controller.KeyOf(n)) }
	return c, controller.Watch(c.loop, inf.Informer(), controller.Handlers[*corev1.Node]{Added: add, Updated: func(_, n *corev1.Node) { add(n) }})
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { c.followAddresses(ctx) })
	return c.loop.Run(ctx)
}

func (c *Controller) followAddresses(ctx context.Context) {
	if !c.loop.WaitSynced(ctx) {
		return
	}
	ticker := c.cfg.Clock.NewTicker(c.cfg.StatusEvery)
	defer ticker.Stop()
	for {
		nodes, err := c.nodes.List(labels.Everything())
		if err != nil {
			c.cfg.Logger.Error("list nodes", "err", err)
		}
		var group errgroup.Group
		group.SetLimit(max(1, c.cfg.StatusWorkers))
		for _, n := range nodes {
			if tainted(n) {
				continue // not initialized yet
			}
			group.Go(func() error {
				meta, err := c.addresses(ctx, n)
				if err == nil && meta != nil {
					err = c.setAddresses(ctx, n, meta.NodeAddresses)
				}
				if err != nil && ctx.Err() == nil {
					// The next period tries again.
					c.cfg.Logger.Warn("follow a node's addresses", "node", n.Name, "err", err)
				}
				return nil
			})
		}
		_ = group.Wait() // none fails
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
	}
}

func tainted(n *corev1.Node) bool {
	for _, t := range n.Spec.Taints {
		if t.Key == cloudapi.TaintExternalCloudProvider {
			return true
		}
	}
	return false
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	n, err := c.nodes.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("get node %s: %w", key.Name, err)
	}
	if !tainted(n) {
		return 0, c.completeLabels(n)
	}
	return 0, c.initialize(ctx, n)
}

// formerLabels are labels' names before they were stable; their values count for more.
var formerLabels = map[string]string{
	corev1.LabelFailureDomainBetaZone:   corev1.LabelTopologyZone,
	corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
	corev1.LabelInstanceType:            corev1.LabelInstanceTypeStable,
}

// completeLabels makes stable labels equal the former ones.
func (c *Controller) completeLabels(n *corev1.Node) error {
	want := map[string]string{}
	for former, stable := range formerLabels {
		if v, ok := n.Labels[former]; ok && n.Labels[stable] != v {
			want[stable] = v
		} else if _, has := n.Labels[stable]; ok && !has {
			want[stable] = v
		}
	}
	if len(want) > 0 && !nodehelpers.AddOrUpdateLabelsOnNode(c.cfg.Client, want, n) {
		return fmt.Errorf("complete the labels of node %s", n.Name)
	}
	return nil
}

// initialize tells a node what the provider knows, and takes the taint.
func (c *Controller) initialize(ctx context.Context, n *corev1.Node) error {
	meta, err := c.metadata(ctx, n)
	if err != nil {
		return fmt.Errorf("get instance metadata for node %s: %w", n.Name, err)
	}
	if meta == nil {
		c.cfg.Logger.Info("the provider knows nothing of a node, which stays tainted", "node", n.Name)
		return nil
	}
	// An address that the kubelet was given must be one of the machine's, else the taint stays.
	if _, err := preferProvided(n, meta.NodeAddresses); err != nil {
		return fmt.Errorf("provided node ip for node %q is not valid: %w", n.Name, err)
	}
	next := n.DeepCopy()
	apply(next, meta, c.cfg.Logger)
	// The object's version makes this a conflict if it has changed; then the new one is looked at.
	got, err := c.cfg.Client.CoreV1().Nodes().Update(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsConflict(err) {
		return controller.ErrStale
	}
	if err != nil {
		return fmt.Errorf("initialize node %s: %w", n.Name, err)
	}
	age := c.cfg.Clock.Since(n.CreationTimestamp.Time).Seconds()
	c.cfg.Metrics.Observe(metrics.TaintRemovalDelay, age)
	// At once: the periodic look may be minutes away.
	if err := c.setAddresses(ctx, got, meta.NodeAddresses); err != nil {
		c.cfg.Logger.Warn("set a node's addresses", "node", n.Name, "err", err)
	}
	c.cfg.Events.Event(n, corev1.EventTypeNormal, "Synced", "Node synced successfully")
	c.cfg.Metrics.Observe(metrics.InitialNodeSync, c.cfg.Clock.Since(n.CreationTimestamp.Time).Seconds())
	c.cfg.Logger.Info("node initialized", "node", n.Name, "providerID", got.Spec.ProviderID)
	return nil
}

var kubernetesLabel = regexp.MustCompile(`(^|\.)(kubernetes|k8s)\.io/`)

// apply changes a node to what the provider knows of it.
func apply(n *corev1.Node, meta *cloudprovider.InstanceMetadata, log *slog.Logger) {
	if n.Spec.ProviderID == "" {
		n.Spec.ProviderID = meta.ProviderID
	}
	want := map[string]string{}
	for _, l := range []struct{ value, former, stable string }{
		{meta.InstanceType, corev1.LabelInstanceType, corev1.LabelInstanceTypeStable},
		{meta.Zone, corev1.LabelFailureDomainBetaZone, corev1.LabelTopologyZone},
		{meta.Region, corev1.LabelFailureDomainBetaRegion, corev1.LabelTopologyRegion},
	} {
		if l.value != "" {
			want[l.former], want[l.stable] = l.value, l.value
		}
	}
	for k, v := range meta.AdditionalLabels {
		has, ok := n.Labels[k]
		switch {
		case kubernetesLabel.MatchString(k):
			log.Warn("a label of Kubernetes' own is not the provider's to set", "node", n.Name, "label", k)
		case ok && has != v:
			log.Warn("a label that the provider wants is there with another value", "node", n.Name, "label", k)
		case !ok:
			want[k] = v
		}
	}
	if len(want) > 0 {
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		maps.Copy(n.Labels, want)
	}
	kept := []corev1.Taint{}
	for _, t := range n.Spec.Taints {
		if t.Key != cloudapi.TaintExternalCloudProvider {
			kept = append(kept, t)
		}
	}
	n.Spec.Taints = kept
}

// setAddresses makes the addresses that the provider has the node's. None says nothing.
func (c *Controller) setAddresses(_ context.Context, n *corev1.Node, addrs []corev1.NodeAddress) error {
	if len(addrs) == 0 {
		return nil
	}
	want, err := preferProvided(n, withHostname(n, addrs))
	if err != nil {
		return err
	}
	if sameAddresses(n.Status.Addresses, want) {
		return nil
	}
	next := n.DeepCopy()
	next.Status.Addresses = want
	if _, _, err := nodeutil.PatchNodeStatus(c.cfg.Client.CoreV1(), types.NodeName(n.Name), n, next); err != nil {
		return fmt.Errorf("patch addresses of node %s: %w", n.Name, err)
	}
	return nil
}

// withHostname keeps the kubelet's host name if the provider has none.
func withHostname(n *corev1.Node, addrs []corev1.NodeAddress) []corev1.NodeAddress {
	for _, a := range addrs {
		if a.Type == corev1.NodeHostName {
			return addrs
		}
	}
	out := append([]corev1.NodeAddress{}, addrs...)
	for _, a := range n.Status.Addresses {
		if a.Type == corev1.NodeHostName {
			out = append(out, a)
		}
	}
	return out
}

// preferProvided puts the addresses that the kubelet was given (--node-ip) in the place of others of their type.
func preferProvided(n *corev1.Node, addrs []corev1.NodeAddress) ([]corev1.NodeAddress, error) {
	provided, ok := n.Annotations[cloudapi.AnnotationAlphaProvidedIPAddr]
	if !ok {
		return addrs, nil
	}
	return nodehelpers.GetNodeAddressesFromNodeIP(provided, addrs)
}

// sameAddresses compares as upstream does: by the last address of each type, and by number.
func sameAddresses(a, b []corev1.NodeAddress) bool {
	if len(a) != len(b) {
		return false
	}
	last := map[corev1.NodeAddressType]string{}
	for _, x := range a {
		last[x.Type] = x.Address
	}
	for _, x := range b {
		if last[x.Type] != x.Address {
			return false
		}
	}
	return true
}

var errNoInstances = errors.New("the provider has no instances")
