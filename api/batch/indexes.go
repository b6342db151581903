package batch

import (
	"fmt"
	"strconv"
	"strings"
)

// Index lists of Indexed Jobs are intervals in text, for example "1,3-5,7".

// interval is inclusive.
type interval struct{ first, last int32 }

func parseInterval(text string, completions int32) (interval, error) {
	parts := strings.Split(text, "-")
	if len(parts) > 2 {
		return interval{}, fmt.Errorf("the fragment %q violates the requirement that an index interval can have at most two parts separated by '-'", text)
	}
	var ends [2]int
	for i, part := range parts {
		n, err := strconv.Atoi(part)
		if err != nil {
			return interval{}, fmt.Errorf("cannot convert string to integer for index: %q", part)
		}
		if n >= int(completions) {
			return interval{}, fmt.Errorf("too large index: %q", part)
		}
		ends[i] = n
	}
	if len(parts) == 1 {
		ends[1] = ends[0]
	} else if ends[0] >= ends[1] {
		return interval{}, fmt.Errorf("non-increasing order, previous: %d, current: %d", ends[0], ends[1])
	}
	return interval{int32(ends[0]), int32(ends[1])}, nil
}

// countIndexes validates a list and returns how many indexes it holds.
func countIndexes(text string, completions int32) (int32, error) {
	if text == "" {
		return 0, nil
	}
	var total, last int32
	for i, part := range strings.Split(text, ",") {
		v, err := parseInterval(part, completions)
		if err != nil {
			return 0, err
		}
		if i > 0 && last >= v.first {
			return 0, fmt.Errorf("non-increasing order, previous: %d, current: %d", last, v.first)
		}
		total += v.last - v.first + 1
		last = v.last
	}
	return total, nil
}

// overlap returns the first index that both lists hold. What can't be parsed is
// passed over: the format is reported on its own.
func overlap(a, b string, completions int32) (int32, bool) {
	parse := func(text string) []interval {
		var list []interval
		for _, part := range strings.Split(text, ",") {
			if v, err := parseInterval(part, completions); err == nil {
				list = append(list, v)
			}
		}
		return list
	}
	x, y := parse(a), parse(b)
	for len(x) > 0 && len(y) > 0 {
		if x[0].first <= y[0].last && y[0].first <= x[0].last {
			return max(x[0].first, y[0].first), true
		}
		if x[0].first <= y[0].first {
			x = x[1:]
		} else {
			y = y[1:]
		}
	}
	return 0, false
}
