package job_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
	"github.com/skiff-k8s/skiff/controllers/job"
)

type flow struct {
	*controllertest.Env
	t *testing.T
}

func start(t *testing.T) flow {
	e := controllertest.New(t)
	c, err := job.New(e.Config)
	if err != nil {
		t.Fatal(err)
	}
	e.Start(c)
	return flow{e, t}
}

func newJob(parallelism, completions int32, change ...func(*batchv1.Job)) *batchv1.Job {
	j := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Name: "j", Namespace: "ns"},
		Spec: batchv1.JobSpec{
			Parallelism: ptr.To(parallelism), Completions: ptr.To(completions), BackoffLimit: ptr.To[int32](3),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"job": "j"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"job": "j"}},
				Spec:       corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			},
		},
	}
	for _, c := range change {
		c(j)
	}
	return j
}

func (f flow) create(j *batchv1.Job) {
	f.t.Helper()
	if _, err := f.Client.BatchV1().Jobs("ns").Create(f.t.Context(), j, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	f.Settle()
}

func (f flow) get() *batchv1.Job {
	f.t.Helper()
	j, err := f.Client.BatchV1().Jobs("ns").Get(f.t.Context(), "j", metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return j
}

func (f flow) change(change func(*batchv1.Job)) {
	f.t.Helper()
	j := f.get()
	change(j)
	if _, err := f.Client.BatchV1().Jobs("ns").Update(f.t.Context(), j, metav1.UpdateOptions{}); err != nil {
		f.t.Fatal(err)
	}
	f.Settle()
}

func (f flow) active() []corev1.Pod {
	return slices.DeleteFunc(f.Pods("ns", ""), func(p corev1.Pod) bool {
		return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
	})
}

// end ends up to n active pods that match.
func (f flow) end(n int, phase corev1.PodPhase, exit int32, match ...func(corev1.Pod) bool) {
	f.t.Helper()
	for _, p := range f.active() {
		if n == 0 {
			break
		}
		if len(match) > 0 && !match[0](p) {
			continue
		}
		n--
		p.Status.Phase = phase
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{ExitCode: exit, FinishedAt: metav1.NewTime(time.Now())}}}}
		if _, err := f.Client.CoreV1().Pods("ns").UpdateStatus(f.t.Context(), &p, metav1.UpdateOptions{}); err != nil {
			f.t.Fatal(err)
		}
	}
	f.Settle()
}

func conditions(j *batchv1.Job) string {
	var all []string
	for _, c := range j.Status.Conditions {
		all = append(all, fmt.Sprintf("%s=%s(%s)", c.Type, c.Status, c.Reason))
	}
	return strings.Join(all, " ")
}

func (f flow) want(active, succeeded, failed int32, conds string) {
	f.t.Helper()
	j := f.get()
	if st := j.Status; st.Active != active || st.Succeeded != succeeded || st.Failed != failed {
		f.t.Errorf("active %d succeeded %d failed %d, want %d %d %d", st.Active, st.Succeeded, st.Failed, active, succeeded, failed)
	}
	if got := conditions(j); got != conds {
		f.t.Errorf("conditions %q, want %q", got, conds)
	}
	if u := j.Status.UncountedTerminatedPods; u == nil || len(u.Succeeded)+len(u.Failed) > 0 {
		f.t.Errorf("uncounted %+v", u)
	}
}

const completed = "SuccessCriteriaMet=True(CompletionsReached) Complete=True(CompletionsReached)"

func TestCompletes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.create(newJob(2, 5))
		f.want(2, 0, 0, "")
		if p := f.Pods("ns", "")[0]; !slices.Contains(p.Finalizers, batchv1.JobTrackingFinalizer) {
			t.Errorf("finalizers %v", p.Finalizers)
		}
		f.end(2, corev1.PodSucceeded, 0)
		f.want(2, 2, 0, "")
		f.end(2, corev1.PodSucceeded, 0)
		f.want(1, 4, 0, "")
		f.end(1, corev1.PodSucceeded, 0)
		f.want(0, 5, 0, completed)
		if f.get().Status.CompletionTime == nil {
			t.Error("no completionTime")
		}
		for _, p := range f.Pods("ns", "") {
			if len(p.Finalizers) > 0 {
				t.Errorf("pod %s keeps %v", p.Name, p.Finalizers)
			}
		}
		if got := len(f.Pods("ns", "")); got != 5 {
			t.Errorf("%d pods in all", got)
		}
	})
}

func TestFailsAfterBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.create(newJob(1, 1))
		for i, wait := range []time.Duration{10, 20, 40} {
			f.end(1, corev1.PodFailed, 1)
			f.After((wait - 3) * time.Second)
			if n := len(f.active()); n != 0 {
				t.Fatalf("failure %d: replaced before %d s", i, wait)
			}
			f.After(4 * time.Second)
			if n := len(f.active()); n != 1 {
				t.Fatalf("failure %d: %d active pods after %d s", i, n, wait)
			}
		}
		f.want(1, 0, 3, "")
		f.end(1, corev1.PodFailed, 1)
		f.want(0, 0, 4, "FailureTarget=True(BackoffLimitExceeded) Failed=True(BackoffLimitExceeded)")
		f.After(time.Hour)
		if n := len(f.Pods("ns", "")); n != 4 {
			t.Errorf("%d pods", n)
		}
	})
}

func TestFailingJobStopsTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.create(newJob(4, 4, func(j *batchv1.Job) { j.Spec.BackoffLimit = ptr.To[int32](0) }))
		f.end(1, corev1.PodFailed, 1)
		if n := len(f.active()); n != 0 {
			t.Errorf("%d pods still run", n)
		}
		if got := conditions(f.get()); got != "FailureTarget=True(BackoffLimitExceeded) Failed=True(BackoffLimitExceeded)" {
			t.Error(got)
		}
	})
}

func TestSuspendAndDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.create(newJob(2, 2, func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true); j.Spec.ActiveDeadlineSeconds = ptr.To[int64](60) }))
		f.want(0, 0, 0, "Suspended=True(JobSuspended)")
		f.After(time.Hour)
		f.change(func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(false) })
		f.want(2, 0, 0, "Suspended=False(JobResumed)")
		f.After(30 * time.Second)
		f.change(func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) })
		f.want(0, 0, 0, "Suspended=True(JobSuspended)")
		f.change(func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(false) })
		f.After(45 * time.Second) // counted anew
		f.want(2, 0, 0, "Suspended=False(JobResumed)")
		f.After(20 * time.Second)
		if got := conditions(f.get()); !strings.HasSuffix(got, "FailureTarget=True(DeadlineExceeded) Failed=True(DeadlineExceeded)") {
			t.Error(got)
		}
		if n := len(f.active()); n != 0 {
			t.Errorf("%d pods still run", n)
		}
	})
}

func indexed(j *batchv1.Job) { j.Spec.CompletionMode = ptr.To(batchv1.IndexedCompletion) }

func at(ix string) func(corev1.Pod) bool {
	return func(p corev1.Pod) bool { return p.Annotations[batchv1.JobCompletionIndexAnnotation] == ix }
}

func TestIndexed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.create(newJob(3, 5, indexed))
		var names []string
		for _, p := range f.active() {
			names = append(names, p.Spec.Hostname+" "+p.GenerateName+" "+p.Labels[batchv1.JobCompletionIndexAnnotation]+" "+p.Spec.Containers[0].Env[0].Name)
		}
		slices.Sort(names)
		if got := strings.Join(names, ", "); got != "j-0 j-0- 0 JOB_COMPLETION_INDEX, j-1 j-1- 1 JOB_COMPLETION_INDEX, j-2 j-2- 2 JOB_COMPLETION_INDEX" {
			t.Error(got)
		}
		f.end(1, corev1.PodSucceeded, 0, at("1"))
		f.want(3, 1, 0, "")
		f.end(1, corev1.PodFailed, 1, at("0"))
		f.After(15 * time.Second)
		f.want(3, 1, 1, "")
		f.end(1, corev1.PodSucceeded, 0, at("0"))
		f.end(1, corev1.PodSucceeded, 0, at("3"))
		if got := f.get().Status.CompletedIndexes; got != "0,1,3" {
			t.Errorf("completedIndexes %q", got)
		}
		f.end(9, corev1.PodSucceeded, 0)
		f.want(0, 5, 1, completed)
		if got := f.get().Status.CompletedIndexes; got != "0-4" {
			t.Errorf("completedIndexes %q", got)
		}
	})
}

func TestBackoffLimitPerIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.create(newJob(2, 2, indexed, func(j *batchv1.Job) { j.Spec.BackoffLimitPerIndex = ptr.To[int32](1) }))
		f.end(1, corev1.PodFailed, 1, at("0"))
		f.After(15 * time.Second)
		var counts []string
		for _, p := range f.active() {
			counts = append(counts, p.Annotations[batchv1.JobIndexFailureCountAnnotation])
		}
		slices.Sort(counts)
		if !slices.Equal(counts, []string{"0", "1"}) {
			t.Errorf("failure counts %v", counts)
		}
		f.end(1, corev1.PodFailed, 1, at("0"))
		if got := ptr.Deref(f.get().Status.FailedIndexes, ""); got != "0" {
			t.Errorf("failedIndexes %q", got)
		}
		f.end(1, corev1.PodSucceeded, 0, at("1"))
		f.want(0, 1, 2, "FailureTarget=True(FailedIndexes) Failed=True(FailedIndexes)")
	})
}

func TestPodFailurePolicy(t *testing.T) {
	policy := func(j *batchv1.Job) {
		j.Spec.PodReplacementPolicy = ptr.To(batchv1.Failed)
		j.Spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{
			{Action: batchv1.PodFailurePolicyActionFailJob, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{42}}},
			{Action: batchv1.PodFailurePolicyActionIgnore, OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{7}}},
		}}
	}
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.create(newJob(2, 2, policy, func(j *batchv1.Job) { j.Spec.BackoffLimit = ptr.To[int32](0) }))
		f.end(1, corev1.PodFailed, 7)
		f.After(15 * time.Second)
		f.want(2, 0, 0, "") // ignored
		f.end(1, corev1.PodFailed, 42)
		if got := conditions(f.get()); got != "FailureTarget=True(PodFailurePolicy) Failed=True(PodFailurePolicy)" {
			t.Error(got)
		}
		if got := f.get().Status.Conditions[1].Message; !strings.Contains(got, "failed with exit code 42 matching FailJob rule at index 0") {
			t.Error(got)
		}
	})
}

func TestSuccessPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.create(newJob(3, 3, indexed, func(j *batchv1.Job) {
			j.Spec.SuccessPolicy = &batchv1.SuccessPolicy{Rules: []batchv1.SuccessPolicyRule{{SucceededIndexes: ptr.To("0,2"), SucceededCount: ptr.To[int32](1)}}}
		}))
		f.end(1, corev1.PodSucceeded, 0, at("1"))
		f.want(2, 1, 0, "")
		f.end(1, corev1.PodSucceeded, 0, at("2"))
		f.want(0, 2, 0, "SuccessCriteriaMet=True(SuccessPolicy) Complete=True(SuccessPolicy)")
		if n := len(f.active()); n != 0 {
			t.Errorf("%d pods still run", n)
		}
	})
}

func TestJobDeletedFreesPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.create(newJob(2, 2))
		if err := f.Client.BatchV1().Jobs("ns").Delete(t.Context(), "j", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		f.Settle()
		for _, p := range f.Pods("ns", "") {
			if len(p.Finalizers) > 0 {
				t.Errorf("pod %s keeps %v", p.Name, p.Finalizers)
			}
		}
	})
}

func TestManagedByOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t)
		f.create(newJob(2, 2, func(j *batchv1.Job) { j.Spec.ManagedBy = ptr.To("example.com/other") }))
		if n := len(f.Pods("ns", "")); n != 0 {
			t.Errorf("%d pods", n)
		}
	})
}
