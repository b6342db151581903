package nft

import (
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// wire is netlink messages in the making. Elements come in tens of thousands, so what
// encodes them allocates nothing but the buffer.
type wire struct {
	buf []byte
	// last is where the last message starts; -1: none.
	last int
}

const (
	headerLen = unix.SizeofNlMsghdr
	// seqBegin, seqMiddle and seqLast tell answers apart: an error names its message by it.
	seqBegin, seqMiddle, seqLast = 1, 2, 3
)

func newWire() *wire { return &wire{last: -1} }

// message starts one about a table of a family; end finishes it.
func (w *wire) message(kind, flags uint16, family byte) {
	w.start(unix.NFNL_SUBSYS_NFTABLES<<8|kind, flags, seqMiddle, family, 0)
}

func (w *wire) start(kind, flags uint16, seq uint32, family byte, resource uint16) {
	w.last = len(w.buf)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, 0) // length, by end
	w.buf = binary.NativeEndian.AppendUint16(w.buf, kind)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, flags|unix.NLM_F_REQUEST)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, seq)
	w.buf = binary.NativeEndian.AppendUint32(w.buf, 0)
	w.buf = append(w.buf, family, unix.NFNETLINK_V0, byte(resource>>8), byte(resource))
}

func (w *wire) end() {
	binary.NativeEndian.PutUint32(w.buf[w.last:], uint32(len(w.buf)-w.last))
}

// ackLast asks for an answer to the last message: the kernel handles a batch in order and
// answers for any message that fails, so one answer tells of all.
func (w *wire) ackLast() {
	h := w.buf[w.last:]
	binary.NativeEndian.PutUint16(h[6:], binary.NativeEndian.Uint16(h[6:])|unix.NLM_F_ACK)
	binary.NativeEndian.PutUint32(h[8:], seqLast)
}

func (w *wire) header(kind, length uint16) {
	w.buf = binary.NativeEndian.AppendUint16(w.buf, length+4)
	w.buf = binary.NativeEndian.AppendUint16(w.buf, kind)
}

func (w *wire) pad() {
	for len(w.buf)%4 != 0 {
		w.buf = append(w.buf, 0)
	}
}

func (w *wire) bytes(kind uint16, b []byte) {
	w.header(kind, uint16(len(b)))
	w.buf = append(w.buf, b...)
	w.pad()
}

func (w *wire) text(kind uint16, s string) {
	w.header(kind, uint16(len(s)+1))
	w.buf = append(append(w.buf, s...), 0)
	w.pad()
}

func (w *wire) u32(kind uint16, v uint32) {
	w.header(kind, 4)
	w.buf = binary.BigEndian.AppendUint32(w.buf, v)
}

func (w *wire) u64(kind uint16, v uint64) {
	w.header(kind, 8)
	w.buf = binary.BigEndian.AppendUint64(w.buf, v)
}

// open starts a nested attribute, which close ends.
func (w *wire) open(kind uint16) (at int) {
	at = len(w.buf)
	w.header(kind|unix.NLA_F_NESTED, 0)
	return at
}

func (w *wire) close(at int) {
	binary.NativeEndian.PutUint16(w.buf[at:], uint16(len(w.buf)-at))
}

// elements are messages that change one set's elements.
type elements struct {
	*wire
	kind, flags uint16
	family      byte
	table, set  string
	list        int // where the open list starts; 0: no message is open
}

// listLimit keeps the list, whose length field has 16 bits, from growing over.
const listLimit = 60_000

func (e *elements) put(el *Element) {
	if e.list != 0 && len(e.buf)-e.list > listLimit {
		e.finish()
	}
	if e.list == 0 {
		e.message(e.kind, e.flags, e.family)
		e.text(unix.NFTA_SET_ELEM_LIST_TABLE, e.table)
		e.text(unix.NFTA_SET_ELEM_LIST_SET, e.set)
		e.list = e.open(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	}
	item := e.open(unix.NFTA_LIST_ELEM)
	e.data(unix.NFTA_SET_ELEM_KEY, el.Key)
	if len(el.KeyEnd) > 0 {
		e.data(setElemKeyEnd, el.KeyEnd)
	}
	if el.Timeout > 0 {
		e.u64(unix.NFTA_SET_ELEM_TIMEOUT, uint64(el.Timeout.Milliseconds()))
	}
	if el.Expires > 0 {
		e.u64(unix.NFTA_SET_ELEM_EXPIRATION, uint64(el.Expires.Milliseconds()))
	}
	switch {
	case el.Goto != "":
		data := e.open(unix.NFTA_SET_ELEM_DATA)
		verdict := e.open(unix.NFTA_DATA_VERDICT)
		if el.Goto == drop {
			e.u32(unix.NFTA_VERDICT_CODE, nfDrop)
		} else {
			e.u32(unix.NFTA_VERDICT_CODE, gotoCode)
			e.text(unix.NFTA_VERDICT_CHAIN, el.Goto)
		}
		e.close(verdict)
		e.close(data)
	case len(el.Value) > 0:
		e.data(unix.NFTA_SET_ELEM_DATA, el.Value)
	}
	e.close(item)
}

// Not in x/sys/unix.
const (
	setElemKeyEnd = 10 // NFTA_SET_ELEM_KEY_END
	setDescConcat = 2  // NFTA_SET_DESC_CONCAT
	setFieldLen   = 1  // NFTA_SET_FIELD_LEN
	setConcat     = 0x80
	nfDrop        = 0
)

// gotoCode is NFT_GOTO (-4) as it travels.
const gotoCode = 0xffff_fffc

func (e *elements) data(kind uint16, b []byte) {
	at := e.open(kind)
	e.bytes(unix.NFTA_DATA_VALUE, b)
	e.close(at)
}

func (e *elements) finish() {
	if e.list != 0 {
		e.close(e.list)
		e.end()
		e.list = 0
	}
}
