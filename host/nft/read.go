package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Elements reads what a set holds now, whoever made it; none if there is no such set.
func (t *Table) Elements(set string) ([]Element, error) {
	w := newWire()
	w.message(unix.NFT_MSG_GETSETELEM, unix.NLM_F_DUMP, t.family.proto())
	w.text(unix.NFTA_SET_ELEM_LIST_TABLE, t.name)
	w.text(unix.NFTA_SET_ELEM_LIST_SET, set)
	w.end()
	var out []Element
	err := dump(w.buf, func(payload []byte) error {
		return attributes(payload, func(kind uint16, list []byte) error {
			if kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				return nil
			}
			return attributes(list, func(_ uint16, item []byte) error {
				el, err := element(item)
				out = append(out, el)
				return err
			})
		})
	})
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read set %s of table %s: %w", set, t.name, err)
	}
	return out, nil
}

func element(item []byte) (el Element, err error) {
	err = attributes(item, func(kind uint16, b []byte) error {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			return value(b, &el.Key)
		case setElemKeyEnd:
			return value(b, &el.KeyEnd)
		case unix.NFTA_SET_ELEM_DATA:
			return value(b, &el.Value)
		case unix.NFTA_SET_ELEM_TIMEOUT, unix.NFTA_SET_ELEM_EXPIRATION:
			if len(b) < 8 {
				return errCut
			}
			d := time.Duration(binary.BigEndian.Uint64(b)) * time.Millisecond
			if kind == unix.NFTA_SET_ELEM_TIMEOUT {
				el.Timeout = d
			} else {
				el.Expires = d
			}
		}
		return nil
	})
	return el, err
}

// value copies the bytes of a data attribute; a verdict has none.
func value(b []byte, to *[]byte) error {
	return attributes(b, func(kind uint16, data []byte) error {
		if kind == unix.NFTA_DATA_VALUE {
			*to = append([]byte(nil), data...)
		}
		return nil
	})
}

var errCut = errors.New("the kernel's answer is cut short")

// attributes calls f with each attribute.
func attributes(b []byte, f func(kind uint16, data []byte) error) error {
	for len(b) >= 4 {
		n := int(binary.NativeEndian.Uint16(b))
		if n < 4 || n > len(b) {
			return errCut
		}
		if err := f(binary.NativeEndian.Uint16(b[2:])&0x3fff, b[4:n]); err != nil {
			return err
		}
		b = b[min((n+3)&^3, len(b)):]
	}
	return nil
}

// dump sends a request and calls f with what follows the header of nftables in each answer.
func dump(request []byte, f func([]byte) error) error {
	fd, err := open()
	if err != nil {
		return err
	}
	defer unix.Close(fd) // nothing was written
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return os.NewSyscallError("sendto", err)
	}
	buf := make([]byte, 64<<10)
	for {
		n, _, err := unix.Recvfrom(fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return os.NewSyscallError("recvfrom", err)
		}
		for b := buf[:n]; len(b) >= headerLen+4; {
			length := int(binary.NativeEndian.Uint32(b))
			if length < headerLen+4 || length > len(b) {
				return errCut
			}
			switch binary.NativeEndian.Uint16(b[4:]) {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				if code := int32(binary.NativeEndian.Uint32(b[headerLen:])); code != 0 {
					return unix.Errno(-code)
				}
				return nil
			}
			if err := f(b[headerLen+4 : length]); err != nil {
				return err
			}
			b = b[min((length+3)&^3, len(b)):]
		}
	}
}
