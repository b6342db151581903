package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Field is something of a packet or connection that keys and values are made of.
type Field struct {
	kind fieldKind
	// mod of Random
	mod uint32
}

type fieldKind uint8

const (
	saddr fieldKind = iota + 1
	daddr
	origDaddr
	proto
	dport
	random
	mark
	saddrType
	daddrType
	ctStatus
	ctState
)

var (
	Saddr     = Field{kind: saddr}     // source address
	Daddr     = Field{kind: daddr}     // destination address
	OrigDaddr = Field{kind: origDaddr} // destination before DNAT, from connection tracking
	Proto     = Field{kind: proto}     // layer 4 protocol
	Dport     = Field{kind: dport}     // destination port
	Mark      = Field{kind: mark}      // packet mark
	SaddrType = Field{kind: saddrType} // routing type of the source address, host-endian u32
	DaddrType = Field{kind: daddrType} // routing type of the destination address, host-endian u32
	CtStatus  = Field{kind: ctStatus}  // connection tracking status bits, host-endian u32
	CtState   = Field{kind: ctState}   // connection tracking state bits, host-endian u32
)

// Random is a number below mod, host-endian u32.
func Random(mod uint32) Field { return Field{kind: random, mod: mod} }

// Values that statements compare with.
const (
	AddrTypeLocal = 2      // RTN_LOCAL
	CtDNAT        = 1 << 5 // IPS_DST_NAT
	CtEstablished = 1 << 1 // NF_CT_STATE_BIT(IP_CT_ESTABLISHED)
	CtRelated     = 1 << 2 // NF_CT_STATE_BIT(IP_CT_RELATED)
	CtNew         = 1 << 3 // NF_CT_STATE_BIT(IP_CT_NEW)
)

func (f Family) typeOf(x Field) nftables.SetDatatype {
	switch x.kind {
	case saddr, daddr, origDaddr:
		if f != IPv4 {
			return nftables.TypeIP6Addr
		}
		return nftables.TypeIPAddr
	case proto:
		return nftables.TypeInetProto
	case dport:
		return nftables.TypeInetService
	case mark, random:
		// Also of four bytes in the host's order; nft(8) can't list concatenations with an
		// integer, whose length it does not know.
		return nftables.TypeMark
	}
	return nftables.TypeInteger
}

func (f Family) concat(fs []Field) nftables.SetDatatype {
	if len(fs) == 1 {
		return f.typeOf(fs[0])
	}
	ts := make([]nftables.SetDatatype, len(fs))
	for i, x := range fs {
		ts[i] = f.typeOf(x)
	}
	return nftables.MustConcatSetType(ts...)
}

// registers that a field fills, four bytes each.
func (f Family) registers(fs []Field) uint32 {
	n := uint32(0)
	for _, x := range fs {
		n += (f.typeOf(x).Bytes + 3) / 4
	}
	return n
}

// Wire forms of values for elements, padded to registers.

// Addr is an address.
func Addr(a netip.Addr) []byte { return a.AsSlice() }

// Port is a port.
func Port(p uint16) []byte { return []byte{byte(p >> 8), byte(p), 0, 0} }

// Protocol is a layer 4 protocol number.
func Protocol(p uint8) []byte { return []byte{p, 0, 0, 0} }

// Number is a host-endian u32.
func Number(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// Key joins wire forms. A key of one field must not be padded; see Plain.
func Key(parts ...[]byte) []byte {
	var k []byte
	for _, p := range parts {
		k = append(k, p...)
	}
	return k
}

// Statement is a part of a rule: a condition, which ends the rule when it does not hold, or an action.
type Statement interface {
	compile(c *compiler) error
}

type (
	// InSet holds when Key is in the set (not, when Not is set).
	InSet struct {
		Key []Field
		Set string
		Not bool
	}
	// InPrefix holds when an address field is in the prefix (not, when Not is set).
	InPrefix struct {
		Field  Field
		Prefix netip.Prefix
		Not    bool
	}
	// Equal holds when the field, with Mask if not 0, equals Value: for host-endian u32 fields.
	Equal struct {
		Field       Field
		Mask, Value uint32
		Not         bool
	}
	// FromLink holds when a packet came by a link whose name begins so.
	FromLink struct{ Prefix string }
	// OfIPv6 holds for packets of IPv6, in tables that see others too.
	OfIPv6 struct{}
	// VerdictMap goes where the map says, on when it says nothing.
	VerdictMap struct {
		Key []Field
		Map string
	}
	// DNATMap rewrites the destination to the address and port that the map gives for Key,
	// on when it gives nothing.
	DNATMap struct {
		Key []Field
		Map string
		// Remember, if set, is a dynamic map in which the choice is kept under
		// RememberKey for RememberFor after its last use.
		Remember    string
		RememberKey []Field
		RememberFor time.Duration
	}
	// OrMark sets bits of the mark.
	OrMark struct{ Bits uint32 }
	// ClearMark clears bits of the mark.
	ClearMark struct{ Bits uint32 }
	// Masquerade rewrites the source to the address of the outgoing link.
	Masquerade struct{}
	// Reject answers with ICMP port unreachable; a TCP client sees "connection refused".
	Reject struct{}
	// Drop drops.
	Drop struct{}
	// Accept ends the base chain; those of other hooks and priorities follow.
	Accept struct{}
	// Jump to a chain and come back.
	Jump struct{ Chain string }
)

// firstRegister of the 32-bit ones; see NFT_REG32_00.
const firstRegister = 8

type compiler struct {
	b     *Batch
	next  uint32
	exprs []expr.Any
}

func (b *Batch) compile(r Rule) ([]expr.Any, error) {
	c := &compiler{b: b, next: firstRegister}
	for _, s := range r {
		if err := s.compile(c); err != nil {
			return nil, err
		}
	}
	return c.exprs, nil
}

func (c *compiler) add(e ...expr.Any) { c.exprs = append(c.exprs, e...) }

// load puts the fields into consecutive registers and returns the first.
func (c *compiler) load(fs ...Field) uint32 {
	first := c.next
	family := c.b.t.family
	for _, f := range fs {
		addrLen, src, dst := uint32(4), uint32(12), uint32(16)
		if family != IPv4 {
			addrLen, src, dst = 16, 8, 24
		}
		switch f.kind {
		case saddr:
			c.add(&expr.Payload{DestRegister: c.next, Base: expr.PayloadBaseNetworkHeader, Offset: src, Len: addrLen})
		case daddr:
			c.add(&expr.Payload{DestRegister: c.next, Base: expr.PayloadBaseNetworkHeader, Offset: dst, Len: addrLen})
		case origDaddr:
			c.add(&expr.Ct{Register: c.next, Key: expr.CtKeyDST, Direction: 0})
		case proto:
			c.add(&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: c.next})
		case dport:
			c.add(&expr.Payload{DestRegister: c.next, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2})
		case random:
			c.add(&expr.Numgen{Register: c.next, Modulus: f.mod, Type: unix.NFT_NG_RANDOM})
		case mark:
			c.add(&expr.Meta{Key: expr.MetaKeyMARK, Register: c.next})
		case saddrType:
			c.add(&expr.Fib{Register: c.next, ResultADDRTYPE: true, FlagSADDR: true})
		case daddrType:
			c.add(&expr.Fib{Register: c.next, ResultADDRTYPE: true, FlagDADDR: true})
		case ctStatus:
			c.add(&expr.Ct{Register: c.next, Key: expr.CtKeySTATUS})
		case ctState:
			c.add(&expr.Ct{Register: c.next, Key: expr.CtKeySTATE})
		}
		c.next += family.registers([]Field{f})
	}
	return first
}

func (s InSet) compile(c *compiler) error {
	r := c.load(s.Key...)
	c.next = r
	if !c.b.has(s.Set) {
		return c.b.err
	}
	c.add(&expr.Lookup{SourceRegister: r, SetName: s.Set, Invert: s.Not})
	return nil
}

func (s InPrefix) compile(c *compiler) error {
	r := c.load(s.Field)
	c.next = r
	bits := s.Prefix.Addr().BitLen()
	mask := make([]byte, bits/8)
	for i := range s.Prefix.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	op := expr.CmpOpEq
	if s.Not {
		op = expr.CmpOpNeq
	}
	c.add(
		&expr.Bitwise{SourceRegister: r, DestRegister: r, Len: uint32(bits / 8), Mask: mask, Xor: make([]byte, bits/8)},
		&expr.Cmp{Op: op, Register: r, Data: s.Prefix.Masked().Addr().AsSlice()},
	)
	return nil
}

func (s Equal) compile(c *compiler) error {
	r := c.load(s.Field)
	c.next = r
	if s.Mask != 0 {
		c.add(&expr.Bitwise{SourceRegister: r, DestRegister: r, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(s.Mask), Xor: make([]byte, 4)})
	}
	op := expr.CmpOpEq
	if s.Not {
		op = expr.CmpOpNeq
	}
	c.add(&expr.Cmp{Op: op, Register: r, Data: binaryutil.NativeEndian.PutUint32(s.Value)})
	return nil
}

func (s FromLink) compile(c *compiler) error {
	c.add(&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: c.next}, &expr.Cmp{Op: expr.CmpOpEq, Register: c.next, Data: []byte(s.Prefix)})
	return nil
}

func (OfIPv6) compile(c *compiler) error {
	c.add(&expr.Meta{Key: expr.MetaKeyPROTOCOL, Register: c.next}, &expr.Cmp{Op: expr.CmpOpEq, Register: c.next, Data: binary.BigEndian.AppendUint16(nil, unix.ETH_P_IPV6)})
	return nil
}

func (s VerdictMap) compile(c *compiler) error {
	r := c.load(s.Key...)
	c.next = r
	if !c.b.has(s.Map) {
		return c.b.err
	}
	// Register 0 is the verdict register.
	c.add(&expr.Lookup{SourceRegister: r, DestRegister: 0, IsDestRegSet: true, SetName: s.Map})
	return nil
}

func (s DNATMap) compile(c *compiler) error {
	if !c.b.has(s.Map) {
		return c.b.err
	}
	start := c.next
	key := c.load(s.Key...)
	// The result replaces the key: with IPv6 there is no room for both.
	dest := key
	c.add(&expr.Lookup{SourceRegister: key, DestRegister: dest, IsDestRegSet: true, SetName: s.Map})
	width := c.b.t.family.registers([]Field{Daddr})
	if s.Remember != "" {
		if !c.b.has(s.Remember) {
			return c.b.err
		}
		c.next = dest + width + 1
		if used := c.next - firstRegister + c.b.t.family.registers(s.RememberKey); used > 16 {
			return fmt.Errorf("needs %d registers of 16", used)
		}
		k := c.load(s.RememberKey...)
		c.add(&expr.Dynset{SrcRegKey: k, SrcRegData: dest, SetName: s.Remember,
			Operation: uint32(unix.NFT_DYNSET_OP_UPDATE), Timeout: s.RememberFor})
	}
	family := uint32(unix.NFPROTO_IPV4)
	if c.b.t.family == IPv6 {
		family = unix.NFPROTO_IPV6
	}
	c.add(&expr.NAT{Type: expr.NATTypeDestNAT, Family: family, RegAddrMin: dest, RegProtoMin: dest + width, Specified: true})
	c.next = start
	return nil
}

func (s OrMark) compile(c *compiler) error { return setMark(c, ^s.Bits, s.Bits) }

func (s ClearMark) compile(c *compiler) error { return setMark(c, ^s.Bits, 0) }

// setMark: mark = (mark & mask) ^ xor.
func setMark(c *compiler, mask, xor uint32) error {
	r := c.load(Mark)
	c.next = r
	c.add(
		&expr.Bitwise{SourceRegister: r, DestRegister: r, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(mask), Xor: binaryutil.NativeEndian.PutUint32(xor)},
		&expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: r},
	)
	return nil
}

func (Masquerade) compile(c *compiler) error { c.add(&expr.Masq{FullyRandom: true}); return nil }
func (Drop) compile(c *compiler) error {
	c.add(&expr.Verdict{Kind: expr.VerdictDrop})
	return nil
}
func (Accept) compile(c *compiler) error {
	c.add(&expr.Verdict{Kind: expr.VerdictAccept})
	return nil
}
func (s Jump) compile(c *compiler) error {
	c.add(&expr.Verdict{Kind: expr.VerdictJump, Chain: s.Chain})
	return nil
}

func (Reject) compile(c *compiler) error {
	const icmpPortUnreachable, icmpv6PortUnreachable = 3, 4
	code := uint8(icmpPortUnreachable)
	if c.b.t.family == IPv6 {
		code = icmpv6PortUnreachable
	}
	c.add(&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code})
	return nil
}
