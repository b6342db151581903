package etcd

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/store"
)

func cpuTime() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		panic(err)
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// BenchmarkCreate writes 1 KiB values with fsync, from as many callers.
func BenchmarkCreate(b *testing.B) {
	for _, callers := range []int{1, 16, 256} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			s, _ := run(b, Config{DataDir: b.TempDir()})
			value := make([]byte, 1024)
			var n atomic.Int64
			b.SetParallelism(max(1, callers/2))
			began := cpuTime()
			b.RunParallel(func(p *testing.PB) {
				for p.Next() {
					if _, err := s.Create(b.Context(), fmt.Sprintf("/registry/bench/%d", n.Add(1)), value, 0); err != nil {
						b.Error(err)
					}
				}
			})
			b.ReportMetric(float64(cpuTime()-began)/float64(b.N), "cpu-ns/op")
		})
	}
}

func BenchmarkRevision(b *testing.B) {
	s, _ := run(b, Config{DataDir: b.TempDir()})
	for b.Loop() {
		if _, err := s.Revision(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkList1000(b *testing.B) {
	s, _ := run(b, Config{DataDir: b.TempDir()})
	for i := range 1000 {
		if _, err := s.Create(b.Context(), fmt.Sprintf("/registry/pods/%04d", i), make([]byte, 1024), 0); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		p, err := s.List(b.Context(), "/registry/pods/", store.ListOptions{})
		if err != nil || len(p.KVs) != 1000 {
			b.Fatal(len(p.KVs), err)
		}
	}
}

// BenchmarkStart is from Run to Ready, on an empty directory.
func BenchmarkStart(b *testing.B) {
	for b.Loop() {
		_, stop := run(b, Config{DataDir: b.TempDir()})
		b.StopTimer()
		if err := stop(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
