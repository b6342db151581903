package routes

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// serve answers what it is sent with a sum of it, and who sent it.
func (w *world) serve(ns string, ip netip.Addr) {
	w.t.Helper()
	var tcp net.Listener
	var udp net.PacketConn
	err := onThread(ns, func() (err error) {
		at := netip.AddrPortFrom(ip, servePort).String()
		if tcp, err = net.Listen("tcp", at); err != nil {
			return err
		}
		udp, err = net.ListenPacket("udp", at)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { tcp.Close(); udp.Close() })
	answer := func(from net.Addr, sum []byte) []byte {
		host, _, _ := net.SplitHostPort(from.String())
		return fmt.Appendf(nil, "%s %x", host, sum)
	}
	go func() {
		for {
			c, err := tcp.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				h := sha256.New()
				if _, err := io.CopyN(h, c, bulk); err == nil {
					_, _ = c.Write(answer(c.RemoteAddr(), h.Sum(nil)))
				}
			}()
		}
	}()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := udp.ReadFrom(buf)
			if err != nil {
				return
			}
			sum := sha256.Sum256(buf[:n])
			// Answers are as big, so that fragments come back too.
			_, _ = udp.WriteTo(append(answer(from, sum[:]), make([]byte, n)...), from)
		}
	}()
}

// talk sends size bytes from a namespace and returns the address that they arrived with.
func talk(ns, network string, to netip.Addr, size int, within time.Duration) (netip.Addr, error) {
	var from netip.Addr
	err := onThread(ns, func() error {
		c, err := net.DialTimeout(network, netip.AddrPortFrom(to, servePort).String(), within)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(within)); err != nil {
			return err
		}
		data := make([]byte, size)
		for i := range data {
			data[i] = byte(i * 7)
		}
		if _, err := c.Write(data); err != nil {
			return err
		}
		buf := make([]byte, 1<<16)
		n, err := c.Read(buf)
		if err != nil {
			return err
		}
		var host, sum string
		if _, err := fmt.Sscan(strings.TrimRight(string(buf[:n]), "\x00"), &host, &sum); err != nil {
			return err
		}
		if sum != fmt.Sprintf("%x", sha256.Sum256(data)) {
			return fmt.Errorf("%s to %s: what arrived is not what was sent", network, to)
		}
		from, err = netip.ParseAddr(host)
		return err
	})
	return from, err
}

// whole sends a packet of so many bytes in all that must not be fragmented, until it is answered or
// known to be too big.
func whole(ns string, to netip.Addr, size int) error {
	return onThread(ns, func() error {
		c, err := net.Dial("udp4", netip.AddrPortFrom(to, servePort).String())
		if err != nil {
			return err
		}
		defer c.Close()
		raw, err := c.(*net.UDPConn).SyscallConn()
		if err != nil {
			return err
		}
		var set error
		if err := raw.Control(func(fd uintptr) {
			set = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
		}); err != nil || set != nil {
			return errors.Join(err, set)
		}
		for range 10 {
			if err := c.SetDeadline(time.Now().Add(patience / 10)); err != nil {
				return err
			}
			if _, err := c.Write(make([]byte, size-20-8)); err != nil {
				return err
			}
			var n int
			if n, err = c.Read(make([]byte, 1<<16)); n > 0 {
				return nil
			}
		}
		return err
	})
}

// reach checks that a pod is reached from a namespace by TCP, UDP and in fragments, and with which
// source; invalid: any.
func (w *world) reach(from string, to, source netip.Addr) {
	w.t.Helper()
	w.eventually(func() error { // the first packets may come before the routes
		_, err := talk(from, "udp", to, 1, 200*time.Millisecond)
		return err
	})
	for _, try := range []struct {
		network string
		size    int
	}{{"tcp", bulk}, {"udp", 100}, {"udp", 9000}} {
		var got netip.Addr
		var err error
		w.eventually(func() error {
			got, err = talk(from, try.network, to, try.size, 3*time.Second)
			return err
		})
		if source.IsValid() && got != source {
			w.t.Errorf("%s of %d bytes to %s came from %s, want %s", try.network, try.size, to, got, source)
		}
	}
}

// eventually repeats until there is no error.
func (w *world) eventually(f func() error) {
	w.t.Helper()
	end := time.Now().Add(patience)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			w.t.Fatal(err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// all pods reach each other in both families, with their own addresses.
func (w *world) allReach() {
	w.t.Helper()
	for _, from := range w.names {
		for _, p := range w.machines[from].pods {
			for _, to := range w.names {
				for _, q := range w.machines[to].pods {
					for _, ip := range q.ips {
						if p.ns != q.ns && p.ip(ip.Is6()).IsValid() {
							w.reach(p.ns, ip, p.ip(ip.Is6()))
						}
					}
				}
			}
		}
	}
}

// testLog keeps quiet once the test has ended.
type testLog struct{ t *testing.T }

func (l *testLog) Write(b []byte) (int, error) {
	if l.t.Context().Err() == nil {
		l.t.Log(strings.TrimSpace(string(b)))
	}
	return len(b), nil
}
