package nodettl

import "testing"

func TestStepsHaveHysteresis(t *testing.T) {
	step := 0
	for _, tt := range []struct{ nodes, seconds int }{{1, 0}, {100, 0}, {101, 15}, {95, 15}, {89, 0}, {5000, 300}, {1850, 300}, {1700, 60}, {10, 0}} {
		step = next(step, tt.nodes)
		if got := steps[step].seconds; got != tt.seconds {
			t.Errorf("%d nodes: %d s, want %d", tt.nodes, got, tt.seconds)
		}
	}
}
