package batch

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

var ctx = context.Background()

func podTemplate() corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: "Never", Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
}

func job(change func(*batchv1.Job)) *batchv1.Job {
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "pi", Namespace: "default", UID: types.UID("u-1"), CreationTimestamp: metav1.Unix(1000, 0)},
		Spec:       batchv1.JobSpec{Template: podTemplate()},
	}
	if change != nil {
		change(j)
	}
	return j
}

func indexed(n int32) func(*batchv1.Job) {
	return func(j *batchv1.Job) {
		j.Spec.CompletionMode = ptr.To(batchv1.IndexedCompletion)
		j.Spec.Completions, j.Spec.Parallelism = &n, &n
	}
}

func TestJobDefaults(t *testing.T) {
	j := job(nil)
	apitest.Want(t, apitest.Create(jobs(), j))
	s := j.Spec
	if *s.Completions != 1 || *s.Parallelism != 1 || *s.BackoffLimit != 6 || *s.CompletionMode != "NonIndexed" ||
		*s.Suspend || *s.ManualSelector || *s.PodReplacementPolicy != "TerminatingOrFailed" {
		t.Errorf("%+v", s)
	}
	labels := map[string]string{"controller-uid": "u-1", "job-name": "pi",
		"batch.kubernetes.io/controller-uid": "u-1", "batch.kubernetes.io/job-name": "pi"}
	for k, v := range labels {
		if s.Template.Labels[k] != v || j.Labels[k] != v {
			t.Errorf("label %s: %v %v", k, s.Template.Labels, j.Labels)
		}
	}
	if got := metav1.FormatLabelSelector(s.Selector); got != "batch.kubernetes.io/controller-uid=u-1" {
		t.Error(got)
	}

	parallel := job(func(j *batchv1.Job) { j.Spec.Parallelism = ptr.To[int32](3) })
	apitest.Want(t, apitest.Create(jobs(), parallel))
	if parallel.Spec.Completions != nil {
		t.Error("a work queue job has no number of completions")
	}
	own := job(func(j *batchv1.Job) {
		j.Labels = map[string]string{"mine": "1"}
		j.Spec.Template.Labels = map[string]string{"app": "x"}
	})
	apitest.Want(t, apitest.Create(jobs(), own))
	if len(own.Labels) != 1 {
		t.Errorf("labels of its own get more: %v", own.Labels)
	}
	perIndex := job(func(j *batchv1.Job) { indexed(2)(j); j.Spec.BackoffLimitPerIndex = ptr.To[int32](1) })
	apitest.Want(t, apitest.Create(jobs(), perIndex))
	if *perIndex.Spec.BackoffLimit != 1<<31-1 {
		t.Error("a limit per index lifts the limit of all")
	}
}

func TestJobValidation(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*batchv1.Job)
		errs   []string
	}{
		"restart always": {func(j *batchv1.Job) { j.Spec.Template.Spec.RestartPolicy = "" },
			[]string{`spec.template.spec.restartPolicy: Required value: valid values: "OnFailure", "Never"`}},
		"own uid label": {func(j *batchv1.Job) { j.Spec.Template.Labels = map[string]string{"job-name": "other"} },
			[]string{`spec.template.metadata.labels[job-name]: Invalid value: {`}},
		"own selector": {func(j *batchv1.Job) {
			j.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}
		},
			[]string{"spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\",\"batch.kubernetes.io/controller-uid\":\"u-1\"}}: `selector` not auto-generated",
				"spec.template.metadata.labels: Invalid value"}},
		"manual without selector": {func(j *batchv1.Job) { j.Spec.ManualSelector = ptr.To(true) },
			[]string{`spec.selector: Required value`, "spec.template.metadata.labels: Invalid value"}},
		"negative": {func(j *batchv1.Job) {
			j.Spec.Parallelism, j.Spec.Completions, j.Spec.TTLSecondsAfterFinished = ptr.To[int32](-1), ptr.To[int32](-1), ptr.To[int32](-1)
		}, []string{"spec.parallelism: Invalid value: -1", "spec.completions: Invalid value: -1", "spec.ttlSecondsAfterFinished: Invalid value: -1"}},
		"indexed without completions": {func(j *batchv1.Job) {
			j.Spec.CompletionMode, j.Spec.Parallelism = ptr.To(batchv1.IndexedCompletion), ptr.To[int32](100001)
		}, []string{"spec.completions: Required value: when completion mode is Indexed",
			"spec.parallelism: Invalid value: 100001: must be less than or equal to 100000 when completion mode is Indexed"}},
		"indexed name too long": {func(j *batchv1.Job) { j.Name = strings.Repeat("a", 62); indexed(5)(j) },
			[]string{`metadata.name: Invalid value: "` + strings.Repeat("a", 62) + `": will not able to create pod with invalid DNS label`}},
		"max failed": {func(j *batchv1.Job) { indexed(2)(j); j.Spec.MaxFailedIndexes = ptr.To[int32](3) },
			[]string{"spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified", "spec.maxFailedIndexes: Invalid value: 3: must be less than or equal to completions"}},
		"not indexed": {func(j *batchv1.Job) { j.Spec.BackoffLimitPerIndex = ptr.To[int32](3) },
			[]string{"spec.backoffLimitPerIndex: Invalid value: 3: requires indexed completion mode"}},
		"managed by": {func(j *batchv1.Job) { j.Spec.ManagedBy = ptr.To("nobody") },
			[]string{`spec.managedBy: Invalid value: "nobody": must be a domain-prefixed path`}},
		"success policy": {func(j *batchv1.Job) {
			indexed(3)(j)
			j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{}, {SucceededIndexes: ptr.To("0-1,1")}, {SucceededIndexes: ptr.To("0-1"), SucceededCount: ptr.To[int32](3)}}}
		}, []string{"spec.successPolicy.rules[0]: Required value: at least one of succeededCount or succeededIndexes must be specified",
			`spec.successPolicy.rules[1].succeededIndexes: Invalid value: "0-1,1": error parsing succeededIndexes: non-increasing order, previous: 1, current: 1`,
			`spec.successPolicy.rules[2].succeededCount: Invalid value: 3: must be less than or equal to 2 (the number of indexes in the specified succeededIndexes field)`}},
		"failure policy": {func(j *batchv1.Job) {
			j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
				{Action: "Panic", OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: "In", Values: []int32{2, 0, 2}, ContainerName: ptr.To("x")}},
				{Action: "FailIndex", OnPodConditions: []batchv1.PodFailurePolicyOnPodConditionsPattern{{Type: "DisruptionTarget"}}},
				{Action: "Ignore"}}}
		}, []string{`spec.podFailurePolicy.rules[0].action: Unsupported value: "Panic": supported values: "Count", "FailIndex", "FailJob", "Ignore"`,
			`spec.podFailurePolicy.rules[0].onExitCodes.containerName: Invalid value: "x"`,
			`spec.podFailurePolicy.rules[0].onExitCodes.values[1]: Invalid value: 0: must not be 0 for the In operator`,
			`spec.podFailurePolicy.rules[0].onExitCodes.values[2]: Duplicate value: 2`,
			`spec.podFailurePolicy.rules[0].onExitCodes.values: Invalid value: [2,0,2]: must be ordered`,
			`spec.podFailurePolicy.rules[1].action: Invalid value: "FailIndex": requires the backoffLimitPerIndex to be set`,
			`spec.podFailurePolicy.rules[2]: Invalid value: specifying one of OnExitCodes and OnPodConditions is required`}},
	} {
		t.Run(name, func(t *testing.T) { apitest.Want(t, apitest.Create(jobs(), job(c.change)), c.errs...) })
	}
}

func TestJobUpdate(t *testing.T) {
	r := jobs()
	check := func(name string, base func(*batchv1.Job), change func(*batchv1.Job), errs ...string) {
		t.Run(name, func(t *testing.T) {
			old := job(base)
			status := old.Status
			apitest.Want(t, apitest.Create(r, old))
			old.Status = status
			next := old.DeepCopy()
			change(next)
			r.PrepareUpdate(ctx, next, old)
			apitest.Want(t, apitest.Texts(r.ValidateUpdate(ctx, next, old)), errs...)
		})
	}
	image := func(j *batchv1.Job) { j.Spec.Template.Spec.Containers[0].Image = "other" }
	nodes := func(j *batchv1.Job) { j.Spec.Template.Spec.NodeSelector = map[string]string{"disk": "fast"} }
	suspended := func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }
	check("parallelism", nil, func(j *batchv1.Job) { j.Spec.Parallelism = ptr.To[int32](4) })
	check("completions", nil, func(j *batchv1.Job) { j.Spec.Completions = ptr.To[int32](4) }, "spec.completions: Invalid value: 4: field is immutable")
	check("elastic", indexed(2), func(j *batchv1.Job) { indexed(5)(j) })
	check("half elastic", indexed(2), func(j *batchv1.Job) { j.Spec.Completions = ptr.To[int32](5) },
		"spec.completions: Invalid value: 5: can only be modified in tandem with spec.parallelism")
	check("template", nil, image, "spec.template: Invalid value")
	check("node selector of a running job", nil, nodes, "spec.template: Invalid value")
	check("node selector of a suspended job", suspended, nodes)
	check("image of a suspended job", suspended, image, "spec.template.spec: Invalid value")
	check("node selector of a suspended job with pods", func(j *batchv1.Job) { suspended(j); j.Status.Active = 1 }, nodes, "spec.template: Invalid value")
}

func TestJobStatusUpdate(t *testing.T) {
	status := jobs().Subresources[0]
	at := func(s int64) *metav1.Time { return ptr.To(metav1.Unix(s, 0)) }
	condition := func(types ...batchv1.JobConditionType) []batchv1.JobCondition {
		var list []batchv1.JobCondition
		for _, c := range types {
			list = append(list, batchv1.JobCondition{Type: c, Status: corev1.ConditionTrue})
		}
		return list
	}
	for name, c := range map[string]struct {
		old, new batchv1.JobStatus
		spec     func(*batchv1.Job)
		errs     []string
	}{
		"completes": {
			old: batchv1.JobStatus{StartTime: at(1), Active: 1},
			new: batchv1.JobStatus{StartTime: at(1), CompletionTime: at(2), Succeeded: 1, Conditions: condition("SuccessCriteriaMet", "Complete")},
		},
		"completes without the condition before": {
			old: batchv1.JobStatus{StartTime: at(1)}, new: batchv1.JobStatus{StartTime: at(1), CompletionTime: at(2), Conditions: condition("Complete")},
			errs: []string{"status.conditions: Invalid value: cannot set Complete=True condition without the SuccessCriteriaMet=true condition"},
		},
		"completes too early": {
			old:  batchv1.JobStatus{StartTime: at(5)},
			new:  batchv1.JobStatus{StartTime: at(5), CompletionTime: at(2), Active: 1, Conditions: condition("SuccessCriteriaMet", "Complete")},
			errs: []string{"status.completionTime: Invalid value", "status.active: Invalid value: 1: active>0 is invalid for finished job"},
		},
		"never started": {
			new:  batchv1.JobStatus{Conditions: condition("FailureTarget", "Failed")},
			errs: []string{"status.startTime: Required value: startTime is required for finished job"},
		},
		"comes back to life": {
			old:  batchv1.JobStatus{StartTime: at(1), Conditions: condition("FailureTarget", "Failed")},
			new:  batchv1.JobStatus{StartTime: at(1), Conditions: condition("FailureTarget")},
			errs: []string{"status.conditions: Invalid value: cannot disable the terminal Failed=True condition"},
		},
		"counts back": {
			old: batchv1.JobStatus{Failed: 2, Succeeded: 2}, new: batchv1.JobStatus{Failed: 1, Succeeded: 1},
			errs: []string{"status.failed: Invalid value: 1: cannot decrease", "status.succeeded: Invalid value: 1: cannot decrease"},
		},
		"scaled down": {
			spec: indexed(1), old: batchv1.JobStatus{Succeeded: 2, CompletedIndexes: "0"}, new: batchv1.JobStatus{Succeeded: 1, CompletedIndexes: "0"},
		},
		"indexes": {
			spec: func(j *batchv1.Job) { indexed(5)(j); j.Spec.BackoffLimitPerIndex = ptr.To[int32](1) },
			new:  batchv1.JobStatus{CompletedIndexes: "0-2", FailedIndexes: ptr.To("2,9")},
			errs: []string{`status.failedIndexes: Invalid value: "2,9": error parsing failedIndexes: too large index: "9"`,
				`status.failedIndexes: Invalid value: "2,9": failedIndexes and completedIndexes overlap at index: 2`},
		},
		"more ready than active": {
			new:  batchv1.JobStatus{Active: 1, Ready: ptr.To[int32](2)},
			errs: []string{"status.ready: Invalid value: 2: cannot set more ready pods than active"},
		},
		"counted twice": {
			new:  batchv1.JobStatus{UncountedTerminatedPods: &batchv1.UncountedTerminatedPods{Succeeded: []types.UID{"a"}, Failed: []types.UID{"a", ""}}},
			errs: []string{`status.uncountedTerminatedPods.failed[0]: Duplicate value: "a"`, `status.uncountedTerminatedPods.failed[1]: Invalid value: ""`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			old := job(c.spec)
			apitest.Create(jobs(), old)
			next := old.DeepCopy()
			old.Status, next.Status = c.old, c.new
			next.Spec.Parallelism = ptr.To[int32](77)
			status.PrepareUpdate(ctx, next, old)
			if *next.Spec.Parallelism == 77 {
				t.Error("a status update changes the spec")
			}
			apitest.Want(t, apitest.Texts(status.ValidateUpdate(ctx, next, old)), c.errs...)
		})
	}
}

func TestIndexLists(t *testing.T) {
	for text, n := range map[string]int32{"": 0, "0": 1, "1,3-5,7": 5} {
		if got, err := countIndexes(text, 10); err != nil || got != n {
			t.Errorf("%q: %d, %v", text, got, err)
		}
	}
	for _, text := range []string{"x", "5,1", "1-2-3", "3-3", "10", "1,", "2-1"} {
		if _, err := countIndexes(text, 10); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
	if at, ok := overlap("0-2,5", "3,5-6", 10); !ok || at != 5 {
		t.Error(at, ok)
	}
	if _, ok := overlap("0-2", "3", 10); ok {
		t.Error("they do not overlap")
	}
}

func FuzzIndexLists(f *testing.F) {
	f.Add("0-2,5", "3,5-6", int32(10))
	f.Fuzz(func(t *testing.T, a, b string, n int32) {
		x, xErr := countIndexes(a, n)
		y, yErr := countIndexes(b, n)
		if xErr != nil || yErr != nil || x+y > 1000 {
			return
		}
		in := map[int32]bool{}
		for _, list := range []string{a, b} {
			for _, part := range strings.Split(list, ",") {
				v, err := parseInterval(part, n)
				for i := v.first; err == nil && i <= v.last; i++ {
					in[i] = true
				}
			}
		}
		_, shared := overlap(a, b, n)
		if shared != (int32(len(in)) < x+y) {
			t.Errorf("%q and %q of %d: overlap %v, %d of %d indexes differ", a, b, n, shared, len(in), x+y)
		}
	})
}

func TestJobTable(t *testing.T) {
	j := job(func(j *batchv1.Job) {
		j.Status.StartTime, j.Status.Succeeded = ptr.To(metav1.Unix(1010, 0)), 1
	})
	r := jobs()
	apitest.Create(r, j)
	j.Status.StartTime, j.Status.Succeeded = ptr.To(metav1.Unix(1010, 0)), 1
	got := r.Row(j, time.Unix(1070, 0))
	if !slices.Equal(got, []any{"pi", "Running", "1/1", "60s", "70s", "c", "i", "batch.kubernetes.io/controller-uid=u-1"}) {
		t.Errorf("%v", got)
	}
	j.Spec.Completions, j.Spec.Parallelism = nil, ptr.To[int32](3)
	j.Status.Conditions = []batchv1.JobCondition{{Type: "Complete", Status: "True"}}
	j.Status.CompletionTime = ptr.To(metav1.Unix(1015, 0))
	if got := r.Row(j, time.Unix(1070, 0)); got[1] != "Complete" || got[2] != "1/1 of 3" || got[3] != "5s" {
		t.Errorf("%v", got)
	}
	if r.Fields(j)["status.successful"] != "1" || r.DefaultGC != metav1.DeletePropagationOrphan {
		t.Error("fields or garbage collection")
	}
}
