package flowcontrol

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// counts are a level's numbers, kept under its lock.
type counts struct {
	byFlow  map[string]*flowCount // by FlowSchema
	refused map[refusal]int64
}

type refusal struct{ schema, reason string }

type flowCount struct {
	dispatched int64
	waited     time.Duration
}

func newCounts() counts {
	return counts{byFlow: map[string]*flowCount{}, refused: map[refusal]int64{}}
}

func (c *counts) dispatched(schema string, waited time.Duration) {
	f := c.byFlow[schema]
	if f == nil {
		f = &flowCount{}
		c.byFlow[schema] = f
	}
	f.dispatched++
	f.waited += waited
}

func (c *counts) rejected(schema, reason string) { c.refused[refusal{schema, reason}]++ }

// state is a level's numbers at one moment.
type state struct {
	limit, inUse, executing, waiting int
	seats                            seats
	flows                            map[string]flowCount
	refused                          map[refusal]int64
}

func (l *listed) state() state {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := state{limit: l.limit, inUse: l.inUse, executing: l.executing, waiting: l.waiting, seats: l.seats, flows: map[string]flowCount{}, refused: maps.Clone(l.counts.refused)}
	for name, f := range l.counts.byFlow {
		s.flows[name] = *f
	}
	return s
}

// WriteMetrics writes what the levels do in the Prometheus text format, under upstream's names.
func (k *Controller) WriteMetrics(w io.Writer) {
	levels := k.table.Load().levels
	names := slices.Sorted(maps.Keys(levels))
	states := make([]state, len(names))
	for i, n := range names {
		states[i] = levels[n].state()
	}
	const prefix = "apiserver_flowcontrol_"
	for _, g := range []struct {
		name, help string
		value      func(state) int
	}{
		{"nominal_limit_seats", "Seats that a level has a right to.", func(s state) int { return s.seats.nominal }},
		{"lower_limit_seats", "Seats that a level keeps however much it lends.", func(s state) int { return s.seats.least }},
		{"upper_limit_seats", "Seats that a level may have with what it borrows.", func(s state) int { return s.seats.most }},
		{"current_limit_seats", "Seats that a level has now.", func(s state) int { return s.limit }},
		{"current_executing_seats", "Seats that requests in work take.", func(s state) int { return s.inUse }},
		{"current_executing_requests", "Requests in work.", func(s state) int { return s.executing }},
		{"current_inqueue_requests", "Requests that wait.", func(s state) int { return s.waiting }},
	} {
		fmt.Fprintf(w, "# HELP %s%s %s\n# TYPE %s%s gauge\n", prefix, g.name, g.help, prefix, g.name)
		for i, n := range names {
			fmt.Fprintf(w, "%s%s{priority_level=%q} %d\n", prefix, g.name, n, g.value(states[i]))
		}
	}
	perFlow := func(name, kind, help string, line func(labels string, f flowCount)) {
		fmt.Fprintf(w, "# HELP %s%s %s\n# TYPE %s%s %s\n", prefix, name, help, prefix, name, kind)
		for i, n := range names {
			for _, schema := range slices.Sorted(maps.Keys(states[i].flows)) {
				line(fmt.Sprintf("flow_schema=%q,priority_level=%q", schema, n), states[i].flows[schema])
			}
		}
	}
	perFlow("dispatched_requests_total", "counter", "Requests that went to work.", func(labels string, f flowCount) {
		fmt.Fprintf(w, "%sdispatched_requests_total{%s} %d\n", prefix, labels, f.dispatched)
	})
	perFlow("request_wait_duration_seconds", "summary", "How long requests waited that went to work.", func(labels string, f flowCount) {
		fmt.Fprintf(w, "%srequest_wait_duration_seconds_sum{%s} %g\n", prefix, labels, f.waited.Seconds())
		fmt.Fprintf(w, "%srequest_wait_duration_seconds_count{%s} %d\n", prefix, labels, f.dispatched)
	})
	fmt.Fprintf(w, "# HELP %srejected_requests_total Requests refused with 429.\n# TYPE %srejected_requests_total counter\n", prefix, prefix)
	for i, n := range names {
		keys := slices.SortedFunc(maps.Keys(states[i].refused), func(a, b refusal) int {
			return cmp.Or(strings.Compare(a.schema, b.schema), strings.Compare(a.reason, b.reason))
		})
		for _, r := range keys {
			fmt.Fprintf(w, "%srejected_requests_total{flow_schema=%q,priority_level=%q,reason=%q} %d\n", prefix, r.schema, n, r.reason, states[i].refused[r])
		}
	}
}
