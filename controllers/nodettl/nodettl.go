// Package nodettl tells kubelets, in an annotation of their node, how long they may
// believe a Secret or ConfigMap they have read: the larger the cluster, the longer.
package nodettl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

// steps overlap, so that a cluster at a boundary does not swing between two.
var steps = []struct{ from, to, seconds int }{
	{0, 100, 0}, {90, 500, 15}, {450, 1000, 30}, {900, 2000, 60}, {1800, int(^uint(0) >> 1), 300},
}

// Controller annotates nodes.
type Controller struct {
	cfg   controller.Config
	loop  *controller.Loop[controller.Key]
	nodes corelisters.NodeLister

	mu   sync.Mutex
	step int
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	nodes := cfg.Informers.Core().V1().Nodes()
	c := &Controller{cfg: cfg, nodes: nodes.Lister()}
	c.loop = controller.NewLoop("ttl-controller", 1, cfg.Clock, cfg.Logger, c.reconcile)
	return c, errors.Join(controller.Watch(c.loop, nodes.Informer(), controller.Handlers[*corev1.Node]{
		Added: func(n *corev1.Node) {
			c.loop.Add(controller.KeyOf(n))
			c.count()
		},
		Deleted: func(*corev1.Node) { c.count() },
	}))
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// next moves a step up or down when the number of nodes has left it.
func next(step, nodes int) int {
	for step+1 < len(steps) && nodes > steps[step].to {
		step++
	}
	for step > 0 && nodes < steps[step].from {
		step--
	}
	return step
}

func (c *Controller) count() {
	all, err := c.nodes.List(labels.Everything())
	if err != nil {
		return
	}
	c.mu.Lock()
	was := c.step
	c.step = next(c.step, len(all))
	changed := c.step != was
	c.mu.Unlock()
	if changed {
		for _, n := range all {
			c.loop.Add(controller.KeyOf(n))
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	n, err := c.nodes.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading node: %w", err)
	}
	c.mu.Lock()
	want := strconv.Itoa(steps[c.step].seconds)
	c.mu.Unlock()
	if n.Annotations[corev1.ObjectTTLAnnotationKey] == want {
		return 0, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": n.UID, "annotations": map[string]string{corev1.ObjectTTLAnnotationKey: want}}})
	if err != nil {
		return 0, fmt.Errorf("encoding patch: %w", err)
	}
	if _, err := c.cfg.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("annotating node: %w", err)
	}
	return 0, nil
}
