package nodeipam

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func prefixes(cidrs ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, c := range cidrs {
		all = append(all, netip.MustParsePrefix(c))
	}
	return all
}

func node(i int) Node { return Node{Name: fmt.Sprint("n", i), UID: types.UID(fmt.Sprint("u", i))} }

func TestGrantIsTheLowestFree(t *testing.T) {
	v4, v6, small := "10.244.0.0/16", "fd00:10:244::/48", "10.0.0.0/24"
	tests := []struct {
		ranges []string
		masks  []int
		used   []string
		want   string
	}{
		{[]string{v4}, []int{24}, nil, "[10.244.0.0/24]"},
		{[]string{v4}, []int{24}, []string{"10.244.0.0/24", "10.244.2.0/24"}, "[10.244.1.0/24]"},
		{[]string{v4}, []int{24}, []string{"10.244.0.0/23"}, "[10.244.2.0/24]"},
		{[]string{v4}, []int{24}, []string{"10.244.0.128/25", "10.244.1.7/32"}, "[10.244.2.0/24]"},
		{[]string{v4}, []int{24}, []string{"10.245.0.0/24", "192.168.0.0/16", "fd00::/8"}, "[10.244.0.0/24]"},
		{[]string{v4}, []int{24}, []string{"10.0.0.0/8"}, "pod network 10.244.0.0/16 has no free /24 left"},
		{[]string{v4}, []int{16}, nil, "[10.244.0.0/16]"},
		{[]string{v4}, []int{16}, []string{"10.244.9.0/24"}, "pod network 10.244.0.0/16 has no free /16 left"},
		{[]string{v4, v6}, []int{24, 64}, []string{"fd00:10:244::/64"}, "[10.244.0.0/24 fd00:10:244:1::/64]"},
		{[]string{v6}, []int{112}, []string{"fd00:10:244::/65", "fd00:10:244:0:8000::/112"}, "[fd00:10:244:0:8000:0:1:0/112]"},
		{[]string{"fd00::/16"}, []int{128}, []string{"fd00::/17"}, "[fd00:8000::/128]"},
		{[]string{small}, []int{25}, []string{"10.0.0.0/25", "10.0.0.128/25"}, "pod network 10.0.0.0/24 has no free /25 left"},
		{[]string{small, v6}, []int{24, 64}, []string{"10.0.0.0/24"}, "pod network 10.0.0.0/24 has no free /24 left"},
		{[]string{"0.0.0.0/0"}, []int{32}, []string{"0.0.0.0/1"}, "[128.0.0.0/32]"},
	}
	for _, tt := range tests {
		x := NewIndex(prefixes(tt.ranges...), tt.masks)
		for i, u := range tt.used {
			x.Observe(node(i), prefixes(u))
		}
		x.Observe(node(-1), nil)
		got, err := x.Grant(node(-1))
		s := fmt.Sprint(got)
		if err != nil {
			s = err.Error()
		}
		if s != tt.want {
			t.Errorf("ranges %v, used %v: %s, want %s", tt.ranges, tt.used, s, tt.want)
		}
	}
}

func TestGrants(t *testing.T) {
	x := NewIndex(prefixes("10.0.0.0/23"), []int{24})
	grant := func(n Node, want string) {
		t.Helper()
		got, err := x.Grant(n)
		if s := fmt.Sprint(got, err != nil); s != want {
			t.Errorf("%s is granted %s, want %s", n, s, want)
		}
	}
	next := func(want string) {
		t.Helper()
		n, _ := x.Next()
		if n.Name != want {
			t.Errorf("next is %q, want %q", n.Name, want)
		}
	}
	grant(node(0), "[] false") // not known: it would keep its part for ever
	x.Observe(node(0), nil)
	grant(node(0), "[10.0.0.0/24] false")
	x.Observe(node(0), nil) // its news from before the grant
	grant(node(0), "[10.0.0.0/24] false")
	x.Observe(node(1), nil)
	grant(node(1), "[10.0.1.0/24] false")
	x.Observe(node(1), prefixes("10.0.1.0/24"))
	grant(node(1), "[] false") // it has it
	next("")
	for i := 2; i < 6; i++ {
		x.Observe(node(i), nil)
		grant(node(i), "[] true")
	}
	next("")
	// Another life of n0 has nothing of the first, whose end does not touch the second.
	again := Node{Name: "n0", UID: "other"}
	x.Observe(again, nil)
	grant(again, "[] true")
	x.Remove(node(0))
	next("n2")
	grant(node(2), "[10.0.0.0/24] false")
	next("")
	x.Remove(node(3))
	x.Observe(node(1), nil) // says now that it has none
	next("n4")
	x.GiveUp(node(4))
	next("n5")
	x.Observe(node(5), prefixes("172.16.0.0/24")) // elsewhere
	next("n0")
	grant(again, "[10.0.1.0/24] false")
	grant(node(5), "[] false")
	grant(node(4), "[] true")
	if !x.Waits(node(4)) || x.Waits(node(5)) || x.Waits(node(3)) {
		t.Error("n4 alone waits")
	}
	// Set by someone else than us: what was granted is free again.
	x.Observe(again, prefixes("10.0.0.0/24"))
	grant(node(4), "[10.0.1.0/24] false")
	x.Remove(node(99)) // unknown
}

func TestDoubleUse(t *testing.T) {
	x := NewIndex(prefixes("10.0.0.0/22", "fd00::/62"), []int{24, 64})
	steps := []struct {
		node int
		has  []string // none: it goes
		want string
		free string // then
	}{
		{0, []string{"10.0.0.0/24", "fd00::/64"}, "[]", "10.0.1.0/24"},
		{1, []string{"10.0.0.0/24", "fd00:0:0:1::/64"}, "[{10.0.0.0/24 n0}]", "10.0.1.0/24"},
		{2, []string{"10.0.0.0/23"}, "[{10.0.0.0/23 n0}]", "10.0.2.0/24"},
		{3, []string{"10.0.1.0/24"}, "[{10.0.1.0/24 n2}]", "10.0.2.0/24"},
		{4, []string{"10.0.2.0/24", "10.0.2.128/25"}, "[]", "10.0.3.0/24"}, // with itself it has no conflict
		{5, []string{"10.0.2.7/32"}, "[{10.0.2.7/32 n4}]", "10.0.3.0/24"},
		{0, nil, "", "10.0.3.0/24"}, {1, nil, "", "10.0.3.0/24"}, // n2 holds it still
	}
	free := func(want string) {
		t.Helper()
		x.Observe(node(9), nil)
		got, err := x.Grant(node(9))
		if err != nil || got[0].String() != want {
			t.Errorf("free is %v (%v), want %s", got, err, want)
		}
		x.Remove(node(9))
	}
	for _, s := range steps {
		if s.has == nil {
			x.Remove(node(s.node))
		} else if got := fmt.Sprint(x.Observe(node(s.node), prefixes(s.has...))); got != s.want {
			t.Errorf("n%d has %v: conflicts %s, want %s", s.node, s.has, got, s.want)
		}
		free(s.free)
	}
	x.Remove(node(2))
	free("10.0.0.0/24")
	x.Remove(node(4))
	x.Observe(node(6), prefixes("10.0.0.0/23"))
	free("10.0.3.0/24") // n5 is in 10.0.2.0/24 alone now
	x.Remove(node(5))
	free("10.0.2.0/24")
	x.Remove(node(3))
	x.Remove(node(6))
	if len(x.nodes) != 0 || !x.ranges[0].root.empty() || !x.ranges[1].root.empty() {
		t.Errorf("with no node left there are %d and %+v", len(x.nodes), x.ranges[0].root)
	}
}

// TestAgainstWalk compares with what a walk over all nodes finds.
func TestAgainstWalk(t *testing.T) {
	const slots, mask = 16, 28
	base := netip.MustParsePrefix("10.0.0.0/24")
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		x := NewIndex([]netip.Prefix{base}, []int{mask})
		has := map[int]netip.Prefix{}
		lowest := func() string {
			for i := range slots {
				p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i * 16)}), mask)
				taken := false
				for _, h := range has {
					taken = taken || h.Overlaps(p)
				}
				if !taken {
					return p.String()
				}
			}
			return ""
		}
		for step := range 400 {
			i := r.IntN(24)
			old, known := has[i]
			switch r.IntN(4) {
			case 0:
				x.Remove(node(i))
				delete(has, i)
			case 1, 2:
				if known && old.IsValid() {
					continue
				}
				x.Observe(node(i), nil)
				want := lowest()
				got, err := x.Grant(node(i))
				if (err != nil) != (want == "") || err == nil && got[0].String() != want {
					t.Fatalf("seed %d, step %d: granted %v (%v), want %q", seed, step, got, err, want)
				}
				if err == nil {
					has[i] = got[0]
				}
			default:
				p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(r.IntN(256))}), 25+r.IntN(8)).Masked()
				clash := false
				for j, h := range has {
					// What lies inside a part takes all of it.
					wide := netip.PrefixFrom(p.Addr(), min(mask, p.Bits())).Masked()
					clash = clash || j != i && h.Overlaps(wide)
				}
				conflicts := x.Observe(node(i), []netip.Prefix{p})
				if (len(conflicts) > 0) != clash {
					t.Fatalf("seed %d, step %d: n%d has %s: conflicts %v, want %v", seed, step, i, p, conflicts, clash)
				}
				has[i] = netip.PrefixFrom(p.Addr(), min(mask, p.Bits())).Masked()
			}
		}
	}
}

// TestWorkPerNodeIsConstant counts the blocks that each call visits: with a hundred nodes and
// with a hundred times as many it is the depth of the tree.
func TestWorkPerNodeIsConstant(t *testing.T) {
	const depth = 16
	most := func(nodes int) int {
		x := NewIndex(prefixes("10.0.0.0/8"), []int{8 + depth})
		worst := 0
		count := func(what func()) {
			before := x.ranges[0].steps
			what()
			worst = max(worst, x.ranges[0].steps-before)
		}
		grant := func(i int) {
			if got, err := x.Grant(node(i)); err != nil || len(got) != 1 {
				t.Fatalf("n%d: %v, %v", i, got, err)
			}
		}
		for i := range nodes {
			count(func() { x.Observe(node(i), nil) })
			count(func() { grant(i) })
		}
		for i := range nodes { // double use by all of them, too
			count(func() { x.Observe(node(nodes+i), prefixes("10.0.0.0/24")) })
		}
		for _, i := range rand.New(rand.NewPCG(1, 1)).Perm(nodes) {
			count(func() { x.Remove(node(i)) })
			count(func() { x.Remove(node(nodes + i)) })
			count(func() { x.Observe(node(i), nil) })
			count(func() { grant(i) })
		}
		return worst
	}
	few, many := most(100), most(10000)
	if few != many || many > 4*(depth+1) {
		t.Errorf("a call visits %d blocks with 100 nodes, %d with 10000; want the same, and no more than %d", few, many, 4*(depth+1))
	}
}

// TestExhaustedWorkPerNodeIsConstant does so when most wait: denied again and again, and
// one deletion wakes one.
func TestExhaustedWorkPerNodeIsConstant(t *testing.T) {
	for _, nodes := range []int{300, 10000} {
		x := NewIndex(prefixes("10.244.0.0/16"), []int{24})
		r := x.ranges[0]
		for i := range nodes {
			x.Observe(node(i), nil)
			before := r.steps
			_, err := x.Grant(node(i))
			if i >= 256 && (err == nil || r.steps != before) {
				t.Fatalf("%d nodes: n%d, denied, costs %d steps (%v)", nodes, i, r.steps-before, err)
			}
		}
		before := r.steps
		for i := range 40 {
			x.Remove(node(i))
			n, ok := x.Next()
			if !ok || n != node(256+i) {
				t.Fatalf("%d nodes: next is %v (%v), want n%d", nodes, n, ok, 256+i)
			}
			got, err := x.Grant(n)
			if want := fmt.Sprintf("[10.244.%d.0/24]", i); err != nil || fmt.Sprint(got) != want {
				t.Fatalf("%d nodes: %v, %v, want %s", nodes, got, err, want)
			}
		}
		if each := (r.steps - before) / 40; each > 6*9 {
			t.Errorf("%d nodes: a part that changes hands costs %d steps", nodes, each)
		}
	}
}

// BenchmarkIndex is a node that goes and comes among many.
func BenchmarkIndex(b *testing.B) {
	for _, nodes := range []int{100, 5000, 50000} {
		b.Run(fmt.Sprint("nodes=", nodes), func(b *testing.B) {
			x := NewIndex(prefixes("10.0.0.0/8"), []int{24})
			all := make([]Node, nodes)
			for i := range all {
				all[i] = node(i)
				x.Observe(all[i], nil)
				if _, err := x.Grant(all[i]); err != nil {
					b.Fatal(err)
				}
			}
			before := x.ranges[0].steps
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				n := all[i%nodes]
				x.Remove(n)
				x.Observe(n, nil)
				if got, err := x.Grant(n); err != nil || len(got) != 1 {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(x.ranges[0].steps-before)/float64(b.N), "steps/op")
		})
	}
}
