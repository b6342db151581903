package monitor

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Message types, see monitor.h.
const (
	reqStatus = 'S'
	reqKill   = 'K'
	reqReopen = 'R'
	reqAttach = 'A'
	reqStdin  = 'I'
	reqClose  = 'C'
	reqResize = 'W'

	rspAck    = 'a'
	rspStatus = 'P'
	rspExit   = 'X'
	rspStdout = 'O'
	rspStderr = 'E'
)

const chunk = 16384 // largest payload

// dialPatience is how long a monitor may be too busy to take a connection.
const dialPatience = 10 * time.Second

// ErrGone says that there is no monitor to speak to any more.
var ErrGone = errors.New("the container's monitor is gone")

// Conn is a connection to a monitor. Its requests may be made by several goroutines.
type Conn struct {
	c  net.Conn
	mu sync.Mutex
}

// Dial connects to the monitor of dir, or returns ErrGone.
func Dial(dir string) (*Conn, error) {
	// By way of a descriptor: a socket's path holds only 107 bytes.
	d, err := os.Open(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("dial monitor: %w", err)
	}
	defer func() { _ = d.Close() }()
	path := filepath.Join("/proc/self/fd", fmt.Sprint(d.Fd()), "monitor.sock")
	c, err := net.Dial("unixpacket", path)
	for deadline := time.Now().Add(dialPatience); errors.Is(err, unix.EAGAIN) && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond) // a full backlog cannot be awaited
		c, err = net.Dial("unixpacket", path)
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ECONNREFUSED) {
		return nil, ErrGone
	}
	if err != nil {
		return nil, fmt.Errorf("dial monitor: %w", err)
	}
	return &Conn{c: c}, nil
}

// Close ends the connection.
func (m *Conn) Close() error { return m.c.Close() }

func (m *Conn) send(kind byte, payload []byte) error {
	if _, err := m.c.Write(append([]byte{kind}, payload...)); err != nil {
		return gone(err)
	}
	return nil
}

func gone(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return ErrGone
	}
	return fmt.Errorf("monitor: %w", err)
}

// call makes a request that is acknowledged. Only for connections that are
// neither attached nor watching.
func (m *Conn) call(kind byte, payload []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.send(kind, payload); err != nil {
		return err
	}
	var buf [chunk + 1]byte
	n, err := m.c.Read(buf[:])
	if err != nil {
		return gone(err)
	}
	if n == 0 {
		return ErrGone
	}
	if n < 5 || buf[0] != rspAck {
		return fmt.Errorf("monitor: unexpected answer %q", buf[:n])
	}
	if errno := syscall.Errno(binary.NativeEndian.Uint32(buf[1:])); errno != 0 {
		return errno
	}
	return nil
}

// once dials, makes one request and hangs up.
func once(dir string, kind byte, payload []byte) error {
	c, err := Dial(dir)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	return c.call(kind, payload)
}

// Signal sends a signal to the container's init; unix.ESRCH once it has exited.
func Signal(dir string, sig syscall.Signal) error {
	return once(dir, reqKill, binary.NativeEndian.AppendUint32(nil, uint32(sig)))
}

// ReopenLog makes the monitor open its log file by name again.
func ReopenLog(dir string) error { return once(dir, reqReopen, nil) }

// Resize sets the size of the container's terminal.
func Resize(dir string, rows, cols uint16) error {
	b := binary.NativeEndian.AppendUint16(nil, rows)
	return once(dir, reqResize, binary.NativeEndian.AppendUint16(b, cols))
}

// Watch is a subscription to the container's exit.
type Watch struct {
	c   *Conn
	PID int
}

// Subscribe asks for the init's pid and for word of its exit.
func Subscribe(dir string) (*Watch, error) {
	c, err := Dial(dir)
	if err != nil {
		return nil, err
	}
	if err := c.send(reqStatus, nil); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	var buf [chunk + 1]byte
	n, err := c.c.Read(buf[:])
	if err != nil || n == 0 {
		return nil, errors.Join(ErrGone, c.Close())
	}
	if n < 9 || buf[0] != rspStatus {
		return nil, errors.Join(fmt.Errorf("monitor: unexpected answer %q", buf[:n]), c.Close())
	}
	return &Watch{c: c, PID: int(int32(binary.NativeEndian.Uint32(buf[5:])))}, nil
}

// Wait blocks until the container has exited and its output is in the log, or
// returns ErrGone when the monitor went without a word.
func (w *Watch) Wait() (*Exit, error) {
	defer func() { _ = w.c.Close() }()
	buf := make([]byte, 512)
	for {
		n, err := w.c.c.Read(buf)
		if err != nil {
			return nil, gone(err)
		}
		if n == 0 {
			return nil, ErrGone
		}
		if buf[0] != rspExit {
			continue
		}
		var e Exit
		if err := json.Unmarshal(buf[1:n], &e); err != nil {
			return nil, fmt.Errorf("parse exit from monitor: %w", err)
		}
		return &e, nil
	}
}

// Close gives the subscription up.
func (w *Watch) Close() error { return w.c.Close() }

// Attach copies the container's output to out and errOut (nil for unwanted)
// and in to its input until the container ends, in has ended and nothing else
// is wanted, or the connection is closed. closed is closed by the caller to end it.
func Attach(dir string, in io.Reader, out, errOut io.Writer, closed <-chan struct{}) error {
	c, err := Dial(dir)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.call(reqAttach, nil); err != nil {
		return err
	}
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-closed:
			_ = c.Close()
		case <-ended:
		}
	}()
	if in != nil {
		// Ends when the caller's stream ends; the caller closes it.
		go c.feed(in)
	}
	buf := make([]byte, chunk+1)
	for {
		n, err := c.c.Read(buf)
		if n == 0 || err != nil {
			if err == nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.Is(err, unix.ECONNRESET) {
				return nil
			}
			return fmt.Errorf("attach: %w", err)
		}
		var w io.Writer
		switch buf[0] {
		case rspStdout:
			w = out
		case rspStderr:
			w = errOut
		}
		if w == nil {
			continue
		}
		if _, err := w.Write(buf[1:n]); err != nil {
			return fmt.Errorf("attach: %w", err)
		}
	}
}

func (m *Conn) feed(in io.Reader) {
	buf := make([]byte, chunk)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if serr := m.send(reqStdin, buf[:n]); serr != nil {
				return
			}
		}
		if err != nil {
			_ = m.send(reqClose, nil)
			return
		}
	}
}
