package pods

import "time"

// Back-off between restarts of a container that ends, as upstream: 10 s doubling
// to 5 min, forgotten after 10 min of running.
const (
	firstCrashWait = 10 * time.Second
	maxCrashWait   = 5 * time.Minute
)

type crashLoop struct {
	wait time.Duration
	last time.Time // when it was restarted last
	told string    // container for whose end an event was made
}

// until says until when a container that ended at a time has to wait; zero: not at all.
func (c *crashLoop) until(now, finished time.Time) time.Time {
	if c == nil || finished.Sub(c.last) > 2*maxCrashWait {
		return time.Time{}
	}
	if end := finished.Add(c.wait); now.Before(end) {
		return end
	}
	return time.Time{}
}

// restarted counts a restart of a container that ended at a time.
func (c *crashLoop) restarted(now, finished time.Time) *crashLoop {
	if c == nil || finished.Sub(c.last) > 2*maxCrashWait {
		return &crashLoop{wait: firstCrashWait, last: now}
	}
	return &crashLoop{wait: min(2*c.wait, maxCrashWait), last: now}
}
