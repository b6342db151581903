package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// netlinkBuffer lets one batch of tens of thousands of elements fit the socket.
const netlinkBuffer = 64 << 20

// answerWithin is how long the kernel, which answers before the send returns, may take.
const answerWithin = 30 * time.Second

// transact sends messages as one batch and waits for the kernel's answer. The socket
// belongs to the network namespace of the calling thread.
func transact(parts []*wire) error {
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

	fd, err := open()
	if err != nil {
		return err
	}
	defer unix.Close(fd) // nothing is lost: the answer has come
	if _, err := unix.SendmsgBuffers(fd, bufs, nil, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}, 0); err != nil {
		return os.NewSyscallError("sendmsg", err)
	}
	return answer(fd)
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
