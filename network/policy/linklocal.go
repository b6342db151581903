package policy

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/skiff-k8s/skiff/host/nft"
)

// linkLocal keeps pods on one bridge from each other's link-local addresses (RFC 4291, 2.5.6), by which no policy
// could allow them anything: packets to these are bridged, not routed, so the tables of policies don't see them.
// What the host itself needs of neighbours goes between it and each port. While no pod is isolated, there is no table.
type linkLocal struct {
	table *nft.Table
	name  string
	// ports begin the names of the bridge's ports; empty: there is no bridge.
	ports string
	// apart is what the kernel has, if known.
	known, apart bool
}

var linkLocals = netip.MustParsePrefix("fe80::/10")

func newLinkLocal(name, ports string) *linkLocal {
	return &linkLocal{table: nft.NewTable(nft.Bridge, name), name: name, ports: ports}
}

func (l *linkLocal) keepApart(apart bool) error {
	if l.ports == "" || l.known && l.apart == apart {
		return nil
	}
	l.known, l.apart = true, apart // or it can't be: that is told once
	if !apart {
		if err := nft.Remove(nft.Bridge, l.name); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, syscall.EAFNOSUPPORT) {
			return err
		}
	} else {
		b := l.table.Reset()
		var rules []nft.Rule
		for _, end := range []nft.Field{nft.Saddr, nft.Daddr} {
			rules = append(rules, nft.Rule{nft.FromLink{Prefix: l.ports}, nft.OfIPv6{}, nft.InPrefix{Field: end, Prefix: linkLocals}, nft.Drop{}})
		}
		b.AddChains(nft.Chain{Name: "link-local", Hook: &nft.Hook{Type: "filter", Point: "forward", Priority: 0}, Rules: rules})
		if err := b.Commit(); err != nil {
			return fmt.Errorf("keep pods from each other's link-local addresses: %w", err)
		}
	}
	return nil
}
