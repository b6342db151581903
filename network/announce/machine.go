package announce

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"github.com/skiff-k8s/skiff/host/netlink"
	"github.com/skiff-k8s/skiff/host/nft"
)

// The table has one set, of address and protocol, and one rule: what arrives at the host itself
// for such an address is for no Service (the proxy would have led it on), and refused. ICMP and
// neighbour discovery are not in the set.
const (
	addressSet = "addresses"
	tcp        = 6
	udp        = 17
	sctp       = 132
)

func families() []nft.Family { return []nft.Family{nft.IPv4, nft.IPv6} }

// machine is the host that this process runs on.
type machine struct {
	table string
	// kept is what the tables hold, once known.
	kept  []netip.Addr
	known bool
}

func newMachine(table string) *machine { return &machine{table: table} }

func (m *machine) Links() ([]netlink.Link, error) {
	h, err := netlink.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	return h.Links()
}

func (m *machine) Add(link string, a netip.Addr) error      { return netlink.AddVirtualAddress(link, a) }
func (m *machine) Remove(a netip.Addr) error                { return netlink.RemoveVirtualAddress(a) }
func (m *machine) Announce(link string, a netip.Addr) error { return netlink.AnnounceAddress(link, a) }

func (m *machine) Kept() ([]netip.Addr, error) {
	out, err := kept(m.table)
	if err == nil {
		m.kept, m.known = out, true
	}
	return out, err
}

func kept(table string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, f := range families() {
		els, err := nft.NewTable(f, table).Elements(addressSet)
		if err != nil {
			return nil, err
		}
		for _, el := range els {
			size := 4
			if f == nft.IPv6 {
				size = 16
			}
			if len(el.Key) < size {
				continue
			}
			if a, ok := netip.AddrFromSlice(el.Key[:size]); ok && !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out, nil
}

func (m *machine) Keep(addrs []netip.Addr) error {
	if m.known && slices.Equal(addrs, m.kept) {
		return nil
	}
	m.known = false
	for _, f := range families() {
		var els []nft.Element
		for _, a := range addrs {
			if a.Is6() != (f == nft.IPv6) {
				continue
			}
			for _, p := range []uint8{tcp, udp, sctp} {
				els = append(els, nft.Element{Key: nft.Key(nft.Addr(a), nft.Protocol(p))})
			}
		}
		if len(els) == 0 {
			if err := nft.Remove(f, m.table); err != nil {
				return err
			}
			continue
		}
		b := nft.NewTable(f, m.table).Reset()
		key := []nft.Field{nft.Daddr, nft.Proto}
		b.AddSet(nft.Set{Name: addressSet, Key: key})
		b.AddChains(nft.Chain{Name: "input", Hook: &nft.Hook{Type: "filter", Point: "input", Priority: 0},
			Rules: []nft.Rule{
				// Answers to what the node itself sends to its Services: the address is its source too.
				{nft.Equal{Field: nft.CtState, Mask: nft.CtEstablished | nft.CtRelated, Value: 0, Not: true}, nft.Accept{}},
				{nft.InSet{Key: key, Set: addressSet}, nft.Reject{}},
			}})
		b.AddElements(addressSet, els)
		if err := b.Commit(); err != nil {
			return err
		}
	}
	m.kept, m.known = slices.Clone(addrs), true
	return nil
}

func (m *machine) Watch(ctx context.Context, changed func()) error {
	w, err := netlink.Watch()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, w.Close)
	defer stop()
	defer w.Close()
	return w.Run(func(c netlink.Change) {
		if c.Kind == netlink.LinkChanged || c.Kind == netlink.Lost {
			changed()
		}
	})
}

// Remove takes away what an Announcer left.
func Remove(table string) error {
	addrs, err := kept(table)
	if err != nil {
		return err
	}
	var errs []error
	for _, a := range addrs {
		errs = append(errs, netlink.RemoveVirtualAddress(a))
	}
	for _, f := range families() {
		errs = append(errs, nft.Remove(f, table))
	}
	return errors.Join(errs...)
}
