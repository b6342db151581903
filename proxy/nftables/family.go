package nftables

import (
	"bytes"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/skiff-k8s/skiff/host/nft"
	"github.com/skiff-k8s/skiff/proxy"
)

// family is the table of one family.
type family struct {
	scene   scene
	table   *nft.Table
	log     *slog.Logger
	primary []netip.Addr // of the node

	ports map[string][]proxy.Port
	// held is what the kernel has; nil: unknown, start anew.
	held *books
}

func newFamily(s scene, table string, log *slog.Logger) *family {
	fam := nft.IPv4
	if s.v6 {
		fam = nft.IPv6
	}
	return &family{scene: s, table: nft.NewTable(fam, table), log: log, ports: map[string][]proxy.Port{}}
}

// books say what the kernel holds: who has each front, and what several ports share.
type books struct {
	fronts map[front]claim
	// rivals claim a front that another has.
	rivals map[front][]claim
	// shared counts who wants an element: ports of a Service have one cluster IP, Services
	// may have the same endpoint.
	shared    map[shared]int
	balancers map[balancer]names
	made      map[string]bool // maps of balancers
}

// shared is an element that consists of an address.
type shared struct {
	set  string
	addr netip.Addr
}

func (s shared) element() *nft.Element {
	key := s.addr.AsSlice()
	if s.set == setHairpin {
		key = append(key, key...)
	}
	return &nft.Element{Key: key}
}

// sharing calls f with what a port wants of them.
func sharing(p *proxy.Port, f func(shared)) {
	f(shared{setClusterIPs, p.ClusterIP})
	for _, a := range p.Here {
		f(shared{setHairpin, a})
	}
}

func newBooks() *books {
	return &books{
		fronts: map[front]claim{}, rivals: map[front][]claim{}, shared: map[shared]int{},
		balancers: map[balancer]names{}, made: map[string]bool{},
	}
}

// claim enters a port's claim; release takes it back.
func (k *books) claim(f front, c claim) {
	had, taken := k.fronts[f]
	switch {
	case !taken:
		k.fronts[f] = c
	case c.before(had):
		k.fronts[f] = c
		k.rivals[f] = append(k.rivals[f], had)
	default:
		k.rivals[f] = append(k.rivals[f], c)
	}
}

func (k *books) release(f front, c claim) {
	rest := k.rivals[f]
	if k.fronts[f] == c {
		delete(k.fronts, f)
		if len(rest) > 0 {
			best := slices.MinFunc(rest, func(a, b claim) int {
				if a.before(b) {
					return -1
				}
				return 1
			})
			k.fronts[f] = best
			c = best
		}
	}
	if rest = slices.DeleteFunc(rest, func(r claim) bool { return r == c }); len(rest) == 0 {
		delete(k.rivals, f)
	} else {
		k.rivals[f] = rest
	}
}

// name returns a balancer's names and makes its map and chain where they are missing. They
// are few, one per number of endpoints, and stay.
func (k *books) name(b *nft.Batch, l balancer, mark uint32) names {
	n, known := k.balancers[l]
	if known {
		return n
	}
	n = l.names()
	k.balancers[l] = n
	if !k.made[n.set] {
		k.made[n.set] = true
		b.AddSet(l.set(n.set))
	}
	b.AddChains(l.chain(n, mark))
	return n
}

func (f *family) apply(changed map[string][]proxy.Port) error {
	old := make(map[string][]proxy.Port, len(changed))
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

// mine calls do with the ports of this family.
func (f *family) mine(ports []proxy.Port, do func(*proxy.Port)) {
	for i := range ports {
		if ports[i].V6 == f.scene.v6 {
			do(&ports[i])
		}
	}
}

// rebuild replaces the table in one transaction: no packet sees it half done, and clients
// stay with their endpoints.
func (f *family) rebuild() error {
	k, b := newBooks(), f.table.Reset()
	faithful, err := f.clients()
	if err != nil {
		return err
	}
	for _, s := range baseSets() {
		b.AddSet(s)
	}
	b.AddChains(f.scene.chains()...)
	adders := map[string]func(*nft.Element){}
	em := f.emitter(k, b)
	em.put = func(set string, el *nft.Element) {
		add := adders[set]
		if add == nil {
			add = b.Adding(set)
			adders[set] = add
		}
		add(el)
	}
	for _, ports := range f.ports {
		f.mine(ports, func(p *proxy.Port) {
			claims(p, k.claim)
			sharing(p, func(s shared) { k.shared[s]++ })
		})
	}
	for at, c := range k.fronts {
		em.emit(at, c)
	}
	for s := range k.shared {
		em.put(s.set, s.element())
	}
	for _, a := range f.primary {
		em.put(setPrimary, &nft.Element{Key: a.AsSlice()})
	}
	for set, els := range faithful {
		b.AddElements(set, f.stay(k, set, els))
	}
	if err := b.Commit(); err != nil {
		return err
	}
	f.held = k
	return nil
}

// id names an element among those of the table.
type id struct{ set, key string }

// update changes what differs. Books that it leaves after an error are wrong.
func (f *family) update(old, changed map[string][]proxy.Port) error {
	k, b := f.held, f.table.Begin()
	touched := map[front]claim{} // with whose they were before; the zero claim: nobody's
	counts := map[shared]int{}   // as they were before
	sticky := false
	for _, all := range []map[string][]proxy.Port{old, changed} {
		for _, ports := range all {
			f.mine(ports, func(p *proxy.Port) {
				claims(p, func(at front, _ claim) { touched[at] = k.fronts[at] })
				sharing(p, func(s shared) { counts[s] = k.shared[s] })
			})
		}
	}
	for _, ports := range old {
		f.mine(ports, func(p *proxy.Port) {
			claims(p, k.release)
			sharing(p, func(s shared) { k.shared[s]-- })
			sticky = sticky || p.Affinity > 0
		})
	}
	for _, ports := range changed {
		f.mine(ports, func(p *proxy.Port) {
			claims(p, k.claim)
			sharing(p, func(s shared) { k.shared[s]++ })
		})
	}

	before, after := map[id]nft.Element{}, map[id]nft.Element{}
	into := before
	em := f.emitter(k, b)
	em.put = func(set string, el *nft.Element) {
		into[id{set, string(el.Key)}] = nft.Element{
			Key: slices.Clone(el.Key), KeyEnd: slices.Clone(el.KeyEnd), Value: slices.Clone(el.Value), Goto: el.Goto}
	}
	for at, was := range touched {
		if was.port != nil {
			em.emit(at, was)
		}
	}
	into = after
	for at := range touched {
		if is := k.fronts[at]; is.port != nil {
			em.emit(at, is)
		}
	}
	for at, was := range before {
		is, stays := after[at]
		if stays && is.Goto == was.Goto && bytes.Equal(is.Value, was.Value) && bytes.Equal(is.KeyEnd, was.KeyEnd) {
			delete(after, at)
			continue
		}
		b.Deleting(at.set)(&was)
	}
	for at, is := range after {
		b.Adding(at.set)(&is)
	}
	for s, was := range counts {
		switch is := k.shared[s]; {
		case is == 0:
			delete(k.shared, s)
			if was > 0 {
				b.Deleting(s.set)(s.element())
			}
		case was == 0:
			b.Adding(s.set)(s.element())
		}
	}
	if err := b.Commit(); err != nil {
		return err
	}
	if sticky {
		return f.freeClients(touched)
	}
	return nil
}

func (f *family) emitter(k *books, b *nft.Batch) *emitter {
	return &emitter{v6: f.scene.v6, node: f.primary, named: func(l balancer) names { return k.name(b, l, f.scene.masqueradeBy) }}
}
