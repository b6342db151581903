package ttlafterfinished

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
)

// job ended some time ago, or not at all for a negative time.
func job(name string, ttl *int32, ago time.Duration, how batchv1.JobConditionType) *batchv1.Job {
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), ResourceVersion: "1"}, Spec: batchv1.JobSpec{TTLSecondsAfterFinished: ttl}}
	if ago >= 0 {
		j.Status.Conditions = []batchv1.JobCondition{{Type: how, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(time.Now().Add(-ago))}}
	}
	return j
}

// TestJobsGoWhenTheirTimeIsOver and not before; those that have no time or have not ended stay.
func TestJobsGoWhenTheirTimeIsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		suspended := job("suspended", ptr.To[int32](0), 0, batchv1.JobSuspended)
		e := controllertest.New(t, suspended,
			job("no-ttl", nil, time.Hour, batchv1.JobComplete), job("runs", ptr.To[int32](0), -1, ""),
			job("at-once", ptr.To[int32](0), 0, batchv1.JobComplete), job("overdue", ptr.To[int32](10), time.Hour, batchv1.JobFailed),
			job("failed", ptr.To[int32](60), 30*time.Second, batchv1.JobFailed), job("later", ptr.To[int32](100), 0, batchv1.JobComplete))
		c, err := New(e.Config)
		if err != nil {
			t.Fatal(err)
		}
		e.Start(c)
		want := func(names string) {
			t.Helper()
			list, err := e.Client.BatchV1().Jobs("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, j := range list.Items {
				got = append(got, j.Name)
			}
			if s := strings.Join(got, " "); s != names {
				t.Errorf("%s, want %s", s, names)
			}
		}
		change := func(name string, f func(*batchv1.Job)) {
			t.Helper()
			j, err := e.Client.BatchV1().Jobs("ns").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			j = j.DeepCopy()
			f(j)
			if _, err := e.Client.BatchV1().Jobs("ns").Update(t.Context(), j, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			e.Settle()
		}
		want("failed later no-ttl runs suspended")
		e.After(27 * time.Second)
		want("failed later no-ttl runs suspended")
		e.After(4 * time.Second)
		want("later no-ttl runs suspended")
		// Raised before its end, it lives longer; given to one that has none, it ends it.
		change("later", func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = ptr.To[int32](1000) })
		e.After(200 * time.Second)
		want("later no-ttl runs suspended")
		change("no-ttl", func(j *batchv1.Job) { j.Spec.TTLSecondsAfterFinished = ptr.To[int32](60) })
		want("later runs suspended")
		change("runs", func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
		})
		want("later suspended")
		e.After(time.Hour)
		want("suspended")
	})
}
