// Package eviction deletes pods for those that must respect disruption budgets:
// pods/eviction.
//
// Owns: the check against budgets, and the count of what was allowed. Must not: keep
// the budgets' status otherwise, which is the disruption controller's.
package eviction

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/apps/poddisruptionbudget"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

var (
	pods    = schema.GroupResource{Resource: "pods"}
	budgets = schema.GroupResource{Group: policyv1.GroupName, Resource: "poddisruptionbudgets"}
)

// maxDisrupted bounds evictions that the disruption controller has not confirmed yet.
const maxDisrupted = 2000

// attempts bounds retries after conflicts.
const attempts = 20

// Endpoint is pods/eviction.
func Endpoint(caches lookup.Caches, c clock.PassiveClock) seams.Endpoint {
	if c == nil {
		c = clock.RealClock{}
	}
	e := &evictor{caches: caches, clock: c}
	return seams.Endpoint{
		Resource: pods, Subresource: "eviction",
		Kind:   policyv1.SchemeGroupVersion.WithKind("Eviction"),
		New:    func() runtime.Object { return &policyv1.Eviction{} },
		Create: e.create,
	}
}

type evictor struct {
	caches lookup.Caches
	clock  clock.PassiveClock
}

func (e *evictor) create(ctx context.Context, r *seams.CreateRequest) (runtime.Object, error) {
	ev := r.Object.(*policyv1.Eviction)
	if ev.Name != r.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	opts, err := deleteOptions(ev, r.Options)
	if err != nil {
		return nil, err
	}
	store, ok := r.Stores.Store(pods)
	if !ok {
		return nil, apierrors.NewInternalError(errors.New("pods are not served"))
	}
	pinned := opts.Preconditions != nil && opts.Preconditions.ResourceVersion != nil
	var pod *corev1.Pod
	for try := 1; ; try++ {
		obj, err := store.Get(ctx, r.Namespace, r.Name, "")
		if err != nil {
			return nil, err
		}
		pod = obj.Runtime().(*corev1.Pod)
		if !ignoresBudgets(pod) {
			break
		}
		o := opts
		if !pinned && !finished(pod) && pod.DeletionTimestamp == nil {
			// A pending pod may start to run, and count, before it is deleted.
			o = pinnedTo(opts, pod.ResourceVersion)
		}
		err = e.delete(ctx, store, r, o)
		if err == nil {
			return &metav1.Status{Status: metav1.StatusSuccess}, nil
		}
		if !apierrors.IsConflict(err) || pinned || try == attempts {
			return nil, err
		}
	}

	pdb, err := e.budget(ctx, pod)
	if err != nil {
		return nil, err
	}
	if pdb != nil {
		if sparesNoHealthy(pod, pdb) {
			opts = pinnedTo(opts, pod.ResourceVersion) // it must still be unhealthy when it goes
			err := e.delete(ctx, store, r, opts)
			if apierrors.IsConflict(err) && !pinned {
				return nil, tooMany(pdb.Name)
			}
			return &metav1.Status{Status: metav1.StatusSuccess}, err
		}
		if err := e.spend(ctx, pod, pdb, len(opts.DryRun) > 0); err != nil {
			return nil, err
		}
	}
	if err := e.delete(ctx, store, r, opts); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// deleteOptions are the Eviction's, a dry run of the request included.
func deleteOptions(ev *policyv1.Eviction, create *metav1.CreateOptions) (*metav1.DeleteOptions, error) {
	o := ev.DeleteOptions
	if o == nil {
		o = &metav1.DeleteOptions{}
	}
	if ptr.Deref(o.IgnoreStoreReadErrorWithClusterBreakingPotential, false) {
		return nil, apierrors.NewInvalid(policyv1.SchemeGroupVersion.WithKind("Eviction").GroupKind(), ev.Name, field.ErrorList{
			field.Invalid(field.NewPath("deleteOptions").Child("ignoreStoreReadErrorWithClusterBreakingPotential"), true,
				"can not be set for pod eviction, try after removing the option")})
	}
	var dryRun []string
	if create != nil {
		dryRun = create.DryRun
	}
	switch {
	case len(o.DryRun) == 0:
		o.DryRun = dryRun
	case len(dryRun) > 0 && !slices.Equal(dryRun, o.DryRun):
		return nil, apierrors.NewBadRequest(fmt.Sprintf("Non-matching dry-run options in request and content: %v and %v", dryRun, o.DryRun))
	}
	return o, nil
}

func pinnedTo(o *metav1.DeleteOptions, resourceVersion string) *metav1.DeleteOptions {
	o = o.DeepCopy()
	if o.Preconditions == nil {
		o.Preconditions = &metav1.Preconditions{}
	}
	o.Preconditions.ResourceVersion = &resourceVersion
	return o
}

func finished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// ignoresBudgets: a pod that does not run, or goes anyway, is no disruption.
func ignoresBudgets(p *corev1.Pod) bool {
	return finished(p) || p.Status.Phase == corev1.PodPending || p.DeletionTimestamp != nil
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// sparesNoHealthy: a pod that is not ready may go when enough others are, or when
// the budget protects healthy pods alone (KEP-3017).
func sparesNoHealthy(p *corev1.Pod, pdb *policyv1.PodDisruptionBudget) bool {
	if isReady(p) {
		return false
	}
	return ptr.Deref(pdb.Spec.UnhealthyPodEvictionPolicy, policyv1.IfHealthyBudget) == policyv1.AlwaysAllow ||
		pdb.Status.CurrentHealthy >= pdb.Status.DesiredHealthy && pdb.Status.DesiredHealthy > 0
}

// budget is the one that covers the pod, nil if none.
func (e *evictor) budget(ctx context.Context, pod *corev1.Pod) (*policyv1.PodDisruptionBudget, error) {
	all, err := lookup.FreshList[*policyv1.PodDisruptionBudget](ctx, e.caches, budgets, pod.Namespace)
	if err != nil {
		return nil, err
	}
	var found *policyv1.PodDisruptionBudget
	for _, b := range all {
		s, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err != nil || !s.Matches(labels.Set(pod.Labels)) {
			continue // a selector that does not parse covers nothing
		}
		if found != nil {
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Code: 500,
				Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
			}}
		}
		found = b
	}
	return found, nil
}

// spend takes one disruption from the budget.
func (e *evictor) spend(ctx context.Context, pod *corev1.Pod, pdb *policyv1.PodDisruptionBudget, dryRun bool) error {
	if dryRun {
		_, err := decrement(pdb, pod.Name, e.clock.Now())
		return err
	}
	r, err := lookup.Resource(e.caches, budgets)
	if err != nil {
		return err
	}
	_, err = r.Update(ctx, pdb.Namespace, pdb.Name, false, cacher.Preconditions{UID: &pdb.UID},
		func(current cacher.Object) (runtime.Object, time.Duration, error) {
			next, err := decrement(current.Runtime().(*policyv1.PodDisruptionBudget), pod.Name, e.clock.Now())
			return next, 0, err
		})
	return err
}

// decrement returns the budget with one disruption less, or why there is none left.
func decrement(pdb *policyv1.PodDisruptionBudget, pod string, now time.Time) (*policyv1.PodDisruptionBudget, error) {
	if pdb.Status.ObservedGeneration < pdb.Generation {
		return nil, tooMany(pdb.Name)
	}
	gr := schema.GroupResource{Group: policyv1.GroupName, Resource: "poddisruptionbudget"}
	switch {
	case pdb.Status.DisruptionsAllowed < 0:
		return nil, because(apierrors.NewForbidden(gr, pdb.Name, errors.New("pdb disruptions allowed is negative")),
			"The disruption budget %s does not allow evicting pods currently: pdb disruptions allowed is negative", pdb.Name)
	case len(pdb.Status.DisruptedPods) > maxDisrupted:
		return nil, because(apierrors.NewForbidden(gr, pdb.Name, errors.New("DisruptedPods map too big - too many evictions not confirmed by PDB controller")),
			"The disruption budget %s does not allow evicting pods currently: too many pending evictions not confirmed by PDB controller", pdb.Name)
	case pdb.Status.DisruptionsAllowed == 0:
		err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 0)
		cond := meta.FindStatusCondition(pdb.Status.Conditions, policyv1.DisruptionAllowedCondition)
		told := cond != nil && cond.Status == metav1.ConditionFalse && cond.Message != ""
		switch {
		case told && cond.Reason == policyv1.SyncFailedReason:
			return nil, because(err, "The disruption budget %s does not allow evicting pods currently because it failed sync: %s", pdb.Name, cond.Message)
		case pdb.Status.CurrentHealthy <= pdb.Status.DesiredHealthy:
			return nil, because(err, "The disruption budget %s needs %d healthy pods and has %d currently", pdb.Name, pdb.Status.DesiredHealthy, pdb.Status.CurrentHealthy)
		case told:
			return nil, because(err, "The disruption budget %s does not allow evicting pods currently (%s): %s", pdb.Name, cond.Reason, cond.Message)
		}
		return nil, because(err, "The disruption budget %s does not allow evicting pods currently", pdb.Name)
	}
	next := pdb.DeepCopy()
	next.Status.DisruptionsAllowed--
	if next.Status.DisruptionsAllowed == 0 {
		poddisruptionbudget.UpdateDisruptionAllowedCondition(next)
	}
	if next.Status.DisruptedPods == nil {
		next.Status.DisruptedPods = map[string]metav1.Time{}
	}
	next.Status.DisruptedPods[pod] = metav1.NewTime(now)
	return next, nil
}

func tooMany(name string) error {
	return because(apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.", 10),
		"The disruption budget %s is still being processed by the server.", name)
}

func because(err *apierrors.StatusError, format string, args ...any) error {
	if err.ErrStatus.Details == nil {
		err.ErrStatus.Details = &metav1.StatusDetails{}
	}
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: policyv1.DisruptionBudgetCause, Message: fmt.Sprintf(format, args...),
	})
	return err
}

// delete says in the pod's status why it goes, then deletes it.
func (e *evictor) delete(ctx context.Context, store seams.Store, r *seams.CreateRequest, o *metav1.DeleteOptions) error {
	if len(o.DryRun) == 0 {
		obj, err := store.Update(ctx, r.Namespace, r.Name, "status", false, func(obj runtime.Object) (runtime.Object, error) {
			pod := obj.(*corev1.Pod)
			if p := o.Preconditions; p != nil {
				if p.UID != nil && *p.UID != "" && *p.UID != pod.UID {
					return nil, apierrors.NewConflict(schema.GroupResource{Resource: "Pod"}, pod.Name, fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, pod.UID))
				}
				if p.ResourceVersion != nil && *p.ResourceVersion != "" && *p.ResourceVersion != pod.ResourceVersion {
					return nil, apierrors.NewConflict(schema.GroupResource{Resource: "Pod"}, pod.Name, fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *p.ResourceVersion, pod.ResourceVersion))
				}
			}
			setDisruption(pod, e.clock.Now())
			return pod, nil
		})
		if err != nil {
			return err
		}
		if o.Preconditions != nil && o.Preconditions.ResourceVersion != nil {
			m, err := meta.Accessor(obj)
			if err != nil {
				return err
			}
			o = pinnedTo(o, m.GetResourceVersion())
		}
	}
	_, _, err := store.Delete(ctx, r.Namespace, r.Name, o)
	return err
}

func setDisruption(pod *corev1.Pod, now time.Time) {
	c := corev1.PodCondition{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue,
		Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
		LastTransitionTime: metav1.NewTime(now).Rfc3339Copy(),
	}
	for i := range pod.Status.Conditions {
		have := &pod.Status.Conditions[i]
		if have.Type != c.Type {
			continue
		}
		if have.Status == c.Status {
			c.LastTransitionTime = have.LastTransitionTime
		}
		*have = c
		return
	}
	pod.Status.Conditions = append(pod.Status.Conditions, c)
}
