package batch

import (
	"fmt"
	"math"
	"strconv"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/core"
)

// Labels that jobs put on their pods. The unprefixed ones are older and still set.
const (
	legacyNameLabel = "job-name"
	legacyUIDLabel  = "controller-uid"
)

func jobs() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "Job", Plural: "jobs", Categories: []string{"all"},
		Namespaced:  true,
		StoragePath: "jobs",
		New:         func() api.Object { return &batchv1.Job{} },
		NewList:     func() runtime.Object { return &batchv1.JobList{} },
		Default:     api.Defaults(defaultJob),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(j *batchv1.Job) {
				if !ptr.Deref(j.Spec.ManualSelector, false) {
					generateSelector(j)
				}
				j.Status = batchv1.JobStatus{}
				dropDisabledJobFields(&j.Spec, nil)
				defaultJobLabels(j)
			}),
			Validate: api.Check(func(j *batchv1.Job) field.ErrorList {
				errs := validateGeneratedSelector(j)
				errs = append(errs, validateJobSpec(&j.Spec, nil, field.NewPath("spec"))...)
				return append(errs, validateIndexedName(j)...)
			}),
			PrepareUpdate: api.OnUpdate(func(j, old *batchv1.Job) {
				j.Status = old.Status
				dropDisabledJobFields(&j.Spec, &old.Spec)
			}),
			ValidateUpdate: api.CheckUpdate(validateJobUpdate),
			Warnings: api.Warn(func(j, old *batchv1.Job) []string {
				if old == nil {
					return append(podNameWarnings(j.Name), jobSpecWarnings(&j.Spec, nil, field.NewPath("spec"))...)
				}
				return jobSpecWarnings(&j.Spec, &old.Spec, field.NewPath("spec"))
			}),
			HasGeneration: true,
			// batch/v1 has always left the pods behind unless asked otherwise.
			DefaultGC: metav1.DeletePropagationOrphan,
			DeleteWarning: "child pods are preserved by default when jobs are deleted; " +
				"set propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress this warning",
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate:     api.OnUpdate(func(j, old *batchv1.Job) { j.Spec = old.Spec }),
				ValidateUpdate:    api.CheckUpdate(validateJobStatusUpdate),
				IgnoredApplyPaths: []string{"spec"},
			},
		}},
		Fields: api.Selectable(func(j *batchv1.Job) fields.Set {
			return fields.Set{"status.successful": strconv.Itoa(int(j.Status.Succeeded))}
		}),
		FieldLabels: []string{"status.successful"},
		Columns: append([]metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Status", "string", "Status of the job.", 0),
			api.Column("Completions", "string", batchv1.JobStatus{}.SwaggerDoc()["succeeded"], 0),
			api.Column("Duration", "string", "Time required to complete the job.", 0),
			api.AgeColumn(),
		}, append(api.ContainerColumns(),
			api.Column("Selector", "string", batchv1.JobSpec{}.SwaggerDoc()["selector"], api.Wide))...),
		Row: api.Cells(jobRow),
	}
}

func jobRow(j *batchv1.Job, now time.Time) []any {
	of := "1"
	switch parallelism := ptr.Deref(j.Spec.Parallelism, 0); {
	case j.Spec.Completions != nil:
		of = strconv.Itoa(int(*j.Spec.Completions))
	case parallelism > 1:
		of = fmt.Sprintf("1 of %d", parallelism)
	}
	took := ""
	switch {
	case j.Status.StartTime == nil:
	case j.Status.CompletionTime == nil:
		took = duration.HumanDuration(now.Sub(j.Status.StartTime.Time))
	default:
		took = duration.HumanDuration(j.Status.CompletionTime.Sub(j.Status.StartTime.Time))
	}
	names, images := api.ContainerCells(j.Spec.Template.Spec.Containers)
	return []any{j.Name, jobState(j), fmt.Sprintf("%d/%s", j.Status.Succeeded, of), took,
		api.Age(j.CreationTimestamp, now), names, images, metav1.FormatLabelSelector(j.Spec.Selector)}
}

func jobState(j *batchv1.Job) string {
	switch {
	case hasCondition(j, batchv1.JobComplete, corev1.ConditionTrue):
		return "Complete"
	case hasCondition(j, batchv1.JobFailed, corev1.ConditionTrue):
		return "Failed"
	case j.DeletionTimestamp != nil:
		return "Terminating"
	case hasCondition(j, batchv1.JobSuspended, corev1.ConditionTrue):
		return "Suspended"
	case hasCondition(j, batchv1.JobFailureTarget, corev1.ConditionTrue):
		return "FailureTarget"
	case hasCondition(j, batchv1.JobSuccessCriteriaMet, corev1.ConditionTrue):
		return "SuccessCriteriaMet"
	}
	return "Running"
}

func hasCondition(j *batchv1.Job, t batchv1.JobConditionType, s corev1.ConditionStatus) bool {
	for i := range j.Status.Conditions {
		if c := &j.Status.Conditions[i]; c.Type == t && c.Status == s {
			return true
		}
	}
	return false
}

func setDefault[T any](at **T, value T) {
	if *at == nil {
		*at = &value
	}
}

func defaultJob(j *batchv1.Job) {
	s := &j.Spec
	if s.Completions == nil && s.Parallelism == nil {
		s.Completions = ptr.To[int32](1)
	}
	setDefault(&s.Parallelism, 1)
	if s.BackoffLimitPerIndex != nil {
		setDefault(&s.BackoffLimit, math.MaxInt32)
	}
	setDefault(&s.BackoffLimit, 6)
	defaultJobLabels(j)
	setDefault(&s.CompletionMode, batchv1.NonIndexedCompletion)
	setDefault(&s.Suspend, false)
	if s.PodFailurePolicy != nil {
		setDefault(&s.PodReplacementPolicy, batchv1.Failed)
	}
	setDefault(&s.PodReplacementPolicy, batchv1.TerminatingOrFailed)
	setDefault(&s.ManualSelector, false)
	defaultJobSpecParts(s)
}

// defaultJobLabels gives the job the labels of its pods. The two share one map until
// the job is stored, so that the labels generated on create end up on both.
func defaultJobLabels(j *batchv1.Job) {
	if l := j.Spec.Template.Labels; l != nil && len(j.Labels) == 0 {
		j.Labels = l
	}
}

// defaultJobSpecParts defaults what is also defaulted in a CronJob's template.
func defaultJobSpecParts(s *batchv1.JobSpec) {
	core.DefaultPodTemplate(&s.Template)
	if s.PodFailurePolicy == nil {
		return
	}
	for i := range s.PodFailurePolicy.Rules {
		patterns := s.PodFailurePolicy.Rules[i].OnPodConditions
		for k := range patterns {
			if patterns[k].Status == "" {
				patterns[k].Status = corev1.ConditionTrue
			}
		}
	}
}

// generateSelector labels the pods with the job's name and uid and selects the uid.
// What the user set stays; validation refuses it where it conflicts.
func generateSelector(j *batchv1.Job) {
	t := &j.Spec.Template
	if t.Labels == nil {
		t.Labels = map[string]string{}
	}
	setIfMissing := func(m map[string]string, key, value string) {
		if _, ok := m[key]; !ok {
			m[key] = value
		}
	}
	setIfMissing(t.Labels, legacyNameLabel, j.Name)
	setIfMissing(t.Labels, batchv1.JobNameLabel, j.Name)
	setIfMissing(t.Labels, legacyUIDLabel, string(j.UID))
	setIfMissing(t.Labels, batchv1.ControllerUidLabel, string(j.UID))
	if j.Spec.Selector == nil {
		j.Spec.Selector = &metav1.LabelSelector{}
	}
	if j.Spec.Selector.MatchLabels == nil {
		j.Spec.Selector.MatchLabels = map[string]string{}
	}
	setIfMissing(j.Spec.Selector.MatchLabels, batchv1.ControllerUidLabel, string(j.UID))
}

// dropDisabledJobFields drops spec.scheduling: its gate (WorkloadWithJob) is alpha.
func dropDisabledJobFields(s, old *batchv1.JobSpec) {
	var oldTemplate *corev1.PodTemplateSpec
	if old != nil {
		oldTemplate = &old.Template
	}
	if old == nil || old.Scheduling == nil {
		s.Scheduling = nil
	}
	core.DropDisabledTemplateFields(&s.Template, oldTemplate)
}

func podNameWarnings(name string) []string {
	if msgs := validation.IsDNS1123Label(name); len(msgs) > 0 {
		return []string{fmt.Sprintf("metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: %v", msgs)}
	}
	return nil
}

func jobSpecWarnings(s, old *batchv1.JobSpec, p *field.Path) []string {
	var warnings []string
	if ptr.Deref(s.CompletionMode, "") == batchv1.IndexedCompletion &&
		ptr.Deref(s.Completions, 0) > manyCompletions && ptr.Deref(s.Parallelism, 0) > parallelismForMany {
		warnings = append(warnings, p.String()+": In Indexed Jobs with a number of completions higher than 10^5 and a parallelism higher than 10^4, Kubernetes might not be able to track completedIndexes when a big number of indexes fail")
	}
	var oldTemplate *corev1.PodTemplateSpec
	if old != nil {
		oldTemplate = &old.Template
	}
	return append(warnings, core.PodTemplateWarnings(&s.Template, oldTemplate, p.Child("template"))...)
}
