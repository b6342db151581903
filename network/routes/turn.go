package routes

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/skiff-k8s/skiff/host/netlink"
)

// turn makes the kernel what it should be, as of what changed since the last one. It returns whether
// something failed and is to be tried again.
func (r *Router) turn() (again bool) {
	r.mu.Lock()
	changed, dirty := r.changed, r.dirty
	r.changed, r.dirty = map[string]*peer{}, false
	r.mu.Unlock()

	whole := false // decide on all peers anew
	var names []string
	for name, p := range changed {
		if name == r.cfg.NodeName {
			whole = r.setSelf(p) || whole
			continue
		}
		names = append(names, r.nodes.set(name, p)...)
	}
	if dirty {
		h, have, err := r.kernel.read(r.nodes.self)
		if err != nil {
			r.tell("read links and routes", err)
			r.retry()
			return true
		}
		r.setHave(have)
		whole = whole || !h.equal(r.nodes.host)
		r.nodes.host = h
	}
	if whole {
		names = append(names, r.nodes.all()...)
	}
	was, want, problems := r.nodes.decide(unique(names))
	for name, errs := range problems {
		for _, err := range errs {
			r.log.Warn("a node's pods can't be reached", "node", name, "err", err)
		}
	}
	over := map[underlay]bool{}
	for u, n := range r.nodes.over {
		over[u] = n > 0
	}
	made, err := r.kernel.ensure(r.nodes.host, r.nodes.self, over)
	r.tell("set up VXLAN", err)
	again = err != nil
	r.tellMTU(over)
	r.say()
	if dirty || made {
		// Whatever is there and nobody wants goes, whatever is wanted and not there comes.
		was, want = r.have, newTable()
		for _, o := range r.nodes.outcomes {
			want.merge(o.table)
		}
		if made {
			r.forgetEntries()
		}
	}
	again = r.apply(diff(was, want)) || again
	err = r.kernel.drop(over)
	r.tell("remove VXLAN", err)
	again = again || err != nil
	if again {
		r.retry()
	}
	return again
}

// tell an error of an action once, until it is another or has gone.
func (r *Router) tell(action string, err error) {
	if err == nil {
		delete(r.told, action)
		return
	}
	if text := err.Error(); r.told[action] != text {
		r.told[action] = text
		r.log.Error(action, "err", err)
	}
}

// setSelf takes up the own Node; true if it matters for others.
func (r *Router) setSelf(p *peer) bool {
	r.registered = p != nil
	if p == nil { // about to register again
		return false
	}
	same := r.nodes.self.peer.equal(*p)
	r.nodes.self.peer = *p
	return !same
}

// setHave and its like are for kernelChanged, which looks at have.
func (r *Router) setHave(t table) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.have = t
}

// forgetEntries after a link was made anew: what was on it went with the old one.
func (r *Router) forgetEntries() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.have.neighbours)
	clear(r.have.remotes)
	for dst, route := range r.have.routes {
		if route.over != 0 {
			delete(r.have.routes, dst)
		}
	}
}

// retry reads everything anew at the next turn: what the kernel has after an error is unknown.
func (r *Router) retry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dirty = true
}

func (r *Router) apply(changes []change) (failed bool) {
	for _, c := range changes {
		r.mu.Lock()
		r.have.done(c) // before the kernel tells of it
		r.mu.Unlock()
		err := r.kernel.apply(c)
		if errors.Is(err, netlink.ErrExists) { // its end will be told
			r.mu.Lock()
			delete(r.have.routes, c.dst)
			r.mu.Unlock()
			r.log.Warn("somebody else has a route to another node's pods; it stays until they remove it", "to", c.dst)
			continue
		}
		r.tell("lead packets to "+c.to(), err)
		failed = failed || err != nil
	}
	return failed
}

func (r *Router) tellMTU(over map[underlay]bool) {
	if r.cfg.MTU == nil {
		return
	}
	if mtu := podMTU(r.nodes.host.mtu(r.nodes.self.ips), over); mtu > 0 {
		r.cfg.MTU(mtu)
	}
}

// podMTU of links with this MTU. Pods that came before VXLAN was needed keep a greater one: the host
// tells them of packets that are too big, as routers do.
func podMTU(link int, over map[underlay]bool) int {
	mtu := link
	for u, used := range over {
		if used && link > 0 {
			mtu = min(mtu, link-u.overhead())
		}
	}
	return mtu
}

// say has the own Node tell how to reach it.
func (r *Router) say() {
	if !r.registered || r.nodes.host.mtu(r.nodes.self.ips) == 0 {
		return // the Node is not there yet, or has lost its link and will have it again
	}
	text := ""
	if r.cfg.Mode != Never {
		t := r.nodes.self.tunnel
		t.OnLink = []netip.Prefix{}
		if r.cfg.Mode == Auto {
			t.OnLink = r.nodes.host.prefixes(r.cfg.ClusterCIDRs)
		}
		var err error
		if text, err = t.encode(); err != nil {
			r.log.Error("publish", "err", err)
			return
		}
	}
	if have := r.nodes.self.peer.tunnel; (have == nil) == (text == "") {
		if have == nil {
			return
		}
		if old, err := have.encode(); err == nil && old == text {
			return
		}
	}
	select { // only the newest counts; this is the one sender
	case <-r.publish:
	default:
	}
	r.publish <- text
}

func (r *Router) publisher(ctx context.Context) {
	var text string
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case text = <-r.publish:
		case <-retry:
		}
		retry = nil
		if err := r.cfg.Publish(ctx, text); err != nil && ctx.Err() == nil {
			r.log.Warn("publish how to reach this node", "err", err)
			retry = time.After(retryAfter)
		}
	}
}

func unique(names []string) []string {
	seen := map[string]bool{}
	out := names[:0]
	for _, n := range names {
		if !seen[n] {
			seen[n] = true
			out = append(out, n)
		}
	}
	return out
}
