package portmap

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// freePort is one that nobody had a moment ago.
func freePort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return netip.MustParseAddrPort(l.Addr().String()).Port()
}

func run(t *testing.T, mappings ...Mapping) (stop func()) {
	t.Helper()
	p, err := New(mappings, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func dial(t *testing.T, network string, port uint16) net.Conn {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		c, err := net.Dial(network, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port).String())
		if err == nil {
			t.Cleanup(func() { c.Close() })
			return c
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

// TestStreams: both directions, each ended on its own.
func TestStreams(t *testing.T) {
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	go func() { // answers only when the question has ended
		for {
			c, err := target.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				question, err := io.ReadAll(c)
				if err == nil {
					_, _ = c.Write([]byte(strings.ToUpper(string(question))))
				}
			}()
		}
	}()
	port := freePort(t)
	stop := run(t, Mapping{TCP, netip.AddrPortFrom(netip.IPv4Unspecified(), port), netip.MustParseAddrPort(target.Addr().String())})
	long := strings.Repeat("question ", 100_000)
	for range 3 {
		c := dial(t, "tcp", port)
		go func() {
			_, _ = io.WriteString(c, long)
			_ = c.(*net.TCPConn).CloseWrite()
		}()
		answer, err := io.ReadAll(c)
		if err != nil || string(answer) != strings.ToUpper(long) {
			t.Fatalf("%d bytes of %d, %v", len(answer), len(long), err)
		}
	}
	// Who runs no longer holds neither port nor connections.
	c := dial(t, "tcp", port)
	stop()
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("a connection outlives its end")
	}
	if err := (Mapping{Protocol: TCP, Listen: netip.AddrPortFrom(netip.IPv4Unspecified(), port)}).Free(); err != nil {
		t.Error(err)
	}
}

// TestAPortInUse is told by name, and taken when it is let go.
func TestAPortInUse(t *testing.T) {
	holder, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(holder.Addr().String())
	m := Mapping{TCP, at, at}
	if err := m.Free(); err == nil || !strings.Contains(err.Error(), m.String()) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("%v", err)
	}
	target, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	m.Target = netip.MustParseAddrPort(target.Addr().String())
	run(t, m)
	holder.Close()
	dial(t, "tcp", at.Port())
	if _, err := target.Accept(); err != nil {
		t.Fatal(err)
	}
}

// TestDatagrams: answers reach who asked.
func TestDatagrams(t *testing.T) {
	target, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer target.Close()
	go func() {
		buf := make([]byte, 100)
		for {
			n, from, err := target.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = target.WriteTo([]byte(strings.ToUpper(string(buf[:n]))), from)
		}
	}()
	port := freePort(t)
	run(t, Mapping{UDP, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port), netip.MustParseAddrPort(target.LocalAddr().String())})
	one, two := dial(t, "udp", port), dial(t, "udp", port)
	ask := func(c net.Conn, what string) {
		t.Helper()
		buf := make([]byte, 100)
		for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
			_, _ = c.Write([]byte(what))
			_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			if n, err := c.Read(buf); err == nil {
				if got := string(buf[:n]); got != strings.ToUpper(what) {
					t.Fatalf("%q", got)
				}
				return
			}
		}
		t.Fatal("no answer")
	}
	ask(one, "one")
	ask(two, "two")
	ask(one, "one")
}

func TestNewRefuses(t *testing.T) {
	at := netip.MustParseAddrPort("127.0.0.1:80")
	for _, m := range []Mapping{{}, {Protocol: "SCTP", Listen: at, Target: at}, {Protocol: TCP, Listen: at}, {Protocol: TCP, Target: at}} {
		if _, err := New([]Mapping{m}, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%+v is taken", m)
		}
	}
}
