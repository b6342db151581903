package cronjob

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// TestTimeZones: schedules are read in the zone that is named, over changes of its clocks too.
func TestTimeZones(t *testing.T) {
	at := func(s string) time.Time {
		v, err := time.Parse(time.RFC3339, s)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, tt := range []struct{ schedule, zone, last, now, want string }{
		{"0 9 * * *", "Etc/UTC", "2026-01-01T09:00:00Z", "2026-01-02T09:00:00Z", "2026-01-02T09:00:00Z"},
		{"0 9 * * *", "Asia/Kolkata", "2026-01-01T03:30:00Z", "2026-01-02T08:00:00Z", "2026-01-02T03:30:00Z"},
		{"0 9 * * *", "America/New_York", "2026-01-01T14:00:00Z", "2026-01-02T13:59:59Z", ""},
		{"0 9 * * *", "America/New_York", "2026-01-01T14:00:00Z", "2026-01-02T14:00:00Z", "2026-01-02T14:00:00Z"},
		// Clocks go forward on 8 March and back on 1 November 2026.
		{"0 9 * * *", "America/New_York", "2026-03-07T14:00:00Z", "2026-03-08T13:00:00Z", "2026-03-08T13:00:00Z"},
		{"0 9 * * *", "America/New_York", "2026-10-31T13:00:00Z", "2026-11-01T13:30:00Z", ""},
		{"0 9 * * *", "America/New_York", "2026-10-31T13:00:00Z", "2026-11-01T14:00:00Z", "2026-11-01T14:00:00Z"},
		// 02:30 does not exist on 8 March: the next is a day later.
		{"30 2 * * *", "America/New_York", "2026-03-07T07:30:00Z", "2026-03-08T23:00:00Z", ""},
		{"30 2 * * *", "America/New_York", "2026-03-07T07:30:00Z", "2026-03-09T06:30:00Z", "2026-03-09T06:30:00Z"},
	} {
		c := &batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: tt.schedule, TimeZone: ptr.To(tt.zone)},
			Status: batchv1.CronJobStatus{LastScheduleTime: ptr.To(metav1.NewTime(at(tt.last)))}}
		s, err := parse(c)
		if err != nil {
			t.Fatal(err)
		}
		last, _ := due(c, s, at(tt.now))
		got := ""
		if !last.IsZero() {
			got = last.UTC().Format(time.RFC3339)
		}
		if got != tt.want {
			t.Errorf("%q in %s at %s after %s: %q, want %q", tt.schedule, tt.zone, tt.now, tt.last, got, tt.want)
		}
	}
	for _, zone := range []string{"Nowhere/Land", "../etc/passwd"} {
		if _, err := parse(&batchv1.CronJob{Spec: batchv1.CronJobSpec{Schedule: "* * * * *", TimeZone: &zone}}); err == nil {
			t.Errorf("zone %q is taken", zone)
		}
	}
}
