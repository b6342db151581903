package cronjob

import (
	"fmt"
	"strings"
	"time"

	"github.com/robfig/cron/v3"
	batchv1 "k8s.io/api/batch/v1"
)

// parse reads a schedule in its time zone, which is the process's when none is named.
func parse(c *batchv1.CronJob) (cron.Schedule, error) {
	spec := c.Spec.Schedule
	if c.Spec.TimeZone != nil && !strings.Contains(spec, "TZ") {
		if _, err := time.LoadLocation(*c.Spec.TimeZone); err != nil {
			return nil, fmt.Errorf("time zone %q is unknown: %w", *c.Spec.TimeZone, err)
		}
		spec = fmt.Sprintf("TZ=%s %s", *c.Spec.TimeZone, spec)
	}
	s, err := cron.ParseStandard(spec)
	if err != nil {
		return nil, fmt.Errorf("schedule %q: %w", c.Spec.Schedule, err)
	}
	return s, nil
}

// due finds the last time before now that a Job should have been made, the zero time for
// none; missed counts the times that passed, manyMissed being "too many to count".
func due(c *batchv1.CronJob, s cron.Schedule, now time.Time) (last time.Time, missed int) {
	from := c.CreationTimestamp.Time
	if c.Status.LastScheduleTime != nil {
		from = c.Status.LastScheduleTime.Time
	}
	if d := c.Spec.StartingDeadlineSeconds; d != nil {
		if earliest := now.Add(-time.Duration(*d) * time.Second); earliest.After(from) {
			from = earliest
		}
	}
	first := s.Next(from)
	if first.IsZero() || first.After(now) {
		return time.Time{}, 0
	}
	second := s.Next(first)
	if second.IsZero() || second.After(now) {
		return first, 1
	}
	// Jump near the end by the interval of the first two, then walk.
	interval := second.Sub(first)
	if interval < time.Second {
		return first, manyMissed
	}
	missed = int(now.Sub(first)/interval) + 1
	at := first
	if jump := now.Sub(first)/interval - 1; jump > 0 {
		at = s.Next(first.Add(jump*interval - time.Nanosecond))
	}
	last = first
	for !at.IsZero() && !at.After(now) {
		last = at
		at = s.Next(at)
	}
	return last, missed
}

// manyMissed is what deserves a warning: most likely the clock jumped.
const manyMissed = 101

// next is how long until the next time.
func next(s cron.Schedule, now time.Time) time.Duration {
	at := s.Next(now)
	if at.IsZero() {
		return 0
	}
	return at.Sub(now) + 100*time.Millisecond
}

// jobName is the same for the same time, so that two tries make one Job.
func jobName(c *batchv1.CronJob, at time.Time) string {
	return fmt.Sprintf("%s-%d", c.Name, at.Unix()/60)
}
