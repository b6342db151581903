package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/api/quota"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

var resourceQuotas = schema.GroupResource{Resource: "resourcequotas"}

// resourceQuota charges what a write uses to the namespace's quotas before it happens, by
// compare-and-swap of their status, so that several API servers together never exceed
// them. What was charged for writes that failed, or is freed by deletes, the resource quota
// controller gives back. It runs last: only writes that nothing else refuses are charged.
type resourceQuota struct {
	validating
	caches lookup.Caches
	clock  clock.PassiveClock

	mu    sync.Mutex
	locks map[string]*namespaceLock
}

// namespaceLock lets the writes of one namespace charge one after another: they would only
// conflict.
type namespaceLock struct {
	sync.Mutex
	users int
}

func newResourceQuota(caches lookup.Caches, c clock.PassiveClock) *resourceQuota {
	return &resourceQuota{caches: caches, clock: c, locks: map[string]*namespaceLock{}}
}

func (r *resourceQuota) lock(namespace string) (unlock func()) {
	r.mu.Lock()
	l := r.locks[namespace]
	if l == nil {
		l = &namespaceLock{}
		r.locks[namespace] = l
	}
	l.users++
	r.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		r.mu.Lock()
		defer r.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(r.locks, namespace)
		}
	}
}

// ignored are resources that no quota counts: those that are not stored, and events.
func ignored(gr schema.GroupResource) bool {
	switch gr.Group {
	case "authentication.k8s.io", "authorization.k8s.io", "events.k8s.io":
		return true
	}
	return gr.Group == "" && (gr.Resource == "bindings" || gr.Resource == "events")
}

func (r *resourceQuota) Validate(ctx context.Context, a *seams.Attributes) error {
	gr := a.Resource.GroupResource()
	if a.Namespace == "" || a.Object == nil || ignored(gr) || gr == namespaces {
		return nil
	}
	kind := quota.For(gr)
	if !charges(kind, a) {
		return nil
	}
	all, err := lookup.CachedList[*corev1.ResourceQuota](ctx, r.caches, resourceQuotas, a.Namespace)
	if err != nil || len(all) == 0 {
		return err
	}
	defer r.lock(a.Namespace)()
	c := &charge{kind: kind, a: a, now: r.clock.Now()}
	// All must agree before any is charged.
	var due []*corev1.ResourceQuota
	for _, q := range all {
		next, err := c.to(q)
		if err != nil && !r.stale(ctx, q) {
			return err
		}
		if next != nil || err != nil {
			due = append(due, q)
		}
	}
	for _, q := range due {
		if err := r.update(ctx, q, c); err != nil {
			return err
		}
	}
	return nil
}

// stale says whether the cache is behind the store, which then has the last word.
func (r *resourceQuota) stale(ctx context.Context, q *corev1.ResourceQuota) bool {
	fresh, err := lookup.Fresh[*corev1.ResourceQuota](ctx, r.caches, resourceQuotas, q.Namespace, q.Name)
	return err == nil && fresh.ResourceVersion != q.ResourceVersion
}

func (r *resourceQuota) update(ctx context.Context, q *corev1.ResourceQuota, c *charge) error {
	if c.a.DryRun {
		fresh, err := lookup.Fresh[*corev1.ResourceQuota](ctx, r.caches, resourceQuotas, q.Namespace, q.Name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil {
			_, err = c.to(fresh)
		}
		return err
	}
	objects, err := lookup.Resource(r.caches, resourceQuotas)
	if err != nil {
		return err
	}
	_, err = objects.Update(ctx, q.Namespace, q.Name, false, cacher.Preconditions{},
		func(current cacher.Object) (runtime.Object, time.Duration, error) {
			next, err := c.to(current.Runtime().(*corev1.ResourceQuota))
			if err == nil && next == nil {
				err = cacher.ErrNoChange
			}
			return next, 0, err
		})
	if apierrors.IsNotFound(err) {
		return nil // a quota that is gone limits nothing
	}
	return err
}

// charges says whether a write may use more than before.
func charges(k *quota.Kind, a *seams.Attributes) bool {
	switch {
	case a.Operation == seams.Create:
		return a.Subresource == ""
	case a.Operation != seams.Update:
		return false
	case k.Resource == pods:
		if a.Subresource == "resize" {
			return true
		}
		pod, ok := a.Object.(*corev1.Pod)
		old, okOld := a.OldObject.(*corev1.Pod)
		return a.Subresource == "" && ok && okOld && quota.ChangesScope(pod, old)
	}
	return k.Updates && a.Subresource == ""
}

// charge is one write's claim on quotas.
type charge struct {
	kind *quota.Kind
	a    *seams.Attributes
	now  time.Time
}

// to returns the quota charged with the write, nil if it is not, or why it cannot be.
func (c *charge) to(q *corev1.ResourceQuota) (*corev1.ResourceQuota, error) {
	if !c.kind.Matches(q, c.a.Object) {
		return nil, nil
	}
	names := c.kind.Counts(quota.Names(q.Status.Hard))
	if err := c.kind.Missing(names, c.a.Object); err != nil {
		return nil, forbid(c.a, "failed quota: %s: %w", q.Name, err)
	}
	for _, n := range names {
		if _, ok := q.Status.Used[n]; !ok {
			return nil, forbid(c.a, "status unknown for quota: %s, resources: %s", q.Name, printNames(names))
		}
	}
	usage := c.kind.Usage(c.a.Object, c.now)
	for _, n := range quota.Names(usage) {
		if v := usage[n]; v.Sign() < 0 {
			return nil, forbid(c.a, "quota usage is negative for resource(s): %s", n)
		}
	}
	var before corev1.ResourceList
	if c.a.Operation == seams.Update && c.a.OldObject != nil && c.kind.Matches(q, c.a.OldObject) {
		before = c.kind.Usage(c.a.OldObject, c.now)
	}
	more := quota.Only(quota.Growth(before, usage), names)
	if len(more) == 0 {
		return nil, nil
	}
	used := quota.Add(q.Status.Used, more)
	if over := quota.Exceeded(quota.Only(used, quota.Names(more)), q.Status.Hard); len(over) > 0 {
		return nil, forbid(c.a, "exceeded quota: %s, requested: %s, used: %s, limited: %s", q.Name,
			printList(quota.Only(more, over)), printList(quota.Only(q.Status.Used, over)), printList(quota.Only(q.Status.Hard, over)))
	}
	next := q.DeepCopy()
	next.Status.Used = used
	return next, nil
}

func printList(l corev1.ResourceList) string {
	var parts []string
	for _, n := range quota.Names(l) {
		v := l[n]
		parts = append(parts, fmt.Sprintf("%s=%s", n, v.String()))
	}
	return strings.Join(parts, ",")
}

func printNames(names []corev1.ResourceName) string {
	var parts []string
	for _, n := range names {
		parts = append(parts, string(n))
	}
	slices.Sort(parts)
	return strings.Join(parts, ",")
}
