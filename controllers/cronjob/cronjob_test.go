package cronjob

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
)

func TestDue(t *testing.T) {
	at := func(s string) time.Time {
		v, err := time.Parse(time.DateTime, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	tests := []struct {
		schedule, created, last, now string
		deadline                     int64
		want                         string
		missed                       int
	}{
		{"*/5 * * * *", "2026-01-01 00:01:00", "", "2026-01-01 00:04:59", 0, "", 0},
		{"*/5 * * * *", "2026-01-01 00:01:00", "", "2026-01-01 00:05:00", 0, "2026-01-01 00:05:00", 1},
		{"*/5 * * * *", "2026-01-01 00:01:00", "2026-01-01 00:05:00", "2026-01-01 00:21:00", 0, "2026-01-01 00:20:00", 3},
		{"*/5 * * * *", "2026-01-01 00:01:00", "2026-01-01 00:05:00", "2026-01-01 00:21:00", 30, "", 0},
		{"* * * * *", "2026-01-01 00:00:00", "", "2026-01-02 00:00:30", 0, "2026-01-02 00:00:00", 1440},
		{"0 9 * * 1-5", "2026-01-02 08:00:00", "2026-01-02 09:00:00", "2026-01-05 10:00:00", 0, "2026-01-05 09:00:00", 1},
		{"0 0 31 * *", "2026-01-30 00:00:00", "2026-01-31 00:00:00", "2026-04-01 00:00:00", 0, "2026-03-31 00:00:00", 1},
	}
	for _, tt := range tests {
		cj := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(at(tt.created))}, Spec: batchv1.CronJobSpec{Schedule: tt.schedule, TimeZone: ptr.To("UTC")}}
		if tt.last != "" {
			cj.Status.LastScheduleTime = &metav1.Time{Time: at(tt.last)}
		}
		if tt.deadline > 0 {
			cj.Spec.StartingDeadlineSeconds = &tt.deadline
		}
		s, err := parse(cj)
		if err != nil {
			t.Fatal(err)
		}
		last, missed := due(cj, s, at(tt.now))
		got := ""
		if !last.IsZero() {
			got = last.UTC().Format(time.DateTime)
		}
		if got != tt.want || missed != tt.missed {
			t.Errorf("%q at %s after %q: %q (%d missed), want %q (%d)", tt.schedule, tt.now, tt.last, got, missed, tt.want, tt.missed)
		}
	}
}

func TestMakesAndForgetsJobs(t *testing.T) {
	for _, policy := range []batchv1.ConcurrencyPolicy{batchv1.AllowConcurrent, batchv1.ForbidConcurrent, batchv1.ReplaceConcurrent} {
		t.Run(string(policy), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := controllertest.New(t)
				c, err := New(e.Config)
				if err != nil {
					t.Fatal(err)
				}
				e.Start(c)
				cj := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "tick", Namespace: "ns"}, Spec: batchv1.CronJobSpec{
					Schedule: "*/10 * * * *", ConcurrencyPolicy: policy, SuccessfulJobsHistoryLimit: ptr.To[int32](2), FailedJobsHistoryLimit: ptr.To[int32](1)}}
				if _, err := e.Client.BatchV1().CronJobs("ns").Create(t.Context(), cj, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				jobs := func() []batchv1.Job {
					list, err := e.Client.BatchV1().Jobs("ns").List(t.Context(), metav1.ListOptions{})
					if err != nil {
						t.Fatal(err)
					}
					return list.Items
				}
				status := func() batchv1.CronJobStatus {
					got, err := e.Client.BatchV1().CronJobs("ns").Get(t.Context(), "tick", metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					return got.Status
				}
				e.After(9 * time.Minute)
				if n := len(jobs()); n != 0 {
					t.Fatalf("%d Jobs before the time", n)
				}
				e.After(2 * time.Minute)
				first := jobs()
				if len(first) != 1 || len(status().Active) != 1 || !strings.HasPrefix(first[0].Name, "tick-") || first[0].Annotations[batchv1.CronJobScheduledTimestampAnnotation] == "" {
					t.Fatalf("Jobs %+v, status %+v", first, status())
				}
				e.After(10 * time.Minute) // the first still runs
				want := map[batchv1.ConcurrencyPolicy]int{batchv1.AllowConcurrent: 2, batchv1.ForbidConcurrent: 1, batchv1.ReplaceConcurrent: 1}[policy]
				if got := jobs(); len(got) != want || len(status().Active) != want || policy == batchv1.ReplaceConcurrent && got[0].Name == first[0].Name {
					t.Errorf("%d Jobs, %d active, want %d", len(got), len(status().Active), want)
				}
				// From now on each completes at once.
				for range 6 {
					for _, j := range jobs() {
						if finished(&j) != "" {
							continue
						}
						now := metav1.Now()
						j.Status.CompletionTime = &now
						j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now}}
						if _, err := e.Client.BatchV1().Jobs("ns").UpdateStatus(t.Context(), &j, metav1.UpdateOptions{}); err != nil {
							t.Fatal(err)
						}
					}
					e.After(10 * time.Minute)
				}
				if got := jobs(); len(got) != 3 { // two finished, one active
					t.Errorf("%d Jobs are kept", len(got))
				}
				if st := status(); st.LastSuccessfulTime == nil || len(st.Active) != 1 {
					t.Errorf("status %+v", st)
				}
			})
		})
	}
}
