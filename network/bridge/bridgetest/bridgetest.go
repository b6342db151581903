// Package bridgetest is a node and pods on its bridge, each in a network namespace of its own, for
// tests of what translates addresses between them.
package bridgetest

import (
	"bufio"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netns"

	"github.com/skiff-k8s/skiff/network/bridge"
)

// PodPort is where each pod serves.
const PodPort = 8080

const (
	// patience is how long who should answer may take.
	patience = 30 * time.Second
	// silence is how long nobody must answer.
	silence = time.Second
)

// World is a node with pods. It belongs to the test's goroutine, whose thread is in Node's
// namespace: subtests would run elsewhere.
type World struct {
	t    *testing.T
	Node netns.NsHandle
	Pods []netns.NsHandle
	IPs  []netip.Addr
}

// New makes a bridge called link and pods with addresses from cidr, or skips the test where
// that can't be.
func New(t *testing.T, link string, cidr netip.Prefix, pods int) *World {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root for network namespaces and nftables; run by make test")
	}
	runtime.LockOSThread() // and never unlocked: the namespace ends with the thread
	w := &World{t: t}
	var err error
	if w.Node, err = netns.New(); err != nil {
		t.Fatal(err)
	}
	br, err := bridge.New(bridge.Config{Name: link, StateDir: t.TempDir(), Logger: slog.Default()})
	if err != nil {
		t.Fatal(err)
	}
	if err := br.SetPodCIDRs([]netip.Prefix{cidr}); err != nil {
		t.Fatal(err)
	}
	for i := range pods {
		name := fmt.Sprintf("skiff-test-%s-%d-%d", link, os.Getpid(), i)
		ns, err := netns.NewNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = netns.DeleteNamed(name) })
		if err := netns.Set(w.Node); err != nil {
			t.Fatal(err)
		}
		ips, err := br.Attach(t.Context(), name, "/run/netns/"+name)
		if err != nil {
			t.Fatal(err)
		}
		w.Pods, w.IPs = append(w.Pods, ns), append(w.IPs, ips[0])
		w.Serve(ns, netip.AddrPortFrom(ips[0], PodPort), fmt.Sprint("pod", i))
	}
	return w
}

// Enter moves the thread into a namespace until leave is called.
func (w *World) Enter(ns netns.NsHandle) (leave func()) {
	w.t.Helper()
	if err := netns.Set(ns); err != nil {
		w.t.Fatal(err)
	}
	return func() {
		if err := netns.Set(w.Node); err != nil {
			w.t.Fatal(err)
		}
	}
}

// Answer says who answered, over what, and from where it was asked.
type Answer struct {
	Who, Network string
	Client       netip.Addr
}

// Serve answers TCP connections and UDP packets in who's name.
func (w *World) Serve(ns netns.NsHandle, at netip.AddrPort, who string) {
	w.t.Helper()
	defer w.Enter(ns)()
	ln, err := net.Listen("tcp", at.String())
	if err != nil {
		w.t.Fatal(err)
	}
	pc, err := net.ListenPacket("udp", at.String())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { ln.Close(); pc.Close() })
	line := func(from net.Addr) []byte {
		host, _, _ := net.SplitHostPort(from.String())
		return fmt.Appendf(nil, "%s %s %s\n", who, from.Network(), host)
	}
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write(line(c.RemoteAddr()))
			c.Close()
		}
	}()
	go func() {
		buf := make([]byte, 64)
		for {
			_, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(line(from), from)
		}
	}()
}

// Ask connects from a namespace and returns who answers.
func (w *World) Ask(ns netns.NsHandle, network, to string) (Answer, error) {
	return w.ask(ns, network, to, patience)
}

// Silent checks that nobody answers.
func (w *World) Silent(ns netns.NsHandle, network, to string) {
	w.t.Helper()
	if a, err := w.ask(ns, network, to, silence); err == nil {
		w.t.Errorf("%s to %s: answered by %s, want nobody", network, to, a.Who)
	}
}

func (w *World) ask(ns netns.NsHandle, network, to string, within time.Duration) (Answer, error) {
	defer w.Enter(ns)()
	c, err := net.DialTimeout(network, to, within)
	if err != nil {
		return Answer{}, err
	}
	defer c.Close()
	return talk(c, within)
}

// Talk asks over a connection.
func (w *World) Talk(c net.Conn) (Answer, error) { return talk(c, patience) }

func talk(c net.Conn, within time.Duration) (Answer, error) {
	if err := c.SetDeadline(time.Now().Add(within)); err != nil {
		return Answer{}, err
	}
	if c.RemoteAddr().Network() == "udp" {
		if _, err := c.Write([]byte("x\n")); err != nil {
			return Answer{}, err
		}
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return Answer{}, err
	}
	var a Answer
	var client string
	if _, err := fmt.Sscan(line, &a.Who, &a.Network, &client); err != nil {
		return Answer{}, fmt.Errorf("answer %q: %w", line, err)
	}
	a.Client, err = netip.ParseAddr(client)
	return a, err
}
