package batch

import (
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func cronJob(change func(*batchv1.CronJob)) *batchv1.CronJob {
	c := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "nightly", Namespace: "default", CreationTimestamp: metav1.Unix(1000, 0)},
		Spec:       batchv1.CronJobSpec{Schedule: "0 3 * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: podTemplate()}}},
	}
	if change != nil {
		change(c)
	}
	return c
}

func TestCronJobDefaults(t *testing.T) {
	c := cronJob(nil)
	apitest.Want(t, apitest.Create(cronJobs(), c))
	s := c.Spec
	if s.ConcurrencyPolicy != "Allow" || *s.Suspend || *s.SuccessfulJobsHistoryLimit != 3 || *s.FailedJobsHistoryLimit != 1 {
		t.Errorf("%+v", s)
	}
	if s.JobTemplate.Spec.Completions != nil {
		t.Error("the job's own defaults come when it is created")
	}
	if s.JobTemplate.Spec.Template.Spec.DNSPolicy == "" {
		t.Error("the pod template is not defaulted")
	}
}

func TestCronJobValidation(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*batchv1.CronJob)
		errs   []string
	}{
		"no schedule":  {func(c *batchv1.CronJob) { c.Spec.Schedule = "" }, []string{"spec.schedule: Required value"}},
		"bad schedule": {func(c *batchv1.CronJob) { c.Spec.Schedule = "sometimes" }, []string{`spec.schedule: Invalid value: "sometimes": expected exactly 5 fields, found 1: [sometimes]`}},
		"panicking schedule": {func(c *batchv1.CronJob) { c.Spec.Schedule = "TZ=0" },
			[]string{`spec.schedule: Invalid value: "TZ=0": invalid schedule format: `, `spec.schedule: Invalid value: "TZ=0": cannot use TZ or CRON_TZ in schedule, use timeZone field instead`}},
		"zone":       {func(c *batchv1.CronJob) { c.Spec.TimeZone = ptr.To("Mars/Olympus") }, []string{`spec.timeZone: Invalid value: "Mars/Olympus": unknown time zone Mars/Olympus`}},
		"local":      {func(c *batchv1.CronJob) { c.Spec.TimeZone = ptr.To("Local") }, []string{`spec.timeZone: Invalid value: "Local": timeZone must be an explicit time zone`}},
		"policy":     {func(c *batchv1.CronJob) { c.Spec.ConcurrencyPolicy = "Race" }, []string{`spec.concurrencyPolicy: Unsupported value: "Race": supported values: "Allow", "Forbid", "Replace"`}},
		"long name":  {func(c *batchv1.CronJob) { c.Name = strings.Repeat("a", 53) }, []string{"metadata.name: Invalid value"}},
		"selector":   {func(c *batchv1.CronJob) { c.Spec.JobTemplate.Spec.Selector = &metav1.LabelSelector{} }, []string{"spec.jobTemplate.spec.selector: Invalid value: {}: `selector` will be auto-generated"}},
		"manual":     {func(c *batchv1.CronJob) { c.Spec.JobTemplate.Spec.ManualSelector = ptr.To(true) }, []string{"spec.jobTemplate.spec.manualSelector: Unsupported value: true"}},
		"restart":    {func(c *batchv1.CronJob) { c.Spec.JobTemplate.Spec.Template.Spec.RestartPolicy = "" }, []string{"spec.jobTemplate.spec.template.spec.restartPolicy: Required value"}},
		"historical": {func(c *batchv1.CronJob) { c.Spec.FailedJobsHistoryLimit = ptr.To[int32](-1) }, []string{"spec.failedJobsHistoryLimit: Invalid value: -1"}},
	} {
		t.Run(name, func(t *testing.T) { apitest.Want(t, apitest.Create(cronJobs(), cronJob(c.change)), c.errs...) })
	}
}

func TestCronJobTable(t *testing.T) {
	c := cronJob(nil)
	apitest.Create(cronJobs(), c)
	c.Status.LastScheduleTime = ptr.To(metav1.Unix(1030, 0))
	got := cronJobs().Row(c, time.Unix(1060, 0))
	if !slices.Equal(got, []any{"nightly", "0 3 * * *", "<none>", "False", int64(0), "30s", "60s", "c", "i", "<none>"}) {
		t.Errorf("%v", got)
	}
}
