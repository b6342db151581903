package batch

import (
	"fmt"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
)

// Anyone may run a job (spec.managedBy, KEP-4368), so its status is held to what its
// readers rely on. A rule applies only when a field that it speaks of changes: the
// spec may have changed under a status that was right before.
type statusChange struct {
	job, old                         *batchv1.Job
	complete, failed, target, met    bool // true now
	finished                         bool
	wasComplete, wasFailed, wasMet   bool
	wasTarget, wasFinished           bool
	completedIndexes, failedIndexes  bool // changed
	active, startTime, completeTime  bool
	uncounted, ready, terminatingNow bool
}

func isTrue(j *batchv1.Job, t batchv1.JobConditionType) bool {
	return hasCondition(j, t, corev1.ConditionTrue)
}

func compareStatus(j, old *batchv1.Job) *statusChange {
	now, was := &j.Status, &old.Status
	c := &statusChange{
		job: j, old: old,
		complete: isTrue(j, batchv1.JobComplete), wasComplete: isTrue(old, batchv1.JobComplete),
		failed: isTrue(j, batchv1.JobFailed), wasFailed: isTrue(old, batchv1.JobFailed),
		target: isTrue(j, batchv1.JobFailureTarget), wasTarget: isTrue(old, batchv1.JobFailureTarget),
		met: isTrue(j, batchv1.JobSuccessCriteriaMet), wasMet: isTrue(old, batchv1.JobSuccessCriteriaMet),

		completedIndexes: now.CompletedIndexes != was.CompletedIndexes,
		failedIndexes:    !ptr.Equal(now.FailedIndexes, was.FailedIndexes),
		active:           now.Active != was.Active,
		startTime:        !ptr.Equal(now.StartTime, was.StartTime),
		completeTime:     !ptr.Equal(now.CompletionTime, was.CompletionTime),
		uncounted:        !equality.Semantic.DeepEqual(now.UncountedTerminatedPods, was.UncountedTerminatedPods),
		ready:            !ptr.Equal(now.Ready, was.Ready),
		terminatingNow:   !ptr.Equal(now.Terminating, was.Terminating),
	}
	c.finished, c.wasFinished = c.complete || c.failed, c.wasComplete || c.wasFailed
	return c
}

func validateJobStatusUpdate(j, old *batchv1.Job) field.ErrorList {
	p := field.NewPath("status")
	c := compareStatus(j, old)
	errs := validateJobCounters(&j.Status, p)
	errs = append(errs, c.validateConditions(p.Child("conditions"))...)
	errs = append(errs, c.validateTimes(p)...)
	errs = append(errs, c.validateFinished(p)...)
	errs = append(errs, c.validateIndexes(p)...)
	return append(errs, c.validateCountersUpdate(p)...)
}

func validateJobCounters(s *batchv1.JobStatus, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, n := range []struct {
		n    int32
		name string
	}{
		{s.Active, "active"}, {s.Succeeded, "succeeded"}, {s.Failed, "failed"},
		{ptr.Deref(s.Ready, 0), "ready"}, {ptr.Deref(s.Terminating, 0), "terminating"},
	} {
		errs = append(errs, apivalidation.ValidateNonnegativeField(int64(n.n), p.Child(n.name))...)
	}
	if s.UncountedTerminatedPods == nil {
		return errs
	}
	seen := sets.New[types.UID]()
	unique := func(uids []types.UID, p *field.Path) {
		for i, uid := range uids {
			switch {
			case uid == "":
				errs = append(errs, field.Invalid(p.Index(i), uid, "must not be empty"))
			case seen.Has(uid):
				errs = append(errs, field.Duplicate(p.Index(i), uid))
			}
			seen.Insert(uid)
		}
	}
	up := p.Child("uncountedTerminatedPods")
	unique(s.UncountedTerminatedPods.Succeeded, up.Child("succeeded"))
	unique(s.UncountedTerminatedPods.Failed, up.Child("failed"))
	return errs
}

func (c *statusChange) validateConditions(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	refuse := func(when bool, msg string) {
		if when {
			errs = append(errs, field.Invalid(p, field.OmitValueType{}, msg))
		}
	}
	completeChanged, failedChanged := c.complete != c.wasComplete, c.failed != c.wasFailed
	refuse((completeChanged || failedChanged) && c.complete && c.failed, "cannot set Complete=True and Failed=true conditions")
	refuse((completeChanged || c.target != c.wasTarget) && c.complete && c.target, "cannot set Complete=True and FailureTarget=true conditions")
	refuse((failedChanged || c.failedIndexes) && c.failed && !c.target, "cannot set Failed=True condition without the FailureTarget=true condition")
	refuse((completeChanged || c.met != c.wasMet) && c.complete && !c.met, "cannot set Complete=True condition without the SuccessCriteriaMet=true condition")
	refuse(c.met && c.failed, "cannot set SuccessCriteriaMet=True and Failed=true conditions")
	refuse(c.met && c.target, "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions")
	refuse(c.job.Spec.SuccessPolicy != nil && !c.met && c.complete, "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True")
	refuse(c.wasFailed && !c.failed, "cannot disable the terminal Failed=True condition")
	refuse(c.wasComplete && !c.complete, "cannot disable the terminal Complete=True condition")
	refuse(c.wasTarget && !c.target, "cannot disable the terminal FailureTarget=True condition")
	refuse(c.wasMet && !c.met, "cannot disable the SuccessCriteriaMet=True condition")
	refuse(c.wasComplete && !c.wasMet && c.met, "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions")
	return errs
}

func (c *statusChange) validateTimes(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	s, was := &c.job.Status, &c.old.Status
	cp, sp := p.Child("completionTime"), p.Child("startTime")
	if completeChanged := c.complete != c.wasComplete; completeChanged || c.completeTime {
		if s.CompletionTime != nil && !c.complete {
			errs = append(errs, field.Invalid(cp, s.CompletionTime, "cannot set completionTime when there is no Complete=True condition"))
		}
		if s.CompletionTime == nil && c.complete {
			errs = append(errs, field.Required(cp, "completionTime is required for Complete jobs"))
		}
	}
	if (c.startTime || c.completeTime) && s.StartTime != nil && s.CompletionTime != nil && s.CompletionTime.Before(s.StartTime) {
		errs = append(errs, field.Invalid(cp, s.CompletionTime, "must be equal to or after `startTime`"))
	}
	if c.completeTime && s.CompletionTime != nil && was.CompletionTime != nil {
		errs = append(errs, field.Invalid(cp, s.CompletionTime, "field is immutable"))
	}
	resuming := isTrue(c.old, batchv1.JobSuspended) && hasCondition(c.job, batchv1.JobSuspended, corev1.ConditionFalse)
	if c.startTime && !resuming && was.StartTime != nil && !ptr.Deref(c.job.Spec.Suspend, false) {
		errs = append(errs, field.Invalid(sp, s.StartTime, "field is immutable for unsuspended job once set"))
	}
	// A suspended job of no completions finishes without ever starting.
	neverStarts := ptr.Deref(c.job.Spec.Suspend, false) && ptr.Equal(c.job.Spec.Completions, ptr.To[int32](0))
	if (c.finished != c.wasFinished || c.startTime) && !neverStarts && s.StartTime == nil && c.finished {
		errs = append(errs, field.Required(sp, "startTime is required for finished job"))
	}
	return errs
}

func (c *statusChange) validateFinished(p *field.Path) field.ErrorList {
	if !c.finished {
		return nil
	}
	var errs field.ErrorList
	s, changed := &c.job.Status, c.finished != c.wasFinished
	if (changed || c.active) && s.Active > 0 {
		errs = append(errs, field.Invalid(p.Child("active"), s.Active, "active>0 is invalid for finished job"))
	}
	if u := s.UncountedTerminatedPods; (changed || c.uncounted) && u != nil && len(u.Failed)+len(u.Succeeded) > 0 {
		errs = append(errs, field.Invalid(p.Child("uncountedTerminatedPods"), u, "must be empty for finished job"))
	}
	if (changed || c.terminatingNow) && ptr.Deref(s.Terminating, 0) > 0 {
		errs = append(errs, field.Invalid(p.Child("terminating"), s.Terminating, "terminating>0 is invalid for finished job"))
	}
	return errs
}

func (c *statusChange) validateIndexes(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	s, spec := &c.job.Status, &c.job.Spec
	cp, fp := p.Child("completedIndexes"), p.Child("failedIndexes")
	if c.completedIndexes {
		if spec.Completions != nil {
			if _, err := countIndexes(s.CompletedIndexes, *spec.Completions); err != nil {
				errs = append(errs, field.Invalid(cp, s.CompletedIndexes, fmt.Sprintf("error parsing completedIndexes: %s", err)))
			}
		}
		if s.CompletedIndexes != "" && !isIndexed(spec) {
			errs = append(errs, field.Invalid(cp, s.CompletedIndexes, "cannot set non-empty completedIndexes when non-indexed completion mode"))
		}
	}
	if s.FailedIndexes == nil {
		return errs
	}
	if c.failedIndexes {
		if spec.BackoffLimitPerIndex == nil {
			errs = append(errs, field.Invalid(fp, *s.FailedIndexes, "cannot set non-null failedIndexes when backoffLimitPerIndex is null"))
		} else if spec.Completions != nil {
			if _, err := countIndexes(*s.FailedIndexes, *spec.Completions); err != nil {
				errs = append(errs, field.Invalid(fp, s.FailedIndexes, fmt.Sprintf("error parsing failedIndexes: %s", err)))
			}
		}
	}
	if (c.failedIndexes || c.completedIndexes) && spec.Completions != nil {
		if at, ok := overlap(s.CompletedIndexes, *s.FailedIndexes, *spec.Completions); ok {
			errs = append(errs, field.Invalid(fp, *s.FailedIndexes, fmt.Sprintf("failedIndexes and completedIndexes overlap at index: %d", at)))
		}
	}
	return errs
}

func (c *statusChange) validateCountersUpdate(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	s, was := &c.job.Status, &c.old.Status
	if (c.ready || c.active) && s.Ready != nil && *s.Ready > s.Active {
		errs = append(errs, field.Invalid(p.Child("ready"), *s.Ready, "cannot set more ready pods than active"))
	}
	if s.Failed < was.Failed {
		errs = append(errs, field.Invalid(p.Child("failed"), s.Failed, "cannot decrease the failed counter"))
	}
	// Indexed Jobs whose parallelism follows completions may be scaled down.
	elastic := isIndexed(&c.job.Spec) && ptr.Equal(c.job.Spec.Completions, c.job.Spec.Parallelism)
	if s.Succeeded < was.Succeeded && !elastic {
		errs = append(errs, field.Invalid(p.Child("succeeded"), s.Succeeded, "cannot decrease the succeeded counter"))
	}
	return errs
}
