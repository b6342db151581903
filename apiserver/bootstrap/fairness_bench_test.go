package bootstrap

import "testing"

// BenchmarkFairnessHeartbeat is what looking after the objects costs while nothing changes.
func BenchmarkFairnessHeartbeat(b *testing.B) {
	boot := newBootstrap(b, newCaches(b), "192.0.2.1")
	if err := boot.ensureFairness(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := boot.ensureFairness(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
