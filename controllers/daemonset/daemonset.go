// Package daemonset runs a pod of each DaemonSet on every node that it is for.
//
// Owns: pods and ControllerRevisions of DaemonSets, and their status. Which node a pod is
// for is written into its affinity; the scheduler binds it.
package daemonset

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	appslisters "k8s.io/client-go/listers/apps/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/expectations"
	"github.com/skiff-k8s/skiff/controllers/history"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

const (
	burst = 250
	// Failed pods of a node are replaced after a second, then two, four … 15 minutes.
	minRetry = time.Second
	maxRetry = 15 * time.Minute

	templateGeneration = "pod-template-generation"
)

var gvk = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

// Controller reconciles DaemonSets.
type Controller struct {
	cfg     controller.Config
	loop    *controller.Loop[controller.Key]
	sets    appslisters.DaemonSetLister
	nodes   corelisters.NodeLister
	pods    ownership.Index[*corev1.Pod]
	history history.Store
	control ownership.Pods
	writes  *controller.Writes[controller.Key]
	expect  *expectations.Set[controller.Key]

	mu      sync.Mutex
	retries map[retryKey]retry
}

type retryKey struct {
	set  types.UID
	node string
}

type retry struct {
	wait  time.Duration
	until time.Time
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	const name = "daemonset-controller"
	apps, core := cfg.Informers.Apps().V1(), cfg.Informers.Core().V1()
	c := &Controller{
		cfg: cfg, sets: apps.DaemonSets().Lister(), nodes: core.Nodes().Lister(),
		control: ownership.Pods{Client: cfg.Client, Events: cfg.Events}, writes: controller.NewWrites[controller.Key](cfg.Clock),
		expect:  expectations.New[controller.Key](cfg.Clock),
		retries: map[retryKey]retry{},
	}
	c.loop = controller.NewLoop(name, 2, cfg.Clock, cfg.Logger, c.reconcile)
	var err1, err2 error
	c.pods, err1 = ownership.NewIndex[*corev1.Pod](core.Pods().Informer())
	revisions, err2 := ownership.NewIndex[*appsv1.ControllerRevision](apps.ControllerRevisions().Informer())
	c.history = history.Store{Client: cfg.Client, Index: revisions}
	return c, errors.Join(err1, err2,
		controller.Watch(c.loop, apps.DaemonSets().Informer(), controller.Enqueue[*appsv1.DaemonSet](c.loop)),
		controller.Watch(c.loop, apps.ControllerRevisions().Informer(), controller.OnEach(func(r *appsv1.ControllerRevision) {
			if key, ok := ownerOf(r); ok {
				c.loop.Add(key)
			}
		})),
		controller.Watch(c.loop, core.Nodes().Informer(), controller.Handlers[*corev1.Node]{
			Added: c.nodeChanged,
			Updated: func(old, n *corev1.Node) {
				if !equality.Semantic.DeepEqual(old.Labels, n.Labels) || !equality.Semantic.DeepEqual(old.Spec.Taints, n.Spec.Taints) {
					c.nodeChanged(n)
				}
			},
			Deleted: c.nodeChanged,
		}),
		controller.Watch(c.loop, core.Pods().Informer(), controller.Handlers[*corev1.Pod]{
			Added: func(p *corev1.Pod) {
				if key, ok := ownerOf(p); ok {
					if p.DeletionTimestamp != nil {
						c.expect.Deleted(key, p.UID)
					} else {
						c.expect.Created(key)
					}
					c.loop.Add(key)
				} else {
					c.orphan(p)
				}
			},
			Updated: func(old, p *corev1.Pod) {
				if was, ok := ownerOf(old); ok {
					c.loop.Add(was)
				}
				if key, ok := ownerOf(p); ok {
					if p.DeletionTimestamp != nil {
						c.expect.Deleted(key, p.UID)
					}
					c.loop.Add(key)
				} else if !equality.Semantic.DeepEqual(old.Labels, p.Labels) || len(old.OwnerReferences) != len(p.OwnerReferences) {
					c.orphan(p)
				}
			},
			Deleted: func(p *corev1.Pod) {
				if key, ok := ownerOf(p); ok {
					c.expect.Deleted(key, p.UID)
					c.loop.Add(key)
				}
			},
		}),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func ownerOf(o metav1.Object) (controller.Key, bool) {
	ref := metav1.GetControllerOfNoCopy(o)
	if ref == nil || ref.Kind != gvk.Kind || ref.APIVersion != gvk.GroupVersion().String() {
		return controller.Key{}, false
	}
	return controller.Key{Namespace: o.GetNamespace(), Name: ref.Name}, true
}

func (c *Controller) each(namespace string, f func(*appsv1.DaemonSet)) {
	all, err := c.sets.DaemonSets(namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, s := range all {
		f(s)
	}
}

func (c *Controller) nodeChanged(*corev1.Node) {
	c.each(metav1.NamespaceAll, func(s *appsv1.DaemonSet) { c.loop.Add(controller.KeyOf(s)) })
}

func (c *Controller) orphan(p *corev1.Pod) {
	if metav1.GetControllerOfNoCopy(p) != nil || len(p.Labels) == 0 || p.DeletionTimestamp != nil {
		return
	}
	c.each(p.Namespace, func(s *appsv1.DaemonSet) {
		if sel, err := metav1.LabelSelectorAsSelector(s.Spec.Selector); err == nil && !sel.Empty() && sel.Matches(labels.Set(p.Labels)) {
			c.loop.Add(controller.KeyOf(s))
		}
	})
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	set, err := c.sets.DaemonSets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		c.expect.Forget(key)
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading DaemonSet: %w", err)
	}
	if c.writes.Behind(key, set) {
		return 0, nil
	}
	if set.Spec.Selector == nil || equality.Semantic.DeepEqual(*set.Spec.Selector, metav1.LabelSelector{}) {
		c.cfg.Events.Event(set, corev1.EventTypeWarning, "SelectingAll", "This daemon set is selecting all pods. A non-empty selector is required.")
		return 0, nil
	}
	if set.DeletionTimestamp != nil {
		return 0, nil // its pods are the garbage collector's
	}
	sel, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return 0, fmt.Errorf("spec.selector: %w", err)
	}
	live := func(ctx context.Context) (metav1.Object, error) {
		return c.cfg.Client.AppsV1().DaemonSets(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	}
	revisions, err := c.history.List(ctx, set, gvk, sel, live)
	if err != nil {
		return 0, err
	}
	current, err := c.revision(ctx, set, revisions)
	if err != nil || current == nil {
		return 0, err
	}
	met := c.expect.Met(key)
	claim := ownership.Claim[*corev1.Pod]{Owner: set, Kind: gvk, Selector: sel, Live: live, Patch: c.control.Patch}
	pods, err := claim.All(ctx, append(c.pods.OwnedBy(set.UID), c.pods.Orphans(set.Namespace)...))
	if err != nil {
		return 0, err
	}
	s := state{set: set, pods: pods, hash: current.Labels[appsv1.ControllerRevisionHashLabelKey], now: c.cfg.Clock.Now(),
		retry: func(node string) time.Duration { return c.retryIn(set.UID, node) }}
	if s.nodes, err = c.nodes.List(labels.Everything()); err != nil {
		return 0, fmt.Errorf("listing nodes: %w", err)
	}
	slices.SortFunc(s.nodes, func(a, b *corev1.Node) int { return strings.Compare(a.Name, b.Name) })
	var p plan
	var actErr error
	if met {
		p = decide(s)
		actErr = c.act(ctx, key, s, p)
	}
	status, again := statusOf(s)
	if p.again > 0 && (again == 0 || p.again < again) {
		again = p.again
	}
	if !equality.Semantic.DeepEqual(set.Status, status) {
		next := set.DeepCopy()
		next.Status = status
		written, err := c.cfg.Client.AppsV1().DaemonSets(key.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, errors.Join(actErr, fmt.Errorf("updating status: %w", err))
		}
		if err == nil {
			c.writes.Note(key, written)
		}
	}
	return again, errors.Join(actErr, c.truncate(ctx, set, s, revisions, current))
}

// revision finds or makes the ControllerRevision of the set's template; nil after a
// collision, which the set's status then counts.
func (c *Controller) revision(ctx context.Context, set *appsv1.DaemonSet, all []*appsv1.ControllerRevision) (*appsv1.ControllerRevision, error) {
	data, err := history.Data(&set.Spec.Template)
	if err != nil {
		return nil, err
	}
	hash := ownership.TemplateHash(&set.Spec.Template, set.Status.CollisionCount)
	l := map[string]string{}
	for k, v := range set.Spec.Template.Labels {
		l[k] = v
	}
	l[appsv1.ControllerRevisionHashLabelKey] = hash
	want := history.New(set, gvk, set.Name+"-"+hash, l, data, history.Next(all))
	r, err := c.history.Ensure(ctx, all, want)
	if errors.Is(err, history.ErrCollision) {
		next := set.DeepCopy()
		next.Status.CollisionCount = ptr.To(ptr.Deref(set.Status.CollisionCount, 0) + 1)
		_, err := c.cfg.Client.AppsV1().DaemonSets(set.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
		return nil, err
	}
	return r, err
}

func (c *Controller) truncate(ctx context.Context, set *appsv1.DaemonSet, s state, all []*appsv1.ControllerRevision, current *appsv1.ControllerRevision) error {
	live := map[string]bool{current.Name: true}
	for _, r := range all {
		for _, p := range s.pods {
			if h := p.Labels[appsv1.ControllerRevisionHashLabelKey]; h != "" && h == r.Labels[appsv1.ControllerRevisionHashLabelKey] {
				live[r.Name] = true
			}
		}
	}
	return c.history.Truncate(ctx, all, live, int(ptr.Deref(set.Spec.RevisionHistoryLimit, 10)))
}

func (c *Controller) retryIn(set types.UID, node string) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, c.retries[retryKey{set, node}].until.Sub(c.cfg.Clock.Now()))
}

func (c *Controller) act(ctx context.Context, key controller.Key, s state, p plan) error {
	c.mu.Lock()
	for _, n := range p.failed {
		k := retryKey{s.set.UID, n}
		r := c.retries[k]
		if s.now.Sub(r.until) > 2*maxRetry {
			r.wait = 0
		}
		r.wait = min(max(minRetry, 2*r.wait), maxRetry)
		r.until = s.now.Add(r.wait)
		c.retries[k] = r
	}
	c.mu.Unlock()
	for _, e := range p.events {
		c.cfg.Events.Event(s.set, e.kind, e.reason, e.message)
	}
	create := p.create[:min(len(p.create), burst)]
	remove := p.remove[:min(len(p.remove), burst)]
	uids := make([]types.UID, len(remove))
	for i, pod := range remove {
		uids[i] = pod.UID
	}
	if len(create) > 0 {
		c.expect.Creations(key, len(create))
	}
	if len(uids) > 0 {
		c.expect.Deletions(key, uids...)
	}
	made, err1 := ownership.SlowStart(len(create), func(i int) error {
		_, err := c.control.Create(ctx, newPod(s.set, create[i], s.hash), s.set)
		return err
	})
	for range len(create) - made {
		c.expect.Created(key)
	}
	if apierrors.HasStatusCause(err1, corev1.NamespaceTerminatingCause) {
		err1 = nil
	}
	_, err2 := ownership.Parallel(len(remove), func(i int) error {
		err := c.control.Delete(ctx, remove[i], s.set)
		if err != nil {
			c.expect.Deleted(key, remove[i].UID)
		}
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
	return errors.Join(err1, err2)
}

// newPod makes the pod of a node.
func newPod(set *appsv1.DaemonSet, node, hash string) *corev1.Pod {
	pod := ownership.NewPod(&set.Spec.Template, set.Namespace, set.Name, metav1.NewControllerRef(set, gvk))
	if pod.Labels == nil {
		pod.Labels = map[string]string{}
	}
	pod.Labels[appsv1.ControllerRevisionHashLabelKey] = hash
	if g, err := strconv.ParseInt(set.Annotations[appsv1.DeprecatedTemplateGeneration], 10, 64); err == nil {
		pod.Labels[templateGeneration] = strconv.FormatInt(g, 10)
	}
	pod.Spec.Tolerations = withTolerations(pod.Spec.Tolerations, pod.Spec.HostNetwork)
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	// Whether the node has what the template asks for was looked at; what remains is the name.
	pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchFields: []corev1.NodeSelectorRequirement{{Key: metadataName, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
	}}}
	return pod
}
