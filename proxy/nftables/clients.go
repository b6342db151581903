package nftables

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/skiff-k8s/skiff/host/nft"
)

// Clients that stay with their endpoint are elements that the kernel adds by itself. They
// outlive changes of other endpoints, and the process that made the table.

// clients reads them, by set.
func (f *family) clients() (map[string][]nft.Element, error) {
	out := map[string][]nft.Element{}
	for _, p := range planes {
		els, err := f.table.Elements(p.prefix + setAffine)
		if err != nil {
			return nil, err
		}
		if len(els) > 0 {
			out[p.prefix+setAffine] = els
		}
	}
	return out, nil
}

// stay are the clients whose endpoint is still one that their front leads to.
func (f *family) stay(k *books, set string, els []nft.Element) []nft.Element {
	return slices.DeleteFunc(els, func(el nft.Element) bool {
		at, ok := f.frontOf(set, el.Key)
		return !ok || !leadsTo(k.fronts[at], el.Value, f.scene.v6)
	})
}

// frontOf reads the key of a client: its address, then the front.
func (f *family) frontOf(set string, key []byte) (at front, ok bool) {
	width := 4
	if f.scene.v6 {
		width = 16
	}
	want := 2*width + 8
	if at.nodePort = set == nodePorts+setAffine; at.nodePort {
		want = width + 8
	}
	if len(key) != want {
		return front{}, false // an older table's
	}
	rest := key[width:]
	if !at.nodePort {
		a, _ := netip.AddrFromSlice(rest[:width]) // its length is an address's
		at.addr = a.As16()
		rest = rest[width:]
	}
	at.proto, at.port = rest[0], binary.BigEndian.Uint16(rest[4:])
	return at, true
}

func leadsTo(c claim, value []byte, v6 bool) bool {
	if c.port == nil || c.port.Affinity == 0 {
		return false
	}
	ep, ok := endpointOf(value, v6)
	return ok && (slices.Contains(c.port.Cluster, ep) || slices.Contains(c.port.Local, ep))
}

// freeClients forgets the clients of fronts that no longer lead to where they stay.
func (f *family) freeClients(touched map[front]claim) error {
	all, err := f.clients()
	if err != nil {
		return err
	}
	b := f.table.Begin()
	for set, els := range all {
		for i := range els {
			at, ok := f.frontOf(set, els[i].Key)
			if _, mine := touched[at]; ok && mine && !leadsTo(f.held.fronts[at], els[i].Value, f.scene.v6) {
				b.Deleting(set)(&nft.Element{Key: els[i].Key, Value: els[i].Value})
			}
		}
	}
	return b.Commit()
}
