package ipvs

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"

	"github.com/skiff-k8s/skiff/host/iptables"
	host "github.com/skiff-k8s/skiff/host/ipvs"
	"github.com/skiff-k8s/skiff/host/netlink"
	"github.com/skiff-k8s/skiff/proxy"
)

// family is what the kernel has of one family.
type family struct {
	scene scene
	tool  *iptables.Tool
	log   *slog.Logger
	sets  map[string]netlink.IPSet

	ports map[string][]proxy.Port
	// held is what the kernel has; nil: unknown, compare with it.
	held *books
	// leaving are destinations of TCP that still have connections, resting those of other protocols that still
	// serve; new connections are led to neither.
	leaving, resting map[lead]bool
}

type lead struct {
	host.Service
	to netip.AddrPort
}

// claimed is a server with the port that claims its front.
type claimed struct {
	server
	port string
}

// books count what ports want.
type books struct {
	servers  map[host.Service][]claimed // the winner first
	elements map[element]int
}

func (f *family) parts(of map[string][]proxy.Port, do func(name string, p part)) {
	for _, ports := range of {
		for i := range ports {
			if ports[i].V6 == f.scene.v6 {
				do(ports[i].Name, f.scene.part(&ports[i]))
			}
		}
	}
}

func (k *books) enter(name string, p part) {
	for _, s := range p.servers {
		all := append(k.servers[s.Service], claimed{s, name})
		slices.SortFunc(all, func(a, b claimed) int {
			if a.rank != b.rank {
				return a.rank - b.rank
			}
			if a.port < b.port {
				return -1
			}
			return 1
		})
		k.servers[s.Service] = all
	}
	for _, e := range p.elements {
		k.elements[e]++
	}
}

func (k *books) leave(name string, p part) {
	for _, s := range p.servers {
		all := slices.DeleteFunc(k.servers[s.Service], func(c claimed) bool { return c.port == name && c.rank == s.rank })
		if k.servers[s.Service] = all; len(all) == 0 {
			delete(k.servers, s.Service)
		}
	}
	for _, e := range p.elements {
		if k.elements[e]--; k.elements[e] == 0 {
			delete(k.elements, e)
		}
	}
}

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

func (f *family) apply(h *host.Handle, changed map[string][]proxy.Port) error {
	old := f.note(changed)
	if f.held == nil {
		return f.rebuild(h)
	}
	if err := f.update(h, old, changed); err != nil {
		f.held = nil
		f.log.Warn("change virtual services in place; comparing all with the kernel", "err", err)
		return f.rebuild(h)
	}
	return nil
}

// rebuild makes the kernel have what is wanted, by what it has.
func (f *family) rebuild(h *host.Handle) error {
	k := &books{servers: map[host.Service][]claimed{}, elements: map[element]int{}}
	f.parts(f.ports, k.enter)
	for _, s := range f.sets {
		if err := s.Ensure(); err != nil {
			return err
		}
	}
	if err := f.scene.load(f.tool); err != nil {
		return err
	}
	have := map[element]bool{}
	for name, s := range f.sets {
		all, err := s.Entries()
		if err != nil {
			return err
		}
		for _, e := range all {
			have[element{name, e}] = true
		}
	}
	var errs []error
	var fresh, gone []element
	for e := range k.elements {
		if !have[e] {
			fresh = append(fresh, e)
		}
	}
	for e := range have {
		if k.elements[e] == 0 {
			gone = append(gone, e)
		}
	}
	carried, err := netlink.Addresses(device, false)
	if err != nil {
		return err
	}
	want := map[netip.Addr]bool{}
	for e := range k.elements {
		if e.set == bound {
			want[e.Addr] = true
		}
	}
	errs = append(errs, f.enter(fresh))
	for a := range want {
		if !slices.Contains(carried, a) {
			errs = append(errs, netlink.AddAddress(device, a))
		}
	}
	there, err := h.Services()
	if err != nil {
		return err
	}
	for at, all := range k.servers {
		set, had := there[at]
		errs = append(errs, f.serve(h, all[0].server, had, had && set == all[0].Settings, nil, true))
	}
	for at := range there {
		if _, stays := k.servers[at]; !stays && at.At.Addr().Is6() == f.scene.v6 && !f.others(at.At.Addr()) {
			errs = append(errs, f.drop(h, at))
		}
	}
	for _, a := range carried {
		if a.Is6() == f.scene.v6 && !want[a] && !a.IsLinkLocalUnicast() {
			errs = append(errs, netlink.DeleteAddress(device, a))
		}
	}
	errs = append(errs, f.withdraw(gone))
	if err := errors.Join(errs...); err != nil {
		return err
	}
	f.held = k
	return nil
}

// others tells addresses whose virtual services somebody else makes.
func (f *family) others(a netip.Addr) bool {
	return slices.ContainsFunc(f.scene.exclude, func(p netip.Prefix) bool { return p.Contains(a) })
}

// serve makes a virtual service lead where it is to lead; was is where it leads, unless that is to be
// asked of the kernel.
func (f *family) serve(h *host.Handle, s server, had, same bool, was []netip.AddrPort, ask bool) error {
	switch {
	case !had:
		if err := h.Add(s.Service, s.Settings); err != nil {
			return err
		}
	case !same:
		if err := h.Update(s.Service, s.Settings); err != nil {
			return err
		}
	}
	was = slices.Clip(was) // it may be others' too
	if had && ask {
		all, err := h.Destinations(s.Service)
		if err != nil {
			return err
		}
		for _, d := range all {
			if d.Weight > 0 || !slices.Contains(s.to, d.At) { // else it is led to again
				was = append(was, d.At)
			}
		}
	}
	for _, to := range s.to {
		if slices.Contains(was, to) {
			continue
		}
		if err := h.Lead(s.Service, to, 1); err != nil {
			return err
		}
		delete(f.leaving, lead{s.Service, to})
		delete(f.resting, lead{s.Service, to})
	}
	for l := range f.resting {
		if l.Service == s.Service {
			was = append(was, l.to)
		}
	}
	for _, to := range was {
		if slices.Contains(s.to, to) {
			continue
		}
		if err := f.dismiss(h, lead{s.Service, to}, slices.Contains(s.stay, to)); err != nil {
			return err
		}
	}
	return nil
}

// drop takes a virtual service away, and its destinations with it.
func (f *family) drop(h *host.Handle, at host.Service) error {
	for _, m := range []map[lead]bool{f.leaving, f.resting} {
		maps.DeleteFunc(m, func(l lead, _ bool) bool { return l.Service == at })
	}
	return h.Delete(at)
}

// dismiss has a destination get no new connections; those that it has go on, of protocols that do not end
// them by themselves if it is to stay.
func (f *family) dismiss(h *host.Handle, l lead, stay bool) error {
	switch {
	case l.Protocol == 6:
		f.leaving[l] = true
	case stay:
		f.resting[l] = true
	default:
		delete(f.resting, l)
		return h.Leave(l.Service, l.to)
	}
	return h.Lead(l.Service, l.to, 0)
}

// finish takes away destinations whose connections have ended.
func (f *family) finish(h *host.Handle) error {
	var errs []error
	asked := map[host.Service]bool{}
	for l := range f.leaving {
		if asked[l.Service] {
			continue
		}
		asked[l.Service] = true
		all, err := h.Destinations(l.Service)
		if err != nil {
			all = nil // the virtual service has gone, and its destinations with it
		}
		busy := map[netip.AddrPort]bool{}
		for _, d := range all {
			busy[d.At] = d.Connections > 0
		}
		for m := range f.leaving {
			if m.Service == l.Service && !busy[m.to] {
				errs = append(errs, h.Leave(m.Service, m.to))
				delete(f.leaving, m)
			}
		}
	}
	return errors.Join(errs...)
}

func (f *family) update(h *host.Handle, old, changed map[string][]proxy.Port) error {
	k := f.held
	before, counts := map[host.Service]*claimed{}, map[element]int{}
	look := func(_ string, p part) {
		for _, s := range p.servers {
			before[s.Service] = nil
			if all := k.servers[s.Service]; len(all) > 0 {
				was := all[0]
				before[s.Service] = &was
			}
		}
		for _, e := range p.elements {
			counts[e] = k.elements[e]
		}
	}
	f.parts(old, look)
	f.parts(changed, look)
	f.parts(old, k.leave)
	f.parts(changed, k.enter)
	var fresh, gone []element
	for e, was := range counts {
		switch is := k.elements[e]; {
		case was == 0 && is > 0:
			fresh = append(fresh, e)
		case was > 0 && is == 0:
			gone = append(gone, e)
		}
	}
	if err := f.enter(fresh); err != nil {
		return err
	}
	for _, e := range fresh {
		if e.set == bound {
			if err := netlink.AddAddress(device, e.Addr); err != nil {
				return err
			}
		}
	}
	for at, was := range before {
		all := k.servers[at]
		var err error
		switch {
		case len(all) == 0 && was != nil:
			err = f.drop(h, at)
		case len(all) > 0 && was == nil:
			err = f.serve(h, all[0].server, false, false, nil, false)
		case len(all) > 0:
			err = f.serve(h, all[0].server, true, was.Settings == all[0].Settings, was.to, false)
		}
		if err != nil {
			return err
		}
	}
	for _, e := range gone {
		if e.set == bound {
			if err := netlink.DeleteAddress(device, e.Addr); err != nil {
				return err
			}
		}
	}
	return f.withdraw(gone)
}

func (f *family) enter(all []element) error {
	for _, e := range all {
		if err := f.sets[e.set].Add(e.IPSetEntry); err != nil {
			return err
		}
	}
	return nil
}

func (f *family) withdraw(all []element) error {
	for _, e := range all {
		if err := f.sets[e.set].Delete(e.IPSetEntry); err != nil {
			return fmt.Errorf("withdraw: %w", err)
		}
	}
	return nil
}
