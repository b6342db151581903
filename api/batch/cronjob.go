package batch

import (
	"fmt"
	"regexp"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

// A job of a CronJob is named <cronjob>-<minutes since 1970>, within 63 characters.
const maxCronJobName = 52

func cronJobs() *api.Resource {
	spec := batchv1.CronJobSpec{}.SwaggerDoc()
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "CronJob", Plural: "cronjobs",
		ShortNames: []string{"cj"}, Categories: []string{"all"},
		Namespaced:  true,
		StoragePath: "cronjobs",
		New:         func() api.Object { return &batchv1.CronJob{} },
		NewList:     func() runtime.Object { return &batchv1.CronJobList{} },
		Default:     api.Defaults(defaultCronJob),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(c *batchv1.CronJob) {
				c.Status = batchv1.CronJobStatus{}
				dropDisabledJobFields(&c.Spec.JobTemplate.Spec, nil)
			}),
			Validate: api.Check(func(c *batchv1.CronJob) field.ErrorList {
				errs := validateCronJobSpec(&c.Spec, nil, field.NewPath("spec"))
				if len(c.Name) > maxCronJobName {
					errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), c.Name, "must be no more than 52 characters"))
				}
				return errs
			}),
			PrepareUpdate: api.OnUpdate(func(c, old *batchv1.CronJob) {
				c.Status = old.Status
				dropDisabledJobFields(&c.Spec.JobTemplate.Spec, &old.Spec.JobTemplate.Spec)
			}),
			ValidateUpdate: api.CheckUpdate(func(c, old *batchv1.CronJob) field.ErrorList {
				return validateCronJobSpec(&c.Spec, &old.Spec, field.NewPath("spec"))
			}),
			Warnings:      api.Warn(cronJobWarnings),
			HasGeneration: true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate:     api.OnUpdate(func(c, old *batchv1.CronJob) { c.Spec = old.Spec }),
				IgnoredApplyPaths: []string{"spec"},
			},
		}},
		Columns: append([]metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Schedule", "string", spec["schedule"], 0),
			api.Column("Timezone", "string", spec["timeZone"], 0),
			api.Column("Suspend", "boolean", spec["suspend"], 0),
			api.Column("Active", "integer", batchv1.CronJobStatus{}.SwaggerDoc()["active"], 0),
			api.Column("Last Schedule", "string", batchv1.CronJobStatus{}.SwaggerDoc()["lastScheduleTime"], 0),
			api.AgeColumn(),
		}, append(api.ContainerColumns(),
			api.Column("Selector", "string", batchv1.JobSpec{}.SwaggerDoc()["selector"], api.Wide))...),
		Row: api.Cells(cronJobRow),
	}
}

func cronJobRow(c *batchv1.CronJob, now time.Time) []any {
	last, suspend := "<none>", "<unset>"
	if t := c.Status.LastScheduleTime; t != nil {
		last = api.Age(*t, now)
	}
	if c.Spec.Suspend != nil {
		suspend = map[bool]string{true: "True", false: "False"}[*c.Spec.Suspend]
	}
	s := &c.Spec.JobTemplate.Spec
	names, images := api.ContainerCells(s.Template.Spec.Containers)
	return []any{c.Name, c.Spec.Schedule, ptr.Deref(c.Spec.TimeZone, "<none>"), suspend, int64(len(c.Status.Active)),
		last, api.Age(c.CreationTimestamp, now), names, images, metav1.FormatLabelSelector(s.Selector)}
}

func defaultCronJob(c *batchv1.CronJob) {
	if c.Spec.ConcurrencyPolicy == "" {
		c.Spec.ConcurrencyPolicy = batchv1.AllowConcurrent
	}
	setDefault(&c.Spec.Suspend, false)
	setDefault(&c.Spec.SuccessfulJobsHistoryLimit, 3)
	setDefault(&c.Spec.FailedJobsHistoryLimit, 1)
	defaultJobSpecParts(&c.Spec.JobTemplate.Spec)
}

func cronJobWarnings(c, old *batchv1.CronJob) []string {
	p := field.NewPath("spec", "jobTemplate", "spec")
	if old == nil {
		return append(podNameWarnings(c.Name), jobSpecWarnings(&c.Spec.JobTemplate.Spec, nil, p)...)
	}
	warnings := jobSpecWarnings(&c.Spec.JobTemplate.Spec, &old.Spec.JobTemplate.Spec, p)
	if strings.Contains(c.Spec.Schedule, "TZ") {
		warnings = append(warnings, "cannot use TZ or CRON_TZ in spec.spec.schedule, use timeZone instead, see https://kubernetes.io/docs/concepts/workloads/controllers/cron-jobs/ for more details")
	}
	return warnings
}

func validateCronJobSpec(s, old *batchv1.CronJobSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if s.Schedule == "" {
		errs = append(errs, field.Required(p.Child("schedule"), ""))
	} else {
		allowTZ := old != nil && strings.Contains(old.Schedule, "TZ")
		errs = append(errs, validateSchedule(s, allowTZ, p.Child("schedule"))...)
	}
	if s.StartingDeadlineSeconds != nil {
		errs = append(errs, apivalidation.ValidateNonnegativeField(*s.StartingDeadlineSeconds, p.Child("startingDeadlineSeconds"))...)
	}
	if old == nil || !ptr.Equal(old.TimeZone, s.TimeZone) {
		errs = append(errs, validateTimeZone(s.TimeZone, p.Child("timeZone"))...)
	}
	switch s.ConcurrencyPolicy {
	case batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent:
	case "":
		errs = append(errs, field.Required(p.Child("concurrencyPolicy"), ""))
	default:
		errs = append(errs, field.NotSupported(p.Child("concurrencyPolicy"), s.ConcurrencyPolicy,
			[]batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent}))
	}
	errs = append(errs, validateJobTemplate(s, old, p.Child("jobTemplate", "spec"))...)
	if n := s.SuccessfulJobsHistoryLimit; n != nil {
		errs = append(errs, apivalidation.ValidateNonnegativeField(int64(*n), p.Child("successfulJobsHistoryLimit"))...)
	}
	if n := s.FailedJobsHistoryLimit; n != nil {
		errs = append(errs, apivalidation.ValidateNonnegativeField(int64(*n), p.Child("failedJobsHistoryLimit"))...)
	}
	return errs
}

func validateJobTemplate(s, old *batchv1.CronJobSpec, p *field.Path) field.ErrorList {
	var oldJob *batchv1.JobSpec
	if old != nil {
		oldJob = &old.JobTemplate.Spec
	}
	job := &s.JobTemplate.Spec
	errs := validateJobSpecParts(job, oldJob, p)
	if job.Selector != nil {
		errs = append(errs, field.Invalid(p.Child("selector"), job.Selector, "`selector` will be auto-generated"))
	}
	if ptr.Deref(job.ManualSelector, false) {
		errs = append(errs, field.NotSupported(p.Child("manualSelector"), job.ManualSelector, []string{"nil", "false"}))
	}
	return errs
}

func validateSchedule(s *batchv1.CronJobSpec, allowTZ bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if err := parseSchedule(s.Schedule); err != nil {
		errs = append(errs, field.Invalid(p, s.Schedule, err.Error()))
	}
	if strings.Contains(s.Schedule, "TZ") {
		switch {
		case !allowTZ:
			errs = append(errs, field.Invalid(p, s.Schedule, "cannot use TZ or CRON_TZ in schedule, use timeZone field instead"))
		case s.TimeZone != nil:
			errs = append(errs, field.Invalid(p, s.Schedule, "cannot use both timeZone field and TZ or CRON_TZ in schedule"))
		}
	}
	return errs
}

// parseSchedule turns the parser's panics ("TZ=0" …) into errors.
func parseSchedule(text string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("invalid schedule format: %v", r)
		}
	}()
	_, err = cron.ParseStandard(text)
	return err
}

var timeZonePart = regexp.MustCompile(`^[A-Za-z._0-9+-]{1,14}$`)

// validateTimeZone: https://data.iana.org/time-zones/theory.html#naming
func validateTimeZone(zone *string, p *field.Path) field.ErrorList {
	if zone == nil {
		return nil
	}
	if *zone == "" {
		return field.ErrorList{field.Invalid(p, zone, "timeZone must be nil or non-empty string")}
	}
	for _, part := range strings.Split(*zone, "/") {
		if part == "." || part == ".." || strings.HasPrefix(part, "-") || !timeZonePart.MatchString(part) {
			return field.ErrorList{field.Invalid(p, zone, "unknown time zone "+*zone)}
		}
	}
	var errs field.ErrorList
	if strings.EqualFold(*zone, "Local") {
		errs = append(errs, field.Invalid(p, zone, "timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones"))
	}
	if _, err := time.LoadLocation(*zone); err != nil {
		errs = append(errs, field.Invalid(p, zone, err.Error()))
	}
	return errs
}
