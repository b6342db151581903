package nodelifecycle

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestZonesAgainstWalk compares with what a walk over all nodes finds.
func TestZonesAgainstWalk(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	z, nodes := newZones(), map[string]fare{}
	for step := range 20000 {
		name := fmt.Sprint("n", r.IntN(8))
		if r.IntN(3) == 0 {
			z.remove(name)
			delete(nodes, name)
		} else {
			f := fare{zone{"r", fmt.Sprint(r.IntN(3))}, r.IntN(3) == 0}
			z.set(name, f)
			nodes[name] = f
		}
		counts := map[zone]zoneCount{}
		for _, f := range nodes {
			c := counts[f.zone]
			if f.ready {
				c.ready++
			} else {
				c.notReady++
			}
			counts[f.zone] = c
		}
		allDown := true
		for _, c := range counts {
			allDown = allDown && c.full()
		}
		if fmt.Sprint(counts) != fmt.Sprint(z.counts) || allDown != z.allDown() {
			t.Fatalf("step %d: %v, all down %v; a walk finds %v, %v", step, z.counts, z.allDown(), counts, allDown)
		}
	}
}
