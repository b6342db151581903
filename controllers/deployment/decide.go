package deployment

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/ownership"
)

var gvk = appsv1.SchemeGroupVersion.WithKind("Deployment")

// state is what one pass looks at: a Deployment and its ReplicaSets, shared objects.
type state struct {
	deployment *appsv1.Deployment
	sets       []*appsv1.ReplicaSet
	// running reports whether a set has pods that have not ended, also terminating ones.
	running func(rs *appsv1.ReplicaSet) bool
	now     time.Time
}

// plan is what one pass does, in this order. Objects in it are private copies.
type plan struct {
	create *appsv1.ReplicaSet
	update []change
	remove []*appsv1.ReplicaSet
	// status is the Deployment with its new status and revision; nil when nothing changed.
	status *appsv1.Deployment
	again  time.Duration
	// everything: the Deployment selects all pods, which is refused.
	everything bool
}

// change is a ReplicaSet to update and the size it had.
type change struct {
	set  *appsv1.ReplicaSet
	from int32
}

// decide is one pass. It does one step of a rollout at a time, so that each step sees
// the outcome of the one before in the sets' status.
func decide(s state) plan {
	d := s.deployment
	if d.Spec.Selector == nil || equality.Semantic.DeepEqual(*d.Spec.Selector, metav1.LabelSelector{}) {
		p := plan{everything: true}
		if d.Status.ObservedGeneration < d.Generation {
			p.status = d.DeepCopy()
			p.status.Status.ObservedGeneration = d.Generation
		}
		return p
	}
	r := &pass{state: s, base: *d.Status.DeepCopy(), revision: d.Annotations[RevisionAnnotation], wanted: sizes{}}
	r.split()
	if d.DeletionTimestamp == nil {
		r.paused()
		r.roll()
	}
	return r.plan()
}

// pass is the work of one decide.
type pass struct {
	state
	current  *appsv1.ReplicaSet // has the Deployment's template; may be nil
	old      []*appsv1.ReplicaSet
	base     appsv1.DeploymentStatus // status so far: conditions
	revision string                  // the Deployment's annotation
	created  *appsv1.ReplicaSet
	wanted   sizes
	resize   bool // size annotations of all active sets are to be renewed
	clean    bool
	rollout  bool // estimate progress
}

// split finds the current set: the oldest with the Deployment's template.
func (r *pass) split() {
	sets := slices.Clone(r.sets)
	byAge(sets)
	for _, rs := range sets {
		if r.current == nil && sameTemplate(&rs.Spec.Template, &r.deployment.Spec.Template) {
			r.current = rs
		} else {
			r.old = append(r.old, rs)
		}
	}
}

// sameTemplate compares but for the hash label.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	x, y := *a, *b
	x.Labels, y.Labels = maps.Clone(a.Labels), maps.Clone(b.Labels)
	delete(x.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	delete(y.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return equality.Semantic.DeepEqual(&x, &y)
}

// paused notes pausing and resuming, so that the deadline does not run meanwhile.
func (r *pass) paused() {
	if !hasDeadline(r.deployment) {
		return
	}
	c := condition(&r.base, appsv1.DeploymentProgressing)
	if c != nil && c.Reason == reasonTimedOut {
		return
	}
	was := c != nil && c.Reason == reasonPaused
	switch is := r.deployment.Spec.Paused; {
	case is && !was:
		setCondition(&r.base, r.now, appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonPaused, "Deployment is paused")
	case !is && was:
		setCondition(&r.base, r.now, appsv1.DeploymentProgressing, corev1.ConditionUnknown, reasonResumed, "Deployment is resumed")
	}
}

func (r *pass) roll() {
	d := r.deployment
	r.rollout = true
	switch {
	case d.Spec.Paused:
		r.rollout, r.resize, r.clean = false, true, true
		maps.Copy(r.wanted, scale(d, r.current, slices.Clone(r.old)))
	case r.scaled():
		r.rollout, r.resize = false, true
		maps.Copy(r.wanted, scale(d, r.current, slices.Clone(r.old)))
	case rolling(d):
		r.rollingStep()
	default:
		r.recreateStep()
	}
}

// scaled reports whether spec.replicas changed since the active sets got their sizes.
func (r *pass) scaled() bool {
	for _, rs := range r.sets {
		if size(rs) == 0 {
			continue
		}
		if desired, ok := sizeAnnotation(rs, DesiredReplicasAnnotation); ok && desired != replicas(r.deployment) {
			return true
		}
	}
	return false
}

func (r *pass) rollingStep() {
	d := r.deployment
	if r.current == nil {
		r.create()
		return
	}
	var total int32
	for _, rs := range r.sets {
		total += size(rs)
	}
	now := size(r.current)
	want := min(now, replicas(d)) // too large: shrink
	if now < replicas(d) {
		want = grownSize(d, now, total)
	}
	if want != now {
		r.wanted[r.current] = want
		return
	}
	shrunk := false
	for rs, n := range rollOld(d, r.current, slices.Clone(r.old)) {
		if n != size(rs) {
			r.wanted[rs] = n
			shrunk = true
		}
	}
	r.clean = !shrunk && complete(d, &d.Status)
}

func (r *pass) recreateStep() {
	for _, rs := range r.old {
		if size(rs) > 0 {
			r.wanted[rs] = 0
		}
	}
	if len(r.wanted) > 0 {
		return
	}
	for _, rs := range r.old {
		if rs.Status.Replicas > 0 || r.running(rs) {
			return // two versions never run at a time
		}
	}
	if r.current == nil {
		r.create()
		return
	}
	if size(r.current) != replicas(r.deployment) {
		r.wanted[r.current] = replicas(r.deployment)
		return
	}
	r.clean = complete(r.deployment, &r.deployment.Status)
}

// create makes the current set, named by the hash of its template so that two tries make one.
func (r *pass) create() {
	d := r.deployment
	hash := ownership.TemplateHash(&d.Spec.Template, d.Status.CollisionCount)
	template := d.Spec.Template.DeepCopy()
	template.Labels = withLabel(template.Labels, hash)
	selector := d.Spec.Selector.DeepCopy()
	selector.MatchLabels = withLabel(selector.MatchLabels, hash)
	name := d.Name
	if most := validation.DNS1123SubdomainMaxLength - len(hash) - 1; len(name) > most {
		name = name[:most]
	}
	var total int32
	for _, rs := range r.old {
		total += size(rs)
	}
	r.created = &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name:            name + "-" + hash,
			Namespace:       d.Namespace,
			Labels:          maps.Clone(template.Labels),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, gvk)},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas:        ptr.To(grownSize(d, 0, total)),
			MinReadySeconds: d.Spec.MinReadySeconds,
			Selector:        selector,
			Template:        *template,
		},
	}
	revision := nextRevision(r.old)
	annotate(d, r.created, revision)
	annotateSize(d, r.created)
	r.revision = strconv.FormatInt(revision, 10)
	if hasDeadline(d) {
		setCondition(&r.base, r.now, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonCreated,
			fmt.Sprintf("Created new replica set %q", r.created.Name))
	}
}

func withLabel(m map[string]string, hash string) map[string]string {
	m = maps.Clone(m)
	if m == nil {
		m = map[string]string{}
	}
	m[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	return m
}

// plan turns what the steps wanted into writes.
func (r *pass) plan() plan {
	d := r.deployment
	p := plan{create: r.created}
	if d.DeletionTimestamp == nil {
		for _, rs := range r.sets {
			p.set(r, rs)
		}
		if r.clean {
			p.remove = r.surplus()
		}
	}

	current, all := r.current, r.sets
	if r.created != nil {
		current, all = r.created, append(slices.Clone(r.sets), r.created)
	}
	status := count(d, current, all, &r.base, r.now)
	if r.rollout {
		if r.created == nil || !hasDeadline(d) {
			p.again = progress(d, current, &status, r.now)
		}
		failures(&status, current, all)
	}
	if !equality.Semantic.DeepEqual(d.Status, status) || d.Annotations[RevisionAnnotation] != r.revision && r.revision != "" {
		p.status = d.DeepCopy()
		p.status.Status = status
		if r.revision != "" {
			if p.status.Annotations == nil {
				p.status.Annotations = map[string]string{}
			}
			p.status.Annotations[RevisionAnnotation] = r.revision
		}
	}
	return p
}

// set adds an update of rs to the plan if anything about it changes.
func (p *plan) set(r *pass, rs *appsv1.ReplicaSet) {
	d := r.deployment
	next := rs.DeepCopy()
	want, sized := r.wanted[rs]
	if sized {
		next.Spec.Replicas = ptr.To(want)
	}
	if sized && want != size(rs) || r.resize && size(rs) > 0 {
		annotateSize(d, next)
	}
	if rs == r.current {
		annotate(d, next, nextRevision(r.old))
		next.Spec.MinReadySeconds = d.Spec.MinReadySeconds
		r.revision = cmp.Or(next.Annotations[RevisionAnnotation], r.revision)
		if hasDeadline(d) && condition(&r.base, appsv1.DeploymentProgressing) == nil {
			setCondition(&r.base, r.now, appsv1.DeploymentProgressing, corev1.ConditionTrue, reasonFound,
				fmt.Sprintf("Found new replica set %q", rs.Name))
		}
	}
	if equality.Semantic.DeepEqual(rs.Annotations, next.Annotations) && size(rs) == size(next) && rs.Spec.MinReadySeconds == next.Spec.MinReadySeconds {
		return
	}
	p.update = append(p.update, change{set: next, from: size(rs)})
}

// surplus are empty old sets beyond revisionHistoryLimit, lowest revisions first.
func (r *pass) surplus() []*appsv1.ReplicaSet {
	limit := r.deployment.Spec.RevisionHistoryLimit
	if limit == nil || *limit == math.MaxInt32 {
		return nil
	}
	alive := slices.DeleteFunc(slices.Clone(r.old), func(rs *appsv1.ReplicaSet) bool { return rs.DeletionTimestamp != nil })
	over := len(alive) - int(*limit)
	if over <= 0 {
		return nil
	}
	slices.SortStableFunc(alive, func(a, b *appsv1.ReplicaSet) int {
		ra, okA := revisionOf(a)
		rb, okB := revisionOf(b)
		if !okA || !okB {
			return compareAge(a, b)
		}
		return cmp.Or(cmp.Compare(ra, rb), compareAge(a, b))
	})
	return slices.DeleteFunc(alive[:over], func(rs *appsv1.ReplicaSet) bool {
		return rs.Status.Replicas != 0 || size(rs) != 0 || rs.Generation > rs.Status.ObservedGeneration
	})
}
