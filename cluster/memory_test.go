package cluster

import (
	"fmt"
	"testing"
)

func TestMemoryIsGivenBackWhenCalm(t *testing.T) {
	const idle, busy = 3 << 20, busyBytes + 1
	var p pacer
	allocated := uint64(0)
	run := func(n int, bytes uint64) (at []int) {
		for i := 1; i <= n; i++ {
			allocated += bytes
			if p.step(allocated) {
				at = append(at, i)
			}
		}
		return at
	}
	for _, c := range []struct {
		n     int
		bytes uint64
		want  string
	}{
		{10, busy, "[]"},
		{100, idle, "[1 3 6 30]"}, // then no more
		{1000, idle, "[]"},
		{1, busy, "[]"},
		{4, idle, "[1 3]"},
		{5, busy, "[]"}, // before it was done
		{40, idle, "[1 3 6 30]"},
	} {
		if got := fmt.Sprint(run(c.n, c.bytes)); got != c.want {
			t.Errorf("%d times %d bytes: given back at %s, want %s", c.n, c.bytes, got, c.want)
		}
	}
}
