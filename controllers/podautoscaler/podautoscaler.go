// Package podautoscaler keeps the sizes of what HorizontalPodAutoscalers are about, so that
// metrics stay near their targets (autoscaling/v2, all sources and behaviors).
//
// Owns: the scale of targets, and autoscalers' status. Conditions, reasons, messages and
// arithmetic are upstream's, so that either controller can take over from the other. What is
// not written down, the recommendations of the last minutes, a new leader learns anew. Must
// not: measure anything; that is asked of the metrics APIs, and only for autoscalers there are.
package podautoscaler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	autoscalinglisters "k8s.io/client-go/listers/autoscaling/v2"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

// Config of the controller.
type Config struct {
	controller.Config
	Settings Settings // zero: the defaults
}

// Controller reconciles HorizontalPodAutoscalers.
type Controller struct {
	cfg     Config
	loop    *controller.Loop[controller.Key]
	lister  autoscalinglisters.HorizontalPodAutoscalerLister
	pods    corelisters.PodLister
	writes  *controller.Writes[controller.Key]
	targets finder
	metrics reader

	mu        sync.Mutex
	histories map[controller.Key]*history
}

// finder, resizable and reader are what a pass asks of the API beside its caches.
type finder interface {
	find(ctx context.Context, namespace string, ref autoscalingv2.CrossVersionObjectReference) (resizable, error)
}

type resizable interface {
	scale(ctx context.Context) (*autoscalingv1.Scale, error)
	resize(ctx context.Context, s *autoscalingv1.Scale, replicas int32) error
}

type reader interface {
	read(ctx context.Context, a *autoscalingv2.HorizontalPodAutoscaler, pods labels.Selector) []reading
}

// patience is how long all that a pass asks may take.
const patience = 30 * time.Second

// New makes the controller.
func New(cfg Config) (*Controller, error) {
	rest := cfg.Client.AutoscalingV2().RESTClient()
	known := &kinds{client: rest, clock: cfg.Clock, known: map[schema.GroupKind]found{}}
	return newController(cfg, &targets{rest, known}, &sources{rest, known})
}

func newController(cfg Config, t finder, m reader) (*Controller, error) {
	const name = "horizontal-pod-autoscaler-controller"
	if cfg.Settings == (Settings{}) {
		cfg.Settings = DefaultSettings()
	}
	if err := cfg.Settings.Validate(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	autoscalers, pods := cfg.Informers.Autoscaling().V2().HorizontalPodAutoscalers(), cfg.Informers.Core().V1().Pods()
	c := &Controller{cfg: cfg, lister: autoscalers.Lister(), pods: pods.Lister(), targets: t, metrics: m,
		writes: controller.NewWrites[controller.Key](cfg.Clock), histories: map[controller.Key]*history{}}
	c.loop = controller.NewLoop(name, 5, cfg.Clock, cfg.Logger, c.reconcile)
	c.loop.Needs(pods.Informer().HasSynced)
	return c, controller.Watch(c.loop, autoscalers.Informer(), controller.Handlers[*autoscalingv2.HorizontalPodAutoscaler]{
		Added: func(a *autoscalingv2.HorizontalPodAutoscaler) { c.loop.Add(controller.KeyOf(a)) },
		Updated: func(old, a *autoscalingv2.HorizontalPodAutoscaler) {
			if old.Generation != a.Generation || old.UID != a.UID { // its own status comes by the clock
				c.loop.Add(controller.KeyOf(a))
			}
		},
		Deleted: func(a *autoscalingv2.HorizontalPodAutoscaler) { c.loop.Add(controller.KeyOf(a)) },
	})
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	a, err := c.lister.HorizontalPodAutoscalers(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.writes.Forget(key)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.histories, key)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading HorizontalPodAutoscaler: %w", err)
	}
	if c.writes.Behind(key, a) {
		return 0, controller.ErrStale
	}
	if err := c.pass(ctx, key, a); err != nil {
		// Its condition and events say so too. Metrics that fail are asked again at their
		// time and not before: that is what keeps a failing adapter from being flooded.
		c.cfg.Logger.Debug("autoscaling failed", "controller", c.loop.Name, "key", key.String(), "err", err)
	}
	return c.cfg.Settings.SyncPeriod, nil
}

func (c *Controller) pass(ctx context.Context, key controller.Key, a *autoscalingv2.HorizontalPodAutoscaler) error {
	p := newPass(a, c.history(key), c.cfg.Settings, c.cfg.Clock.Now())
	err := c.decide(ctx, key, p)
	if ctx.Err() != nil {
		return ctx.Err() // the controller ends: what failed for that is not to be written down
	}
	for _, e := range p.events {
		c.cfg.Events.Event(a, e.kind, e.reason, e.message)
	}
	return errors.Join(err, c.writeStatus(ctx, key, a, p))
}

func (c *Controller) decide(ctx context.Context, key controller.Key, p *pass) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	ref := p.of.Spec.ScaleTargetRef
	t, err := c.targets.find(ctx, p.of.Namespace, ref)
	if err != nil {
		p.lost(err)
		return fmt.Errorf("finding %s %s: %w", ref.Kind, ref.Name, err)
	}
	scale, err := t.scale(ctx)
	if err != nil {
		p.lost(err)
		return fmt.Errorf("reading the scale of %s %s: %w", ref.Kind, ref.Name, err)
	}
	if ask := p.found(scale); ask {
		err = c.measure(ctx, key, p)
	}
	if p.failed {
		return err
	}
	if !p.rescale {
		p.kept()
		return err
	}
	resizeErr := t.resize(ctx, scale, p.desired)
	p.rescaled(resizeErr)
	if resizeErr != nil {
		return errors.Join(err, fmt.Errorf("rescaling %s %s: %w", ref.Kind, ref.Name, resizeErr))
	}
	c.cfg.Logger.Info("rescaled", "controller", c.loop.Name, "key", key.String(), "from", scale.Spec.Replicas, "to", p.desired, "why", p.why)
	return err
}

// measure asks for what metrics say, and has the pass decide.
func (c *Controller) measure(ctx context.Context, key controller.Key, p *pass) error {
	sel, err := p.selector()
	if err != nil {
		return err
	}
	pods, err := c.pods.Pods(key.Namespace).List(sel)
	if err != nil {
		return p.fail(err)
	}
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	if all := c.claim(key, sel, pods); len(all) > 1 {
		return p.rivals(all)
	}
	return p.weigh(pods, c.metrics.read(ctx, p.of, sel))
}

func (c *Controller) writeStatus(ctx context.Context, key controller.Key, a *autoscalingv2.HorizontalPodAutoscaler, p *pass) error {
	if equality.Semantic.DeepEqual(a.Status, p.status) {
		return nil
	}
	next := a.DeepCopy()
	next.Status = p.status
	written, err := c.cfg.Client.AutoscalingV2().HorizontalPodAutoscalers(a.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		c.cfg.Events.Event(a, corev1.EventTypeWarning, "FailedUpdateStatus", err.Error())
		return fmt.Errorf("updating status: %w", err)
	}
	c.writes.Note(key, written)
	return nil
}

func (c *Controller) history(key controller.Key) *history {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.histories[key]
	if h == nil {
		h = &history{}
		c.histories[key] = h
	}
	return h
}

// claim notes the selector of an autoscaler's target, and returns the first two autoscalers
// that are after the same pods; one alone is itself.
func (c *Controller) claim(key controller.Key, sel labels.Selector, pods []*corev1.Pod) []controller.Key {
	// Pods of one template have the same labels, which are to be compared once.
	kinds := map[string]labels.Set{}
	for _, p := range pods {
		kinds[labels.Set(p.Labels).String()] = p.Labels
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.histories[key].selector = sel
	var out []controller.Key
	for other, h := range c.histories {
		if other.Namespace != key.Namespace || h.selector == nil {
			continue
		}
		for _, set := range kinds {
			if h.selector.Matches(set) {
				out = append(out, other)
				break
			}
		}
	}
	slices.SortFunc(out, func(a, b controller.Key) int { return cmp.Compare(a.Name, b.Name) })
	return out[:min(len(out), 2)]
}
