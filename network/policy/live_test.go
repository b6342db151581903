package policy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os/exec"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netns"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/skiff-k8s/skiff/network/bridge/bridgetest"
)

// live is an Enforcer that runs, and the API that it reads.
type live struct {
	*Enforcer
	t      *testing.T
	client *fake.Clientset
	lists  atomic.Int32 // of pods
}

func newLive(t *testing.T, table string, cidr netip.Prefix, c clock.Clock) *live {
	t.Helper()
	l := &live{t: t, client: fake.NewClientset()}
	l.client.PrependReactor("list", "pods", func(ktesting.Action) (bool, kruntime.Object, error) {
		l.lists.Add(1)
		return false, nil, nil
	})
	var err error
	l.Enforcer, err = New(Config{NodeName: thisNode, Client: l.client, Table: table, PodCIDRs: []netip.Prefix{cidr}, Clock: c,
		Logger: slog.New(slog.NewTextHandler(testLog{t}, nil))})
	must(t, err)
	l.cfg.Ports, l.near = "skp-", newLinkLocal(table, "skp-")
	for _, ns := range []string{"x", "y"} {
		_, err := l.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{"ns": ns}}}, metav1.CreateOptions{})
		must(t, err)
	}
	return l
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSpace(string(b)))
	return len(b), nil
}

// run until the test's end. A thread that was in a namespace before is of no use to it: it goes into the node's.
func (l *live) run(node netns.NsHandle) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked
		if err := netns.Set(node); err != nil {
			l.t.Error(err)
			return
		}
		if err := l.Run(ctx); err != nil {
			l.t.Error(err)
		}
	}()
	return func() { cancel(); <-done }
}

func (l *live) pod(ns, podName, node string, labels map[string]string, ips ...netip.Addr) {
	l.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: podName, UID: types.UID(podName), Labels: labels}, Spec: corev1.PodSpec{NodeName: node}}
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip.String()})
	}
	if err := l.client.Tracker().Create(corev1.SchemeGroupVersion.WithResource("pods"), p, ns); err != nil {
		must(l.t, l.client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("pods"), p, ns))
	}
}

func (l *live) policy(ns, text string) {
	l.t.Helper()
	p := policyOf(l.t, text)
	p.Namespace = ns
	api := l.client.NetworkingV1().NetworkPolicies(ns)
	if _, err := api.Create(l.t.Context(), p, metav1.CreateOptions{}); err != nil {
		_, err = api.Update(l.t.Context(), p, metav1.UpdateOptions{})
		must(l.t, err)
	}
}

func (l *live) noPolicy(ns string) {
	l.t.Helper()
	must(l.t, l.client.NetworkingV1().NetworkPolicies(ns).Delete(l.t.Context(), "p", metav1.DeleteOptions{}))
}

func (f *feed[T]) get(n name) *T {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.items[n]
}

// eventually waits for what other goroutines bring about.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func tables(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("nft", "list", "tables").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return string(out)
}

// TestUnread: while policies can't be read no pod starts, unless they are none of this node's business.
func TestUnread(t *testing.T) {
	forbidden := apierrors.NewForbidden(networkingv1.Resource("networkpolicies"), "", errors.New("no role"))
	for what, test := range map[string]struct {
		answer error
		want   string
	}{
		"the API server is away":             {errors.New("connection refused"), "network policies of pod x/a are not known"},
		"nodes are not allowed to read them": {forbidden, ""},
	} {
		t.Run(what, func(t *testing.T) {
			asked := make(chan struct{}, 100)
			client := fake.NewClientset()
			refuse := func(ktesting.Action) (bool, kruntime.Object, error) {
				select {
				case asked <- struct{}{}:
				default:
				}
				return true, nil, test.answer
			}
			client.PrependReactor("list", "networkpolicies", refuse)
			client.PrependWatchReactor("networkpolicies", func(a ktesting.Action) (bool, watch.Interface, error) {
				_, _, err := refuse(a)
				return true, nil, err
			})
			c := clocktesting.NewFakeClock(time.Now())
			e, err := New(Config{NodeName: thisNode, Client: client, Table: "skiff-policy-unread", PodCIDRs: families, Clock: c, Logger: slog.New(slog.DiscardHandler)})
			must(t, err)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error)
			go func() { done <- e.Run(ctx) }()
			defer func() {
				cancel()
				must(t, <-done)
			}()
			<-asked
			<-asked
			admitted := make(chan error, 1)
			go func() { admitted <- e.Admit(ctx, "s", "x", "a", "u", []netip.Addr{netip.MustParseAddr("10.244.0.9")}) }()
			if test.want != "" {
				eventually(t, "a pod waits", c.HasWaiters)
				c.Step(patience)
			}
			if err := <-admitted; (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// TestLife is a node from the first policy to the last: pods on its bridge, with packets between them.
func TestLife(t *testing.T) {
	for _, cidr := range []netip.Prefix{netip.MustParsePrefix("10.251.0.0/24"), netip.MustParsePrefix("fd00:251::/64")} {
		t.Run(cidr.String(), func(t *testing.T) { life(t, cidr) })
	}
}

func life(t *testing.T, cidr netip.Prefix) {
	const table = "skiff-policy-life"
	w := bridgetest.New(t, "skp", cidr, 3)
	at := func(i int) string { return netip.AddrPortFrom(w.IPs[i], bridgetest.PodPort).String() }
	// Somebody else's tables, of nearly the same name.
	family := "ip"
	if cidr.Addr().Is6() {
		family = "ip6"
	}
	if out, err := exec.Command("nft", "add", "table", family, table+"2").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before := tables(t)
	c := clocktesting.NewFakeClock(time.Now())
	l := newLive(t, table, cidr, c)
	stop := l.run(w.Node)
	defer func() { stop() }()
	for i, ns := range []string{"x", "x", "y"} {
		l.pod(ns, fmt.Sprint("pod", i), thisNode, map[string]string{"app": fmt.Sprint(i)}, w.IPs[i])
	}
	answers := func(from, to int) bool {
		for _, network := range []string{"tcp", "udp"} {
			if a, err := w.Ask(w.Pods[from], network, at(to)); err != nil || a.Who != fmt.Sprint("pod", to) {
				t.Errorf("%s from pod%d to pod%d: %+v, %v", network, from, to, a, err)
				return false
			}
		}
		return true
	}
	silent := func(from, to int) {
		t.Helper()
		w.Silent(w.Pods[from], "tcp", at(to)) // TestPackets has other protocols
	}
	programmed := func() {
		t.Helper()
		select {
		case <-l.ask():
		case <-time.After(30 * time.Second):
			t.Fatal("nothing is programmed")
		}
	}
	changed := func(what string, ok func(*rules) bool) {
		t.Helper()
		eventually(t, what, func() bool { return ok(l.policies.get(name{"x", "p"})) })
		programmed()
	}

	// Without policies: nothing in the kernel, and nobody reads the cluster's pods.
	must(t, l.Admit(t.Context(), "s0", "x", "pod0", "pod0", w.IPs[:1]))
	programmed()
	answers(1, 0)
	if got := tables(t); got != before || l.lists.Load() != 0 {
		t.Errorf("without policies pods were listed %d times, and there are tables:\n%s", l.lists.Load(), got)
	}
	l.Forget("s0")

	// A flow that is there when the first policy comes goes on; another does not begin.
	w.Serve(w.Pods[0], netip.AddrPortFrom(w.IPs[0], 7), "echo")
	leave := w.Enter(w.Pods[0])
	echo, err := net.Listen("tcp", netip.AddrPortFrom(w.IPs[0], 9).String())
	must(t, err)
	leave()
	defer echo.Close()
	go func() {
		for {
			c, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); c.Close() }()
		}
	}()
	leave = w.Enter(w.Pods[2])
	flow, err := net.Dial("tcp", echo.Addr().String())
	must(t, err)
	leave()
	defer flow.Close()
	lines := bufio.NewReader(flow)
	say := func() {
		t.Helper()
		must(t, flow.SetDeadline(time.Now().Add(30*time.Second)))
		_, err := fmt.Fprintln(flow, "hello")
		must(t, err)
		if line, err := lines.ReadString('\n'); err != nil || line != "hello\n" {
			t.Errorf("echo: %q, %v", line, err)
		}
	}
	say()
	near := linkLocalOf(t, w)
	w.Serve(w.Pods[0], netip.AddrPortFrom(near, 11), "near")
	eventually(t, "a link-local address answers", func() bool { // the client's may not be used at once
		a, err := w.Ask(w.Pods[2], "tcp", netip.AddrPortFrom(near, 11).String())
		return err == nil && a.Who == "near"
	})
	l.policy("x", "{podSelector: {matchLabels: {app: '0'}}, ingress: [{from: [{podSelector: {}}]}]}")
	changed("a first policy", func(r *rules) bool { return r != nil })
	say()
	silent(2, 0)
	w.Silent(w.Pods[2], "tcp", netip.AddrPortFrom(near, 11).String())
	answers(1, 0)
	answers(0, 2) // and the answers come back
	if a, err := w.Ask(w.Node, "tcp", at(0)); err != nil {
		t.Errorf("the node itself: %+v, %v", a, err)
	}
	if out, err := exec.Command("nft", "-s", "list", "ruleset").CombinedOutput(); err != nil || !strings.Contains(string(out), "pods-") {
		t.Errorf("nft(8) can't list it: %v\n%s", err, out)
	}

	// Egress, and the way to itself, which leads over the node where a Service does.
	l.policy("x", "{podSelector: {matchLabels: {app: '0'}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {ns: 'y'}}}], ports: [{port: 8080}]}]}")
	changed("another policy", func(r *rules) bool { return r != nil && r.isolates[egress] })
	silent(0, 1)
	if _, err := w.Ask(w.Pods[0], "tcp", at(2)); err != nil {
		t.Error(err)
	}
	w.Silent(w.Pods[0], "udp", at(2))
	answers(2, 0)
	out, err := exec.Command("sh", "-c", fmt.Sprintf("nft add table %[1]s self && nft add chain %[1]s self pre '{ type nat hook prerouting priority -100; }' && "+
		"nft add chain %[1]s self post '{ type nat hook postrouting priority 100; }' && nft add rule %[1]s self pre %[1]s daddr %[3]s tcp dport 80 dnat to %[2]s && "+
		"nft add rule %[1]s self post %[1]s saddr %[4]s %[1]s daddr %[4]s masquerade", family, at(0), service(family), w.IPs[0])).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if a, err := w.Ask(w.Pods[0], "tcp", net.JoinHostPort(service(family), "80")); err != nil || a.Who != "pod0" {
		t.Errorf("a pod does not reach itself through a Service: %+v, %v", a, err)
	}

	// A pod that has just got its addresses: closed until the API has it, then as its labels say. Another of
	// a namespace without policies: never.
	must(t, l.Admit(t.Context(), "s1", "x", "new", "new", w.IPs[1:2]))
	silent(2, 1)
	silent(1, 2)
	l.pod("x", "new", thisNode, map[string]string{"app": "1"})
	eventually(t, "the new pod is known", func() bool { return l.pods.get(name{"x", "new"}) != nil })
	programmed()
	answers(2, 1)
	must(t, l.Admit(t.Context(), "s2", "y", "other", "other", w.IPs[2:]))
	answers(2, 1)
	l.Forget("s2")

	// Another process takes over; policies are in force while none runs.
	stop()
	silent(0, 1)
	l.Enforcer, err = New(l.cfg)
	must(t, err)
	stop = l.run(w.Node)
	programmed()
	silent(0, 1)
	answers(2, 1)

	// The last policy goes, and with it the table; a while later nobody reads pods any more.
	l.noPolicy("x")
	changed("no policy", func(r *rules) bool { return r == nil })
	answers(0, 1)
	if strings.Contains(tables(t), table+"\n") || !strings.Contains(tables(t), table+"2\n") {
		t.Errorf("tables:\n%s", tables(t))
	}
	eventually(t, "somebody waits for another policy", c.HasWaiters)
	c.Step(linger)
	eventually(t, "pods are forgotten", func() bool { return l.pods.len() == 0 })
	lists := l.lists.Load()
	l.policy("x", "{podSelector: {}}")
	changed("a policy again", func(r *rules) bool { return r != nil })
	silent(2, 0)
	if l.lists.Load() == lists {
		t.Error("pods were not listed anew")
	}
	must(t, Remove(table))
	answers(2, 0)
}

// linkLocalOf the first pod, once it may be used.
func linkLocalOf(t *testing.T, w *bridgetest.World) (out netip.Addr) {
	t.Helper()
	defer w.Enter(w.Pods[0])()
	eventually(t, "a pod has a link-local address", func() bool {
		text, err := exec.Command("ip", "-6", "-br", "addr", "show", "dev", "eth0", "scope", "link", "-tentative").Output()
		if f := strings.Fields(string(text)); err == nil && len(f) == 3 {
			p, err := netip.ParsePrefix(f[2])
			must(t, err)
			out = p.Addr().WithZone("eth0")
		}
		return out.IsValid()
	})
	return out
}

func service(family string) string {
	if family == "ip6" {
		return "fd00:96::1"
	}
	return "10.96.0.1"
}
