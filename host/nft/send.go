package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// netlinkBuffer lets one batch of tens of thousands of elements fit the socket.
const netlinkBuffer = 64 << 20

// answerWithin is how long the kernel, which answers before the send returns, may take.
const answerWithin = 30 * time.Second

// transact sends messages as one batch and waits for the kernel's answer.
func (t *Table) transact(parts []*wire) error {
	var last *wire
	begin, end := newWire(), newWire()
	begin.start(unix.NFNL_MSG_BATCH_BEGIN, 0, seqBegin, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	begin.end()
	end.start(unix.NFNL_MSG_BATCH_END, 0, seqMiddle, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	end.end()
	bufs := [][]byte{begin.buf}
	for _, w := range parts {
		if w.last >= 0 {
			last = w
			bufs = append(bufs, w.buf)
		}
	}
	if last == nil {
		return nil
	}
	last.ackLast()
	bufs = append(bufs, end.buf)

	if t.socket == nil {
		fd, err := open()
		if err != nil {
			return err
		}
		t.socket = os.NewFile(uintptr(fd), "nftables")
	}
	defer runtime.KeepAlive(t.socket)
	fd := int(t.socket.Fd())
	if _, err := unix.SendmsgBuffers(fd, bufs, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0); err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	err := answer(fd)
	if err != nil {
		// Answers that are still under way must not be taken for the next batch's.
		t.socket.Close()
		t.socket = nil
	}
	return err
}

func open() (fd int, err error) {
	if fd, err = unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER); err != nil {
		return 0, fmt.Errorf("open nftables: %w", os.NewSyscallError("socket", err))
	}
	timeout := unix.NsecToTimeval(answerWithin.Nanoseconds())
	err = errors.Join(
		setsockopt(fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, netlinkBuffer),
		setsockopt(fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1), // an error need not carry its message
		os.NewSyscallError("setsockopt", unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &timeout)),
		os.NewSyscallError("bind", unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})),
	)
	if err != nil {
		return 0, errors.Join(err, os.NewSyscallError("close", unix.Close(fd)))
	}
	return fd, nil
}

func setsockopt(fd, level, name, value int) error {
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(fd, level, name, value))
}

// answer reads until the last message's answer, or until the whole batch is refused.
func answer(fd int) error {
	var errs []error
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return errors.Join(append(errs, os.NewSyscallError("recvfrom", err))...)
		}
		for b := buf[:n]; len(b) >= headerLen+4; {
			length := int(binary.NativeEndian.Uint32(b))
			if length < headerLen+4 || length > len(b) {
				return errCut
			}
			kind, seq := binary.NativeEndian.Uint16(b[4:]), binary.NativeEndian.Uint32(b[8:])
			if kind == unix.NLMSG_ERROR {
				code := int32(binary.NativeEndian.Uint32(b[headerLen:]))
				if code != 0 {
					errs = append(errs, unix.Errno(-code))
				}
				if seq == seqLast || seq == seqBegin {
					return errors.Join(dedup(errs)...)
				}
			}
			b = b[min((length+3)&^3, len(b)):]
		}
	}
}

// dedup keeps an error once: a missing set fails every message about it.
func dedup(errs []error) (out []error) {
	seen := map[error]bool{}
	for _, e := range errs {
		if !seen[e] {
			seen[e] = true
			out = append(out, e)
		}
	}
	return out
}
