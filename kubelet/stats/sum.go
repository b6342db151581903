package stats

import (
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	statsapi "k8s.io/kubelet/pkg/apis/stats/v1alpha1"
)

func value(v *runtimeapi.UInt64Value) *uint64 {
	if v == nil {
		return nil
	}
	n := v.Value
	return &n
}

func stampOf(nanos int64, now time.Time) time.Time {
	if nanos <= 0 {
		return now
	}
	return time.Unix(0, nanos)
}

func add(a, b *uint64) *uint64 {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	}
	n := *a + *b
	return &n
}

func addCPU(a, b *statsapi.CPUStats) *statsapi.CPUStats {
	if a == nil || b == nil {
		if a == nil {
			return b
		}
		return a
	}
	return &statsapi.CPUStats{Time: b.Time, UsageCoreNanoSeconds: add(a.UsageCoreNanoSeconds, b.UsageCoreNanoSeconds), UsageNanoCores: add(a.UsageNanoCores, b.UsageNanoCores)}
}

func addMemory(a, b *statsapi.MemoryStats) *statsapi.MemoryStats {
	if a == nil || b == nil {
		if a == nil {
			return b
		}
		return a
	}
	return &statsapi.MemoryStats{Time: b.Time, WorkingSetBytes: add(a.WorkingSetBytes, b.WorkingSetBytes), UsageBytes: add(a.UsageBytes, b.UsageBytes), RSSBytes: add(a.RSSBytes, b.RSSBytes)}
}
