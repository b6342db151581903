// Package nftables programs Services as elements of a few maps in one nftables table per
// address family: the rules are the same for one Service and for ten thousand, and one
// changed endpoint changes a handful of elements.
//
// Owns: its tables. Must not: watch anything, decide what a Service means (proxy does).
package nftables

import (
	"errors"
	"log/slog"
	"net/netip"

	"github.com/skiff-k8s/skiff/host/nft"
	"github.com/skiff-k8s/skiff/proxy"
)

// Config configures a Backend.
type Config struct {
	// Table is the name of the tables, one a family.
	Table string
	// ServiceCIDRs and PodCIDRs of the cluster, at most one a family.
	ServiceCIDRs, PodCIDRs []netip.Prefix
	Logger                 *slog.Logger
}

// Backend implements proxy.Backend.
type Backend struct {
	families []*family
}

// New makes a Backend for the families of the service CIDRs. It touches nothing; the
// first Apply replaces what an earlier process left, in one step.
func New(cfg Config) (*Backend, error) {
	if cfg.Table == "" || len(cfg.ServiceCIDRs) == 0 {
		return nil, errors.New("nftables proxy needs a table name and a service CIDR")
	}
	b := &Backend{}
	for _, svc := range cfg.ServiceCIDRs {
		f := &family{v6: svc.Addr().Is6(), log: cfg.Logger, loopback: netip.MustParsePrefix("127.0.0.0/8"), services: svc, ports: map[string][]proxy.Port{}}
		fam := nft.IPv4
		if f.v6 {
			fam, f.loopback = nft.IPv6, netip.MustParsePrefix("::1/128")
		}
		for _, p := range cfg.PodCIDRs {
			if p.Addr().Is6() == f.v6 {
				f.pods = p
			}
		}
		f.table = nft.NewTable(fam, cfg.Table)
		b.families = append(b.families, f)
	}
	return b, nil
}

// Remove takes the tables away.
func Remove(table string) error {
	return errors.Join(nft.Remove(nft.IPv4, table), nft.Remove(nft.IPv6, table))
}

// Apply implements proxy.Backend.
func (b *Backend) Apply(changed map[string][]proxy.Port) error {
	var errs []error
	for _, f := range b.families {
		errs = append(errs, f.apply(changed))
	}
	return errors.Join(errs...)
}

type family struct {
	table    *nft.Table
	v6       bool
	loopback netip.Prefix
	services netip.Prefix
	pods     netip.Prefix
	log      *slog.Logger

	ports map[string][]proxy.Port
	// held is what the kernel has; nil: unknown, start anew.
	held *contents
}

// contents counts who wants each element: several ports may share one (hairpin).
type contents struct {
	elements map[elementKey]*wanted
	maps     map[string]bool
	chains   map[string]bool
}

type elementKey struct{ set, key string }

type wanted struct {
	el nft.Element
	by int
}

// edit is what has to change: per set, elements to remove and to add.
type edit struct {
	remove, add map[string][]nft.Element
}

func (f *family) apply(changed map[string][]proxy.Port) error {
	old := map[string][]proxy.Port{}
	for key, ports := range changed {
		old[key] = f.ports[key]
		if len(ports) == 0 {
			delete(f.ports, key)
		} else {
			f.ports[key] = ports
		}
	}
	if f.held == nil {
		return f.rebuild()
	}
	if err := f.update(old, changed); err != nil {
		f.held = nil // what the books say may differ from the kernel by now
		f.log.Warn("change services in place; starting the table anew", "err", err)
		return f.rebuild()
	}
	return nil
}

// rebuild replaces the table in one transaction: no packet sees it half done.
func (f *family) rebuild() error {
	c := &contents{elements: map[elementKey]*wanted{}, maps: map[string]bool{}, chains: map[string]bool{}}
	b := f.table.Reset()
	for _, s := range baseSets() {
		b.AddSet(s)
	}
	var chains []nft.Chain
	add := map[string][]nft.Element{}
	for _, ports := range f.ports {
		for i := range ports {
			its, need := items(&ports[i], f.v6)
			for _, n := range need {
				chains = append(chains, c.require(b, n)...)
			}
			for _, it := range its {
				if c.want(it) {
					add[it.set] = append(add[it.set], it.el)
				}
			}
		}
	}
	b.AddChains(append(chains, baseChains(f.services, f.pods, f.loopback)...)...)
	for set, els := range add {
		b.AddElements(set, els)
	}
	if err := b.Commit(); err != nil {
		return err
	}
	f.held = c
	return nil
}

func (f *family) update(old, changed map[string][]proxy.Port) error {
	c, b := f.held, f.table.Begin()
	var chains []nft.Chain
	before := map[elementKey]nft.Element{}
	touched := map[elementKey]bool{}
	note := func(it item) elementKey {
		k := elementKey{it.set, string(it.el.Key)}
		if !touched[k] {
			touched[k] = true
			if w := c.elements[k]; w != nil {
				before[k] = w.el
			}
		}
		return k
	}
	var gone []netip.AddrPort
	for key := range changed {
		still := map[netip.AddrPort]bool{}
		for _, p := range changed[key] {
			for _, e := range append(p.Internal[:len(p.Internal):len(p.Internal)], p.External...) {
				still[e] = true
			}
		}
		for i := range old[key] {
			p := &old[key][i]
			for _, e := range p.Internal {
				if p.Affinity > 0 && !still[e] {
					gone = append(gone, e)
				}
			}
			its, _ := items(p, f.v6)
			for _, it := range its {
				note(it)
				c.release(it)
			}
		}
	}
	for _, ports := range changed {
		for i := range ports {
			its, need := items(&ports[i], f.v6)
			for _, n := range need {
				chains = append(chains, c.require(b, n)...)
			}
			for _, it := range its {
				note(it)
				c.want(it)
			}
		}
	}
	e := edit{remove: map[string][]nft.Element{}, add: map[string][]nft.Element{}}
	for k := range touched {
		was, had := before[k]
		now := c.elements[k]
		if had && now != nil && string(was.Value) == string(now.el.Value) && was.Goto == now.el.Goto {
			continue
		}
		if had {
			e.remove[k.set] = append(e.remove[k.set], was)
		}
		if now != nil {
			e.add[k.set] = append(e.add[k.set], now.el)
		}
	}
	b.AddChains(chains...)
	for set, els := range e.remove {
		b.DeleteElements(set, els)
	}
	for set, els := range e.add {
		b.AddElements(set, els)
	}
	if err := b.Commit(); err != nil {
		return err
	}
	return f.forgetClients(gone)
}

// forgetClients frees clients from endpoints that are gone.
func (f *family) forgetClients(gone []netip.AddrPort) error {
	if len(gone) == 0 {
		return nil
	}
	dead := map[netip.AddrPort]bool{}
	for _, e := range gone {
		dead[e] = true
	}
	for _, set := range []string{setAffine, setNPAffine} {
		els, err := f.table.Elements(set)
		if err != nil {
			return err
		}
		var drop []nft.Element
		for _, e := range els {
			if ep, ok := endpointOf(e.Value, f.v6); ok && dead[ep] {
				drop = append(drop, nft.Element{Key: e.Key, Value: e.Value})
			}
		}
		if len(drop) == 0 {
			continue
		}
		b := f.table.Begin()
		b.DeleteElements(set, drop)
		if err := b.Commit(); err != nil {
			return err
		}
	}
	return nil
}

// want counts an element and tells whether it is new.
func (c *contents) want(it item) bool {
	k := elementKey{it.set, string(it.el.Key)}
	if w := c.elements[k]; w != nil {
		w.by++
		return false
	}
	c.elements[k] = &wanted{it.el, 1}
	return true
}

func (c *contents) release(it item) {
	k := elementKey{it.set, string(it.el.Key)}
	if w := c.elements[k]; w != nil {
		if w.by--; w.by == 0 {
			delete(c.elements, k)
		}
	}
}

// require makes a balancer's map and returns its chain where they are missing. They are
// few (one per number of endpoints) and stay.
func (c *contents) require(b *nft.Batch, n balancer) []nft.Chain {
	if !c.maps[n.mapName()] {
		c.maps[n.mapName()] = true
		b.AddSet(n.set())
	}
	if c.chains[n.chainName()] {
		return nil
	}
	c.chains[n.chainName()] = true
	return []nft.Chain{n.chain()}
}
