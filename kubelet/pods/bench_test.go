package pods

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkPodStart is what the kubelet (and the two fakes beside it) spend on one
// pod from its creation to Running.
func BenchmarkPodStart(b *testing.B) {
	h := newHarness(b)
	h.start()
	var before, after syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
	var total time.Duration
	for i := 0; b.Loop(); i++ {
		name := fmt.Sprintf("p%d", i)
		begun := time.Now()
		h.create(newPod(name, func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		}))
		for {
			if p := h.get(name); p != nil && p.Status.Phase == corev1.PodRunning {
				break
			}
			time.Sleep(200 * time.Microsecond)
		}
		total += time.Since(begun)
		h.del(name, 1)
		for h.get(name) != nil {
			time.Sleep(200 * time.Microsecond)
		}
	}
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
	cpu := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
	b.ReportMetric(float64(total.Microseconds())/float64(b.N)/1000, "ms-to-running")
	b.ReportMetric(float64(cpu.Microseconds())/float64(b.N)/1000, "cpu-ms/pod")
}
