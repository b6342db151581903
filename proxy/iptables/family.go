package iptables

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/skiff-k8s/skiff/host/iptables"
	"github.com/skiff-k8s/skiff/proxy"
)

// manyEndpoints is how many it takes for their rules to have no comments, as upstream: these are
// a good part of what the kernel has to keep.
const manyEndpoints = 1000

// partsAtOnce bounds what iptables-nft-restore is given at once: its time grows with the square of the chains.
// That of the legacy variant reads and writes the whole table each time, so it is given all.
const partsAtOnce = 500

// family is the rules of one family.
type family struct {
	scene scene
	tool  *iptables.Tool
	log   *slog.Logger

	ports map[string][]proxy.Port
	// held tells that the kernel has the rules of ports; not: unknown, write all anew.
	held   bool
	firsts int // lines of cluster IPs in the kernel's chain of services
}

// note takes over what has changed and returns what it replaces.
func (f *family) note(changed map[string][]proxy.Port) (old map[string][]proxy.Port) {
	old = make(map[string][]proxy.Port, len(changed))
	for key, ports := range changed {
		old[key] = f.ports[key]
		if len(ports) == 0 {
			delete(f.ports, key)
		} else {
			f.ports[key] = ports
		}
	}
	return old
}

func (f *family) apply(changed map[string][]proxy.Port) error {
	old := f.note(changed)
	if !f.held {
		return f.rebuild()
	}
	if err := f.update(old, changed); err != nil {
		f.held = false
		f.log.Warn("change rules in place; writing all anew", "err", err)
		return f.rebuild()
	}
	return nil
}

// parts of Services, in the order of their names.
func (f *family) parts(services map[string][]proxy.Port) (out []part) {
	for _, key := range slices.Sorted(maps.Keys(services)) {
		for i := range services[key] {
			if p := &services[key][i]; p.V6 == f.scene.v6 {
				out = append(out, f.scene.part(p))
			}
		}
	}
	return out
}

func (f *family) rebuild() error {
	have := map[string]existing{}
	for _, table := range []string{filter, nat} {
		chains, rules, err := f.tool.Save(table)
		if err != nil {
			return err
		}
		have[table] = existing{chains, rules}
	}
	endpoints := 0
	for _, ports := range f.ports {
		for i := range ports {
			if ports[i].V6 == f.scene.v6 {
				endpoints += max(len(ports[i].Cluster), len(ports[i].Local))
			}
		}
	}
	f.scene.large = endpoints > manyEndpoints
	most := 0
	if f.tool.Variant == iptables.NFT {
		most = partsAtOnce
	}
	texts, firsts := f.scene.whole(f.parts(f.ports), have, most)
	for _, t := range texts {
		if err := f.tool.Load(t.bytes()); err != nil {
			return err
		}
	}
	f.held, f.firsts = true, firsts
	return nil
}

func (f *family) update(old, changed map[string][]proxy.Port) error {
	var was, is part
	for _, p := range f.parts(old) {
		was.shared, was.own = append(was.shared, p.shared...), append(was.own, p.own...)
	}
	for _, p := range f.parts(changed) {
		is.shared, is.own = append(is.shared, p.shared...), append(is.own, p.own...)
	}
	t, firsts := difference(was, is, f.firsts)
	if t.empty() {
		return nil
	}
	if err := f.tool.Load(t.bytes()); err != nil {
		return err
	}
	f.firsts = firsts
	return nil
}

// flushed is the table that the canary is gone from, if it is.
func (f *family) flushed() (table string, err error) {
	for _, table := range []string{mangle, filter, nat} {
		has, err := f.tool.Has(table, canary)
		if err != nil {
			return "", err
		}
		if !has {
			return table, nil
		}
	}
	return "", nil
}

// remove takes the rules of a family away. What is not there is no error.
func remove(tool *iptables.Tool) error {
	t, ours := text{}, false
	leads := jumps
	for _, table := range []string{mangle, filter, nat} {
		chains, rules, err := tool.Save(table)
		if err != nil {
			return err
		}
		if table == mangle && !chains["KUBE-IPTABLES-HINT"] && !chains["KUBE-KUBELET-CANARY"] {
			// No kubelet keeps martians out with the same chain.
			leads = append(jumps[:len(jumps):len(jumps)], martianJumps...)
		}
		for _, j := range leads {
			for _, r := range rules {
				if j.table == table && j.is(r) {
					t.write(table, "-D", strings.TrimPrefix(r, "-A"))
				}
			}
		}
		// The mode ipvs has chains of the same names, but not these.
		ours = ours || table == filter && chains[external] || table == nat && chains[nodePorts]
		var going []string
		for name := range chains {
			if ofPort(name) && table == nat || slices.Contains(mine(table), name) || table == filter && name == martians && len(leads) > len(jumps) {
				going = append(going, name)
			}
		}
		slices.Sort(going)
		for _, name := range going {
			t.fresh(table, name)
		}
		for _, name := range going {
			t.write(table, "-X ", name)
		}
	}
	if t.empty() || !ours {
		return nil
	}
	if err := tool.Load(t.bytes()); err != nil {
		return fmt.Errorf("take rules away: %w", err)
	}
	return nil
}

func mine(table string) []string { return (&scene{v6: true}).chains()[table] }
