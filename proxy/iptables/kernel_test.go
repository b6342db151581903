package iptables

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	testclock "k8s.io/utils/clock/testing"

	"github.com/skiff-k8s/skiff/host/iptables"
	"github.com/skiff-k8s/skiff/proxy"
)

// namespace puts the test's thread, which ends with it, into a network namespace of its own.
func namespace(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces and iptables; run by make test")
	}
	runtime.LockOSThread() // never unlocked
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
}

func backend(t testing.TB, v iptables.Variant, clock *testclock.FakeClock) *Backend {
	t.Helper()
	if !slices.Contains(iptables.Installed(), v) {
		t.Skipf("iptables-%s is not installed", v)
	}
	cfg := Config{ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")},
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, LocalhostNodePorts: true, Variant: &v, Logger: slog.New(slog.DiscardHandler)}
	if clock != nil {
		cfg.Clock = clock
	}
	b, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// saved are the rules of both tables by chain; those of chains that all Services share in no order.
func saved(t *testing.T, v iptables.Variant) string {
	t.Helper()
	var out []string
	for _, table := range []string{filter, nat} {
		chains, rules, err := iptables.New(v, false).Save(table)
		if err != nil {
			t.Fatal(err)
		}
		for c := range chains {
			out = append(out, table+" :"+c)
		}
		n := map[string]int{}
		for _, r := range rules {
			chain := strings.Fields(r)[1]
			if !ofPort(chain) {
				out = append(out, table+" "+r)
				continue
			}
			n[chain]++
			out = append(out, fmt.Sprintf("%s %s %03d %s", table, chain, n[chain], r))
		}
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// TestChangesEqualRebuild: whatever changes in whatever order, the kernel has the rules that it would
// have if they had been written anew.
func TestChangesEqualRebuild(t *testing.T) {
	for _, v := range []iptables.Variant{iptables.NFT, iptables.Legacy} {
		t.Run(string(v), func(t *testing.T) {
			namespace(t)
			b, rnd := backend(t, v, nil), rand.New(rand.NewPCG(1, 2))
			all := cases()
			delete(all, "ipv6")
			names := []string{"absent", "affinity", "cluster", "internal-local", "local", "local-elsewhere", "nodeport"}
			now := map[string][]proxy.Port{}
			for step := range 60 {
				changed := map[string][]proxy.Port{}
				for range 1 + rnd.IntN(3) {
					key := fmt.Sprint("default/s", rnd.IntN(5))
					changed[key] = nil
					if rnd.IntN(4) == 0 {
						continue
					}
					p := all[names[rnd.IntN(len(names))]]
					p.Name = key + ":http"
					p.ClusterIP = netip.AddrFrom4([4]byte{10, 96, 0, key[len(key)-1]})
					if p.NodePort != 0 {
						p.NodePort += uint16(key[len(key)-1])
					}
					p.Cluster = p.Cluster[:min(len(p.Cluster), 1+rnd.IntN(2))]
					changed[key] = []proxy.Port{p}
				}
				for key, ports := range changed {
					now[key] = ports
				}
				if err := b.Apply(changed); err != nil {
					t.Fatal(err)
				}
				if !b.families[0].held {
					t.Fatalf("step %d: all had to be written anew", step)
				}
			}
			got := saved(t, v)
			anew := backend(t, v, nil)
			if err := anew.Apply(now); err != nil {
				t.Fatal(err)
			}
			if want := saved(t, v); got != want {
				t.Errorf("by changes:\n%s\nanew:\n%s", got, want)
			}
			// The rules of node ports stay the last ones.
			_, rules, err := iptables.New(v, false).Save(nat)
			if err != nil {
				t.Fatal(err)
			}
			last := slices.DeleteFunc(rules, func(r string) bool { return !strings.HasPrefix(r, "-A "+services+" ") })
			if len(last) == 0 || !strings.HasSuffix(last[len(last)-1], "-j "+nodePorts) {
				t.Errorf("%q", last)
			}
			if err := Remove(); err != nil {
				t.Fatal(err)
			}
			if left := saved(t, v); strings.Contains(left, "KUBE-") {
				t.Errorf("left after Remove:\n%s", left)
			}
		})
	}
}

// TestFlushed rules are noticed, and written again; a change that fails for want of them too.
func TestFlushed(t *testing.T) {
	for _, v := range []iptables.Variant{iptables.NFT, iptables.Legacy} {
		t.Run(string(v), func(t *testing.T) {
			namespace(t)
			clock := testclock.NewFakeClock(time.Now())
			b := backend(t, v, clock)
			web := cases()["cluster"]
			apply := func(changed map[string][]proxy.Port) {
				t.Helper()
				if err := b.Apply(changed); err != nil {
					t.Fatal(err)
				}
			}
			apply(map[string][]proxy.Port{"default/web": {web}})
			want := saved(t, v)
			flush := func() {
				t.Helper()
				for _, table := range []string{filter, nat, mangle} {
					for _, what := range []string{"-F", "-X"} {
						if out, err := exec.Command("iptables-"+string(v), "-t", table, what).CombinedOutput(); err != nil {
							t.Fatalf("%v: %s", err, out)
						}
					}
				}
			}
			flush()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			go func() { // steps the clock once Watch waits for it
				for !clock.HasWaiters() {
					runtime.Gosched()
				}
				clock.Step(syncPeriod)
			}()
			told := false
			if err := b.Watch(ctx, func() { told = true; cancel() }); err != nil || !told {
				t.Fatalf("%v, told %t", err, told)
			}
			apply(nil)
			if got := saved(t, v); got != want {
				t.Errorf("after Watch:\n%s\nwant\n%s", got, want)
			}
			flush()
			apply(map[string][]proxy.Port{"default/web": nil})
			apply(map[string][]proxy.Port{"default/web": {web}})
			if got := saved(t, v); got != want {
				t.Errorf("after a change that failed:\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// TestManyServices are written in pieces by the one variant, and are there; again, and without half of them.
func TestManyServices(t *testing.T) {
	for _, v := range []iptables.Variant{iptables.NFT, iptables.Legacy} {
		t.Run(string(v), func(t *testing.T) {
			namespace(t)
			b, all := backend(t, v, nil), manyServices(partsAtOnce+10)
			if err := b.Apply(all); err != nil {
				t.Fatal(err)
			}
			holds := func(want int) {
				t.Helper()
				chains, rules, err := iptables.New(v, false).Save(nat)
				if err != nil {
					t.Fatal(err)
				}
				n, leads := 0, 0
				for c := range chains {
					if ofPort(c) {
						n++
					}
				}
				for _, r := range rules {
					if strings.HasPrefix(r, "-A "+services+" ") && strings.Contains(r, "-j "+clusterPrefix) {
						leads++
					}
				}
				if n != 4*want || leads != want {
					t.Errorf("%d chains and %d that lead to them, want %d Services", n, leads, want)
				}
			}
			holds(len(all))
			for i := range partsAtOnce / 2 {
				delete(all, fmt.Sprint("default/s", i))
			}
			b = backend(t, v, nil)
			if err := b.Apply(all); err != nil {
				t.Fatal(err)
			}
			holds(len(all))
		})
	}
}

// TestOthersStay: rules that are not ours are left where they are.
func TestOthersStay(t *testing.T) {
	namespace(t)
	b := backend(t, iptables.NFT, nil)
	for _, c := range []string{"-N DOCKER", "-A DOCKER -d 10.0.0.1/32 -j RETURN", "-A PREROUTING -j DOCKER"} {
		if out, err := exec.Command("iptables-nft", append([]string{"-t", nat}, strings.Fields(c)...)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	before := saved(t, iptables.NFT)
	if err := b.Apply(map[string][]proxy.Port{"default/web": {cases()["local"]}}); err != nil {
		t.Fatal(err)
	}
	if err := Remove(); err != nil {
		t.Fatal(err)
	}
	var after []string
	for line := range strings.Lines(saved(t, iptables.NFT)) {
		if !strings.Contains(line, ":") || strings.Contains(line, "DOCKER") { // chains of the kernel's come with their tables
			after = append(after, line)
		}
	}
	for line := range strings.Lines(before) {
		if strings.Contains(line, "DOCKER") && !slices.Contains(after, line) {
			t.Errorf("gone: %s", line)
		}
	}
	if all := strings.Join(after, ""); strings.Contains(all, "KUBE-") {
		t.Errorf("left: %s", all)
	}
}

// manyServices are n Services of three endpoints.
func manyServices(n int) map[string][]proxy.Port {
	out := make(map[string][]proxy.Port, n)
	for i := range n {
		p := proxy.Port{Name: fmt.Sprintf("default/s%d:http", i), Protocol: 6, Port: 80, Endpoints: true,
			ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})}
		for e := range 3 {
			p.Cluster = append(p.Cluster, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 6), byte(i<<2 + e)}), 8080))
		}
		out[strings.TrimSuffix(p.Name, ":http")] = []proxy.Port{p}
	}
	return out
}

// spent is the processor's time that this process and its children have had.
func spent(b *testing.B) (sum time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var r unix.Rusage
		if err := unix.Getrusage(who, &r); err != nil {
			b.Fatal(err)
		}
		sum += time.Duration(r.Utime.Nano() + r.Stime.Nano())
	}
	return sum
}

// Benchmark10k is a load of 10,000 Services, and the change of one endpoint among them.
func Benchmark10k(b *testing.B) {
	for _, v := range []iptables.Variant{iptables.NFT, iptables.Legacy} {
		all := manyServices(10_000)
		b.Run(string(v)+"/load", func(b *testing.B) {
			namespace(b)
			begin := spent(b)
			for b.Loop() {
				back := backend(b, v, nil)
				back.families = back.families[:1]
				if err := back.Apply(all); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(spent(b)-begin)/float64(b.N)/1e6, "cpu-ms/op")
		})
		b.Run(string(v)+"/change", func(b *testing.B) {
			namespace(b)
			back := backend(b, v, nil)
			back.families = back.families[:1]
			if err := back.Apply(all); err != nil {
				b.Fatal(err)
			}
			p, begin := all["default/s5000"][0], spent(b)
			for i := 0; b.Loop(); i++ {
				q := p
				q.Cluster = p.Cluster[:2+i%2]
				if err := back.Apply(map[string][]proxy.Port{"default/s5000": {q}}); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(spent(b)-begin)/float64(b.N)/1e6, "cpu-ms/op")
		})
	}
}

// TestRemoveLeavesIPVS: chains of the mode ipvs, which have some of the same names, are not taken away.
func TestRemoveLeavesIPVS(t *testing.T) {
	namespace(t)
	tool := iptables.New(iptables.NFT, false)
	if err := tool.Load([]byte("*nat\n:KUBE-SERVICES - [0:0]\n:KUBE-POSTROUTING - [0:0]\n-I PREROUTING -j KUBE-SERVICES\nCOMMIT\n")); err != nil {
		t.Fatal(err)
	}
	want := saved(t, iptables.NFT)
	if err := Remove(); err != nil {
		t.Fatal(err)
	}
	if got := saved(t, iptables.NFT); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
