package netlink

import (
	"os"
	"runtime"
	"testing"

	"github.com/vishvananda/netns"
)

// own is a network namespace for the test's thread, or none without root.
func own(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces; run by make test")
	}
	runtime.LockOSThread() // never unlocked: the namespace ends with the thread
	if _, err := netns.New(); err != nil {
		t.Fatal(err)
	}
}

func TestParseFlowThatIsCut(t *testing.T) {
	for _, m := range [][]byte{nil, {2, 0, 0}, {2, 0, 0, 0}, {2, 0, 0, 0, 200, 0, 1, 0}, {2, 0, 0, 0, 8, 0, 1, 0x80, 2, 0, 1, 0}} {
		if f, _, ok := parseFlow(m); ok {
			t.Errorf("%v: %+v", m, f)
		}
	}
}

func TestDeleteFlowsOfNothing(t *testing.T) {
	own(t)
	n, err := DeleteFlows(func(Flow) bool { return true }, FlowKind{Protocol: 17}, FlowKind{V6: true, Protocol: 132})
	if err != nil || n != 0 {
		t.Errorf("%d, %v; want none", n, err)
	}
}

func BenchmarkDeleteFlows(b *testing.B) {
	own(b)
	for b.Loop() {
		if _, err := DeleteFlows(func(Flow) bool { return false }, FlowKind{Protocol: 17}); err != nil {
			b.Fatal(err)
		}
	}
}
