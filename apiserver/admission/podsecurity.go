package admission

import (
	"context"

	"fmt"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"
	psa "k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// podSecurity holds pods to the Pod Security Standard that their namespace's labels
// name (KEP-2579); without labels everything is allowed.
type podSecurity struct {
	validating
	caches    lookup.Caches
	evaluator policy.Evaluator
}

// maxChecked bounds the pods that are looked at when a namespace's level is raised.
const maxChecked = 3000

func newPodSecurity(caches lookup.Caches) (*podSecurity, error) {
	e, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		return nil, fmt.Errorf("admission: pod security checks: %w", err)
	}
	return &podSecurity{caches: caches, evaluator: e}, nil
}

func privileged() psa.Policy {
	any := psa.LevelVersion{Level: psa.LevelPrivileged, Version: psa.LatestVersion()}
	return psa.Policy{Enforce: any, Audit: any, Warn: any}
}

func (p *podSecurity) Validate(ctx context.Context, a *seams.Attributes) error {
	if a.Operation != seams.Create && a.Operation != seams.Update {
		return nil
	}
	switch obj := a.Object.(type) {
	case *corev1.Namespace:
		if a.Subresource == "" {
			return p.namespace(ctx, a, obj)
		}
	case *corev1.Pod:
		switch a.Subresource {
		case "", "ephemeralcontainers", "resize":
			return p.pod(ctx, a, obj)
		}
	default:
		if a.Subresource == "" {
			return p.template(ctx, a)
		}
	}
	return nil
}

func (p *podSecurity) policyOf(ctx context.Context, name string) (psa.Policy, error, error) {
	ns, err := lookup.CachedOrFresh[*corev1.Namespace](ctx, p.caches, namespaces, "", name)
	if err != nil {
		return psa.Policy{}, nil, err
	}
	pol, errs := psa.PolicyToEvaluate(ns.Labels, privileged())
	return pol, errs.ToAggregate(), nil
}

func (p *podSecurity) pod(ctx context.Context, a *seams.Attributes, pod *corev1.Pod) error {
	pol, badLabels, err := p.policyOf(ctx, a.Namespace)
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("failed to lookup namespace %q", a.Namespace))
	}
	if badLabels == nil && pol.FullyPrivileged() {
		return nil
	}
	if old, ok := a.OldObject.(*corev1.Pod); ok && a.Operation == seams.Update && sameContainers(pod, old) {
		return nil
	}
	audit.AddAuditAnnotation(ctx, "pod-security.kubernetes.io/"+psa.EnforcedPolicyAnnotationKey, pol.Enforce.String())
	result := p.evaluate(pol.Enforce, &pod.ObjectMeta, &pod.Spec)
	p.note(ctx, a, pol, &pod.ObjectMeta, &pod.Spec, result.Allowed)
	if !result.Allowed {
		return forbid(a, "violates PodSecurity %q: %s", pol.Enforce.String(), result.ForbiddenDetail())
	}
	return nil
}

// template warns about controllers whose pods would be refused.
func (p *podSecurity) template(ctx context.Context, a *seams.Attributes) error {
	meta, spec := podTemplate(a.Object)
	if spec == nil {
		return nil
	}
	pol, badLabels, err := p.policyOf(ctx, a.Namespace)
	if err != nil || badLabels == nil && pol.Warn.Level == psa.LevelPrivileged && pol.Audit.Level == psa.LevelPrivileged {
		return nil //nolint:nilerr // the pods themselves are refused if need be
	}
	p.note(ctx, a, pol, meta, spec, true)
	return nil
}

func podTemplate(obj runtime.Object) (*metav1.ObjectMeta, *corev1.PodSpec) {
	var t *corev1.PodTemplateSpec
	switch o := obj.(type) {
	case *corev1.PodTemplate:
		t = &o.Template
	case *corev1.ReplicationController:
		t = o.Spec.Template
	case *appsv1.ReplicaSet:
		t = &o.Spec.Template
	case *appsv1.Deployment:
		t = &o.Spec.Template
	case *appsv1.DaemonSet:
		t = &o.Spec.Template
	case *appsv1.StatefulSet:
		t = &o.Spec.Template
	case *batchv1.Job:
		t = &o.Spec.Template
	case *batchv1.CronJob:
		t = &o.Spec.JobTemplate.Spec.Template
	}
	if t == nil {
		return nil, nil
	}
	return &t.ObjectMeta, &t.Spec
}

func (p *podSecurity) evaluate(lv psa.LevelVersion, meta *metav1.ObjectMeta, spec *corev1.PodSpec) policy.AggregateCheckResult {
	return policy.AggregateCheckResults(p.evaluator.EvaluatePod(lv, meta, spec))
}

// note records what breaks the audit level, and warns of what breaks the warn level unless the write is refused anyway.
func (p *podSecurity) note(ctx context.Context, _ *seams.Attributes, pol psa.Policy, meta *metav1.ObjectMeta, spec *corev1.PodSpec, allowed bool) {
	if r := p.evaluate(pol.Audit, meta, spec); !r.Allowed {
		audit.AddAuditAnnotation(ctx, "pod-security.kubernetes.io/"+psa.AuditViolationsAnnotationKey,
			fmt.Sprintf("would violate PodSecurity %q: %s", pol.Audit.String(), r.ForbiddenDetail()))
	}
	if !allowed {
		return
	}
	if r := p.evaluate(pol.Warn, meta, spec); !r.Allowed {
		warning.AddWarning(ctx, "", fmt.Sprintf("would violate PodSecurity %q: %s", pol.Warn.String(), r.ForbiddenDetail()))
	}
}

// namespace checks the labels, and warns about pods that a raised level would refuse.
func (p *podSecurity) namespace(ctx context.Context, a *seams.Attributes, ns *corev1.Namespace) error {
	next, errs := psa.PolicyToEvaluate(ns.Labels, privileged())
	old, isUpdate := a.OldObject.(*corev1.Namespace)
	if !isUpdate {
		if len(errs) > 0 {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Namespace"}, ns.Name, errs)
		}
		return nil
	}
	before, oldErrs := psa.PolicyToEvaluate(old.Labels, privileged())
	if len(errs) > 0 && (len(oldErrs) == 0 || errs.ToAggregate().Error() != oldErrs.ToAggregate().Error()) {
		return apierrors.NewInvalid(schema.GroupKind{Kind: "Namespace"}, ns.Name, errs)
	}
	if next.Enforce == before.Enforce || next.Enforce.Level == psa.LevelPrivileged ||
		next.Enforce.Version == before.Enforce.Version && psa.CompareLevels(next.Enforce.Level, before.Enforce.Level) < 1 {
		return nil
	}
	all, err := lookup.CachedList[*corev1.Pod](ctx, p.caches, pods, ns.Name)
	if err != nil {
		warning.AddWarning(ctx, "", "failed to list pods while checking new PodSecurity enforce level")
		return nil //nolint:nilerr // the check only warns
	}
	for _, w := range p.violations(ctx, ns.Name, next.Enforce, all) {
		warning.AddWarning(ctx, "", w)
	}
	return nil
}

func (p *podSecurity) violations(ctx context.Context, namespace string, lv psa.LevelVersion, all []*corev1.Pod) []string {
	type violators struct {
		first string
		count int
	}
	found := map[string]violators{}
	checked := 0
	for _, pod := range all {
		if checked == maxChecked || ctx.Err() != nil {
			break
		}
		checked++
		r := p.evaluate(lv, &pod.ObjectMeta, &pod.Spec)
		if r.Allowed {
			continue
		}
		v := found[r.ForbiddenReason()]
		if v.count == 0 || pod.Name < v.first {
			v.first = pod.Name
		}
		v.count++
		found[r.ForbiddenReason()] = v
	}
	var out, lines []string
	if checked < len(all) {
		out = append(out, fmt.Sprintf("new PodSecurity enforce level only checked against the first %d of %d existing pods", checked, len(all)))
	}
	if len(found) == 0 {
		return out
	}
	out = append(out, fmt.Sprintf("existing pods in namespace %q violate the new PodSecurity enforce level %q", namespace, lv.String()))
	for reason, v := range found {
		switch v.count {
		case 1:
			lines = append(lines, fmt.Sprintf("%s: %s", v.first, reason))
		case 2:
			lines = append(lines, fmt.Sprintf("%s (and 1 other pod): %s", v.first, reason))
		default:
			lines = append(lines, fmt.Sprintf("%s (and %d other pods): %s", v.first, v.count-1, reason))
		}
	}
	slices.Sort(lines)
	return append(out, lines...)
}

// sameContainers: nothing else that a pod's update may change matters to the standards.
func sameContainers(pod, old *corev1.Pod) bool {
	images := func(a, b []corev1.Container) bool {
		return slices.EqualFunc(a, b, func(x, y corev1.Container) bool { return x.Image == y.Image })
	}
	if !images(pod.Spec.Containers, old.Spec.Containers) || !images(pod.Spec.InitContainers, old.Spec.InitContainers) {
		return false
	}
	for _, c := range pod.Spec.EphemeralContainers {
		i := slices.IndexFunc(old.Spec.EphemeralContainers, func(o corev1.EphemeralContainer) bool { return o.Name == c.Name })
		if i < 0 || old.Spec.EphemeralContainers[i].Image != c.Image {
			return false
		}
	}
	return true
}
