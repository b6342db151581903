package cluster

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"slices"
	"time"

	"github.com/skiff-k8s/skiff/component"
)

// startupGarbage is how long after its start a process gives back what starting took:
// decoded certificates, schemas, first lists. Left alone, the collector would first look two
// minutes later, and an idle process keep the memory until then.
const startupGarbage = 5 * time.Second

// memoryInterval is how often it is looked at how busy the process is.
const memoryInterval = 15 * time.Second

// busyBytes is what a busy process allocates in an interval. An idle control plane
// allocates some 3 MB, and where more is allocated the collector works by itself.
const busyBytes = 32 << 20

// calmTimes are after how many calm intervals memory is given back: when a load ends, when
// the caches have let go of what they kept for those who might come back, and once the store
// has been compacted.
var calmTimes = []int{1, 3, 6, 30}

// pacer decides when memory is given back.
type pacer struct {
	before uint64
	calm   int
}

// step takes the bytes allocated since the process began.
func (p *pacer) step(allocated uint64) (giveBack bool) {
	busy := allocated-p.before > busyBytes
	p.before = allocated
	if busy {
		p.calm = 0
		return false
	}
	p.calm++
	return slices.Contains(calmTimes, p.calm)
}

// trim gives memory back once a process is calm.
func trim() component.Member {
	return component.Member{Name: "memory", Background: true, Component: component.Func(func(ctx context.Context) error {
		t := time.NewTimer(startupGarbage)
		defer t.Stop()
		allocs := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
		read := func() uint64 {
			metrics.Read(allocs)
			return allocs[0].Value.Uint64()
		}
		p := pacer{}
		for first := true; ; first = false {
			select {
			case <-ctx.Done():
				return nil
			case <-t.C:
			}
			// The first look is at the start's own work, which is over.
			if p.step(read()) || first {
				debug.FreeOSMemory()
			}
			t.Reset(memoryInterval)
		}
	})}
}
