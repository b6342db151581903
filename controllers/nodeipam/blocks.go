package nodeipam

import (
	"net/netip"
)

// blocks is one range of the cluster as a binary tree: each level halves the addresses, down
// to the size of a node's part. Only blocks that hold something exist, so what it costs to
// take, to give back and to find a free part is the depth of the tree, however many nodes
// there are and however large the range is.
type blocks struct {
	prefix netip.Prefix
	mask   int
	root   block
	steps  int // blocks visited so far: what the work is measured by
}

// block is held as a whole, or in parts, or (when it is the root) not at all.
type block struct {
	half [2]*block
	by   *holding              // the first that holds all of it
	more map[*holding]struct{} // others, which should not be
	full bool                  // no part is free
}

func newBlocks(prefix netip.Prefix, mask int) *blocks {
	return &blocks{prefix: prefix.Masked(), mask: mask}
}

// fit widens or narrows a CIDR to a block of the tree: what lies inside a node's part takes
// all of that part. False: it does not concern this range.
func (b *blocks) fit(p netip.Prefix) (netip.Prefix, bool) {
	if !p.Overlaps(b.prefix) {
		return netip.Prefix{}, false
	}
	if p.Bits() <= b.prefix.Bits() {
		return b.prefix, true
	}
	return netip.PrefixFrom(p.Addr(), min(p.Bits(), b.mask)).Masked(), true
}

// take notes a holder of a block that fit has returned, and returns another that holds it
// too, or some of it; nil is as it should be.
func (b *blocks) take(p netip.Prefix, h *holding) (other *holding) {
	var path [129]*block
	n := 0
	at := &b.root
	addr := bitsOf(p.Addr())
	for level := b.prefix.Bits(); ; level++ {
		b.steps++
		path[n] = at
		n++
		if o := at.otherThan(h); o != nil {
			other = o
		}
		if level == p.Bits() {
			break
		}
		next := &at.half[addr.bit(level)]
		if *next == nil {
			*next = &block{}
		}
		at = *next
	}
	for in := at; other == nil && in != nil; { // any within
		b.steps++
		other = in.otherThan(h)
		if in.half[0] != nil {
			in = in.half[0]
		} else {
			in = in.half[1]
		}
	}
	at.add(h)
	b.refresh(path[:n])
	return other
}

// release undoes take; the block stays taken while another holds it.
func (b *blocks) release(p netip.Prefix, h *holding) {
	var path [129]*block
	n := 0
	at := &b.root
	addr := bitsOf(p.Addr())
	for level := b.prefix.Bits(); at != nil; level++ {
		b.steps++
		path[n] = at
		n++
		if level == p.Bits() {
			at.remove(h)
			b.refresh(path[:n])
			return
		}
		at = at.half[addr.bit(level)]
	}
}

// refresh brings blocks from the root down to a changed one in line, from below.
func (b *blocks) refresh(path []*block) {
	for i := len(path) - 1; i >= 0; i-- {
		b.steps++
		at := path[i]
		for h, half := range at.half {
			if half != nil && half.empty() {
				at.half[h] = nil
			}
		}
		at.full = at.by != nil || at.half[0] != nil && at.half[0].full && at.half[1] != nil && at.half[1].full
	}
}

// free finds the lowest part that nobody holds any of.
func (b *blocks) free() (netip.Prefix, bool) {
	if b.root.full {
		return netip.Prefix{}, false
	}
	addr := bitsOf(b.prefix.Addr())
	at := &b.root
	for level := b.prefix.Bits(); level < b.mask && at != nil; level++ {
		b.steps++
		half := 0
		if at.half[0] != nil && at.half[0].full {
			half = 1
			addr.set(level)
		}
		at = at.half[half]
	}
	return netip.PrefixFrom(addr.addr(), b.mask), true
}

func (b *block) empty() bool { return b.by == nil && b.half[0] == nil && b.half[1] == nil }

func (b *block) otherThan(h *holding) *holding {
	if b.by != h {
		return b.by
	}
	for o := range b.more {
		return o
	}
	return nil
}

func (b *block) add(h *holding) {
	switch {
	case b.by == nil:
		b.by = h
	case b.by != h:
		if b.more == nil {
			b.more = map[*holding]struct{}{}
		}
		b.more[h] = struct{}{}
	}
}

func (b *block) remove(h *holding) {
	delete(b.more, h)
	if b.by != h {
		return
	}
	b.by = nil
	for o := range b.more {
		b.by = o
		delete(b.more, o)
		break
	}
	if len(b.more) == 0 {
		b.more = nil
	}
}

// bits are an address with its bits numbered from the first.
type bits struct {
	bytes [16]byte
	from  int // where an IPv4 address starts in them
}

func bitsOf(a netip.Addr) bits {
	if a.Is4() {
		return bits{a.As16(), 96}
	}
	return bits{a.As16(), 0}
}

func (b *bits) bit(i int) int {
	i += b.from
	return int(b.bytes[i/8]>>(7-i%8)) & 1
}

func (b *bits) set(i int) {
	i += b.from
	b.bytes[i/8] |= 1 << (7 - i%8)
}

func (b *bits) addr() netip.Addr {
	a := netip.AddrFrom16(b.bytes)
	if b.from > 0 {
		return a.Unmap()
	}
	return a
}
