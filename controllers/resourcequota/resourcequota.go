// Package resourcequota keeps status.used of ResourceQuotas.
//
// Admission charges quotas when objects are created; this controller counts anew what
// there is, which gives back what was deleted and corrects what was charged in vain.
package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/skiff-k8s/skiff/api/quota"
	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

const (
	resync = 5 * time.Minute
	// resyncObjects is for quotas of kinds that are not watched here.
	resyncObjects = 5 * time.Second
	// settle joins the deletions of a moment into one count.
	settle = 200 * time.Millisecond
)

// Controller counts.
type Controller struct {
	cfg    controller.Config
	loop   *controller.Loop[controller.Key]
	quotas corelisters.ResourceQuotaLister
	pods   corelisters.PodLister
	svcs   corelisters.ServiceLister
	claims corelisters.PersistentVolumeClaimLister
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	if cfg.Metadata == nil || cfg.Discovery == nil {
		return nil, errors.New("resourcequota-controller: Metadata and Discovery clients are required")
	}
	core := cfg.Informers.Core().V1()
	c := &Controller{cfg: cfg, quotas: core.ResourceQuotas().Lister(), pods: core.Pods().Lister(), svcs: core.Services().Lister(), claims: core.PersistentVolumeClaims().Lister()}
	c.loop = controller.NewLoop("resourcequota-controller", 5, cfg.Clock, cfg.Logger, c.reconcile)
	return c, errors.Join(
		controller.Watch(c.loop, core.ResourceQuotas().Informer(), controller.Handlers[*corev1.ResourceQuota]{
			Added: func(q *corev1.ResourceQuota) { c.loop.Add(controller.KeyOf(q)) },
			Updated: func(old, q *corev1.ResourceQuota) {
				if !equality.Semantic.DeepEqual(old.Spec, q.Spec) || !equality.Semantic.DeepEqual(q.Spec.Hard, q.Status.Hard) {
					c.loop.Add(controller.KeyOf(q))
				}
			},
		}),
		controller.Watch(c.loop, core.Pods().Informer(), controller.Handlers[*corev1.Pod]{
			Updated: func(old, p *corev1.Pod) {
				if ownership.Ended(p) && !ownership.Ended(old) {
					c.freed(p.Namespace)
				}
			},
			Deleted: func(p *corev1.Pod) { c.freed(p.Namespace) },
		}),
		controller.Watch(c.loop, core.Services().Informer(), controller.Handlers[*corev1.Service]{
			Updated: func(old, s *corev1.Service) {
				if old.Spec.Type != s.Spec.Type || len(old.Spec.Ports) != len(s.Spec.Ports) {
					c.freed(s.Namespace)
				}
			},
			Deleted: func(s *corev1.Service) { c.freed(s.Namespace) },
		}),
		controller.Watch(c.loop, core.PersistentVolumeClaims().Informer(), controller.Handlers[*corev1.PersistentVolumeClaim]{
			Deleted: func(p *corev1.PersistentVolumeClaim) { c.freed(p.Namespace) },
		}),
		controller.Watch(c.loop, core.ConfigMaps().Informer(), controller.Handlers[*corev1.ConfigMap]{
			Deleted: func(o *corev1.ConfigMap) { c.freed(o.Namespace) },
		}),
		controller.Watch(c.loop, core.Secrets().Informer(), controller.Handlers[*corev1.Secret]{
			Deleted: func(o *corev1.Secret) { c.freed(o.Namespace) },
		}),
		controller.Watch(c.loop, cfg.Informers.Apps().V1().ReplicaSets().Informer(), controller.Handlers[metav1.Object]{
			Deleted: func(o metav1.Object) { c.freed(o.GetNamespace()) },
		}),
		controller.Watch(c.loop, core.ReplicationControllers().Informer(), controller.Handlers[metav1.Object]{
			Deleted: func(o metav1.Object) { c.freed(o.GetNamespace()) },
		}),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) freed(namespace string) {
	all, err := c.quotas.ResourceQuotas(namespace).List(labels.Everything())
	if err != nil {
		return
	}
	for _, q := range all {
		c.loop.AddAfter(controller.KeyOf(q), settle)
	}
}

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	q, err := c.quotas.ResourceQuotas(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading ResourceQuota: %w", err)
	}
	used, countErr := c.count(ctx, q)
	next := q.DeepCopy()
	next.Status.Hard = q.Spec.Hard.DeepCopy()
	next.Status.Used = corev1.ResourceList{}
	for n := range q.Spec.Hard {
		if v, ok := used[n]; ok {
			next.Status.Used[n] = v
		} else if v, ok := q.Status.Used[n]; ok {
			next.Status.Used[n] = v // could not be counted: what was known
		}
	}
	if !equality.Semantic.DeepEqual(q.Status, next.Status) {
		if _, err := c.cfg.Client.CoreV1().ResourceQuotas(key.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return 0, errors.Join(countErr, fmt.Errorf("updating status: %w", err))
		}
	}
	for n := range q.Spec.Hard {
		if !watched(n) {
			return resyncObjects, countErr
		}
	}
	return resync, countErr
}

// watched resources are counted anew when one goes.
func watched(n corev1.ResourceName) bool {
	switch n {
	case corev1.ResourceConfigMaps, corev1.ResourceSecrets, corev1.ResourceReplicationControllers, corev1.ResourceQuotas,
		"count/configmaps", "count/secrets", "count/replicationcontrollers", "count/replicasets.apps":
		return true
	}
	one := []corev1.ResourceName{n}
	return len(pods.Counts(one))+len(services.Counts(one))+len(claims.Counts(one)) > 0
}

// count sums up everything that the quota limits.
func (c *Controller) count(ctx context.Context, q *corev1.ResourceQuota) (corev1.ResourceList, error) {
	used := corev1.ResourceList{}
	names, now := quota.Names(q.Spec.Hard), c.cfg.Clock.Now()
	var errs []error
	if counts := pods.Counts(names); len(counts) > 0 {
		list, err := c.pods.Pods(q.Namespace).List(labels.Everything())
		errs = append(errs, err)
		used = sum(used, pods, q, counts, list, now)
	}
	if counts := services.Counts(names); len(counts) > 0 {
		list, err := c.svcs.Services(q.Namespace).List(labels.Everything())
		errs = append(errs, err)
		used = sum(used, services, q, counts, list, now)
	}
	if counts := claims.Counts(names); len(counts) > 0 {
		list, err := c.claims.PersistentVolumeClaims(q.Namespace).List(labels.Everything())
		errs = append(errs, err)
		used = sum(used, claims, q, counts, list, now)
	}
	for _, n := range names {
		if _, counted := used[n]; counted {
			continue
		}
		v, err := c.countObjects(ctx, q.Namespace, n)
		if err != nil {
			errs = append(errs, fmt.Errorf("counting %s: %w", n, err))
			continue
		}
		used[n] = *resource.NewQuantity(v, resource.DecimalSI)
	}
	return used, errors.Join(errs...)
}

// countObjects counts objects of any kind by asking for one and how many more there are.
func (c *Controller) countObjects(ctx context.Context, namespace string, name corev1.ResourceName) (int64, error) {
	plain, _ := strings.CutPrefix(string(name), countPrefix)
	resourceName, group, _ := strings.Cut(plain, ".")
	gvr, err := c.resolve(schema.GroupResource{Group: group, Resource: resourceName})
	if err != nil {
		return 0, err
	}
	list, err := c.cfg.Metadata.Resource(gvr).Namespace(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	n := int64(len(list.Items))
	if list.RemainingItemCount != nil {
		return n + *list.RemainingItemCount, nil
	}
	if list.Continue == "" {
		return n, nil
	}
	all, err := c.cfg.Metadata.Resource(gvr).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, err
	}
	return int64(len(all.Items)), nil
}

func (c *Controller) resolve(gr schema.GroupResource) (schema.GroupVersionResource, error) {
	if gr.Group == "" {
		return gr.WithVersion("v1"), nil
	}
	groups, err := c.cfg.Discovery.ServerGroups()
	if err != nil {
		return schema.GroupVersionResource{}, fmt.Errorf("discovering groups: %w", err)
	}
	i := slices.IndexFunc(groups.Groups, func(g metav1.APIGroup) bool { return g.Name == gr.Group })
	if i < 0 {
		return schema.GroupVersionResource{}, fmt.Errorf("group %s is not served", gr.Group)
	}
	return gr.WithVersion(groups.Groups[i].PreferredVersion.Version), nil
}
