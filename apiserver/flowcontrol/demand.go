package flowcontrol

import (
	"math"
	"time"
)

// demand is how many seats a level has wanted over a while.
type demand struct {
	since, last time.Time
	now         float64
	sum, square float64 // integrals over time
	high        float64
	smooth      float64 // over all whiles so far
}

func (d *demand) advance(now time.Time) {
	if dt := now.Sub(d.last).Seconds(); dt > 0 {
		d.sum += d.now * dt
		d.square += d.now * d.now * dt
		d.last = now
	}
}

func (d *demand) set(now time.Time, seats float64) {
	d.advance(now)
	d.now = seats
	d.high = max(d.high, seats)
}

// decay is how much of the smoothed demand lasts from one while to the next: half of it is
// forgotten after five minutes (KEP-1040).
const decay = 0.977

// take ends a while: it returns its highest demand and the smoothed one.
func (d *demand) take(now time.Time) (high, smooth float64) {
	d.advance(now)
	high = d.high
	envelope := high
	if dt := d.last.Sub(d.since).Seconds(); dt > 0 {
		mean := d.sum / dt
		envelope = min(high, mean+math.Sqrt(max(d.square/dt-mean*mean, 0)))
	}
	d.smooth = max(envelope, decay*d.smooth+(1-decay)*envelope)
	d.since, d.sum, d.square, d.high = d.last, 0, 0, d.now
	return high, d.smooth
}
