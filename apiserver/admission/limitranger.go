package admission

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/api/podfit"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

var limitRanges = schema.GroupResource{Resource: "limitranges"}

// limitRanger sets a namespace's default requests and limits, and enforces its bounds.
type limitRanger struct {
	caches lookup.Caches
}

const limitRangerAnnotation = "kubernetes.io/limit-ranger"

// ranges are those that apply to a write; none for what is being deleted.
func (l *limitRanger) ranges(ctx context.Context, a *seams.Attributes) ([]*corev1.LimitRange, error) {
	switch {
	case a.Operation == seams.Create && (is(a, pods, "") || is(a, claims, "")):
	case a.Operation == seams.Update && (is(a, pods, "resize") || is(a, claims, "")):
		if old, ok := a.OldObject.(metav1.Object); ok && old.GetDeletionTimestamp() != nil {
			return nil, nil
		}
	default:
		return nil, nil
	}
	all, err := lookup.CachedList[*corev1.LimitRange](ctx, l.caches, limitRanges, a.Namespace)
	if err != nil {
		return nil, forbid(a, "unable to %s %v at this time because there was an error enforcing limit ranges", a.Operation, a.Resource)
	}
	return all, nil
}

func (l *limitRanger) Admit(ctx context.Context, a *seams.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok {
		return nil
	}
	all, err := l.ranges(ctx, a)
	if err != nil {
		return err
	}
	for _, r := range all {
		setDefaults(pod, r)
	}
	return nil
}

// setDefaults fills requests and limits that containers do not set, and notes that.
func setDefaults(pod *corev1.Pod, r *corev1.LimitRange) {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	for _, item := range r.Spec.Limits {
		if item.Type == corev1.LimitTypeContainer {
			maps.Copy(requests, item.DefaultRequest)
			maps.Copy(limits, item.Default)
		}
	}
	var notes []string
	merge := func(to *corev1.ResourceList, from corev1.ResourceList, what, kind, name string) {
		var set []string
		for k, v := range from {
			if _, ok := (*to)[k]; ok {
				continue
			}
			if *to == nil {
				*to = corev1.ResourceList{}
			}
			(*to)[k] = v.DeepCopy()
			set = append(set, string(k))
		}
		if len(set) > 0 {
			slices.Sort(set)
			notes = append(notes, fmt.Sprintf("%s %s for %s %s", strings.Join(set, ", "), what, kind, name))
		}
	}
	each := func(kind string, containers []corev1.Container) {
		for i := range containers {
			c := &containers[i]
			merge(&c.Resources.Requests, requests, "request", kind, c.Name)
			merge(&c.Resources.Limits, limits, "limit", kind, c.Name)
		}
	}
	each("container", pod.Spec.Containers)
	each("init container", pod.Spec.InitContainers)
	if len(notes) > 0 {
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, limitRangerAnnotation, "LimitRanger plugin set: "+strings.Join(notes, "; "))
	}
}

func (l *limitRanger) Validate(ctx context.Context, a *seams.Attributes) error {
	all, err := l.ranges(ctx, a)
	if err != nil {
		return err
	}
	for _, r := range all {
		var errs []error
		switch obj := a.Object.(type) {
		case *corev1.Pod:
			errs = podWithin(obj, r)
		case *corev1.PersistentVolumeClaim:
			errs = claimWithin(obj, r)
		}
		if len(errs) > 0 {
			return forbid(a, "%w", aggregated(errs))
		}
	}
	return nil
}

// aggregated joins messages as apimachinery's aggregate does.
func aggregated(errs []error) error {
	if len(errs) == 1 {
		return errs[0]
	}
	var msgs []string
	for _, e := range errs {
		if m := e.Error(); !slices.Contains(msgs, m) {
			msgs = append(msgs, m)
		}
	}
	if len(msgs) == 1 {
		return errors.New(msgs[0])
	}
	return errors.New("[" + strings.Join(msgs, ", ") + "]")
}

func podWithin(pod *corev1.Pod, r *corev1.LimitRange) []error {
	var errs []error
	for i := range r.Spec.Limits {
		item := &r.Spec.Limits[i]
		switch item.Type {
		case corev1.LimitTypeContainer:
			for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
				for j := range list {
					errs = append(errs, within(item, list[j].Resources.Requests, list[j].Resources.Limits)...)
				}
			}
		case corev1.LimitTypePod:
			bare := *pod // what the spec asks for, without what its runtime costs
			bare.Spec.Overhead, bare.Status = nil, corev1.PodStatus{}
			errs = append(errs, within(item, podfit.Requests(&bare), podfit.Limits(&bare))...)
		}
	}
	return errs
}

func claimWithin(claim *corev1.PersistentVolumeClaim, r *corev1.LimitRange) []error {
	var errs []error
	for i := range r.Spec.Limits {
		item := &r.Spec.Limits[i]
		if item.Type != corev1.LimitTypePersistentVolumeClaim {
			continue
		}
		for _, k := range sortedNames(item.Min) {
			errs = appendErr(errs, atLeast(item.Type, k, item.Min[k], claim.Spec.Resources.Requests, nil))
		}
		for _, k := range sortedNames(item.Max) {
			limit := item.Max[k]
			request, ok := claim.Spec.Resources.Requests[k]
			switch {
			case !ok:
				errs = append(errs, fmt.Errorf("maximum %s usage per %s is %s.  No request is specified", k, item.Type, limit.String()))
			case request.Cmp(limit) > 0:
				errs = append(errs, fmt.Errorf("maximum %s usage per %s is %s, but request is %s", k, item.Type, limit.String(), request.String()))
			}
		}
	}
	return errs
}

func sortedNames(l corev1.ResourceList) []corev1.ResourceName { return slices.Sorted(maps.Keys(l)) }

func appendErr(errs []error, err error) []error {
	if err != nil {
		errs = append(errs, err)
	}
	return errs
}

func within(item *corev1.LimitRangeItem, requests, limits corev1.ResourceList) []error {
	var errs []error
	for _, k := range sortedNames(item.Min) {
		errs = appendErr(errs, atLeast(item.Type, k, item.Min[k], requests, limits))
	}
	for _, k := range sortedNames(item.Max) {
		errs = appendErr(errs, atMost(item.Type, k, item.Max[k], requests, limits))
	}
	for _, k := range sortedNames(item.MaxLimitRequestRatio) {
		errs = appendErr(errs, ratioAtMost(item.Type, k, item.MaxLimitRequestRatio[k], requests, limits))
	}
	return errs
}

func atLeast(t corev1.LimitType, k corev1.ResourceName, bound resource.Quantity, requests, limits corev1.ResourceList) error {
	request, ok := requests[k]
	if !ok {
		return fmt.Errorf("minimum %s usage per %s is %s.  No request is specified", k, t, bound.String())
	}
	if request.Cmp(bound) < 0 {
		return fmt.Errorf("minimum %s usage per %s is %s, but request is %s", k, t, bound.String(), request.String())
	}
	if limit, ok := limits[k]; ok && limit.Cmp(bound) < 0 {
		return fmt.Errorf("minimum %s usage per %s is %s, but limit is %s", k, t, bound.String(), limit.String())
	}
	return nil
}

func atMost(t corev1.LimitType, k corev1.ResourceName, bound resource.Quantity, requests, limits corev1.ResourceList) error {
	limit, ok := limits[k]
	if !ok {
		return fmt.Errorf("maximum %s usage per %s is %s.  No limit is specified", k, t, bound.String())
	}
	if limit.Cmp(bound) > 0 {
		return fmt.Errorf("maximum %s usage per %s is %s, but limit is %s", k, t, bound.String(), limit.String())
	}
	if request, ok := requests[k]; ok && request.Cmp(bound) > 0 {
		return fmt.Errorf("maximum %s usage per %s is %s, but request is %s", k, t, bound.String(), request.String())
	}
	return nil
}

func ratioAtMost(t corev1.LimitType, k corev1.ResourceName, bound resource.Quantity, requests, limits corev1.ResourceList) error {
	request, ok := requests[k]
	if !ok || request.IsZero() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no request is specified or request is 0", k, t, bound.String())
	}
	limit, ok := limits[k]
	if !ok || limit.IsZero() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but no limit is specified or limit is 0", k, t, bound.String())
	}
	ratio := limit.AsApproximateFloat64() / request.AsApproximateFloat64()
	if ratio > bound.AsApproximateFloat64() {
		return fmt.Errorf("%s max limit to request ratio per %s is %s, but provided ratio is %f", k, t, bound.String(), ratio)
	}
	return nil
}
