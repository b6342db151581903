package policy

import (
	"slices"
	"strings"
)

// profile is all that is allowed to a pod in one direction, where it is isolated. Pods that are allowed
// the same share it. Never changed.
type profile struct {
	// key says what is allowed, canonically, the direction included.
	key   string
	lines []line
}

// line allows what is in all of its parts; nil parts are anything.
type line struct {
	peers  *group
	blocks *blocks
	ports  *ports
}

// group is a set that follows pods: the addresses of those that a selection chooses, or with a port's
// name their addresses with what the name means there.
type group struct {
	key string
	selection
	port portName // none: addresses alone
}

func groupOf(s selection, port portName) *group {
	g := &group{key: s.key, selection: s, port: port}
	if port.name != "" {
		g.key += string(rune(port.protocol)) + ":" + port.name
	}
	return g
}

func (l line) key() string {
	k := "|"
	if l.peers != nil {
		k += l.peers.key
	}
	k += "|"
	if l.blocks != nil {
		k += l.blocks.key
	}
	k += "|"
	if l.ports != nil {
		k += l.ports.key
	}
	return k
}

// decide what a pod is allowed, from the policies of its namespace. Nil: it is not isolated.
func decide(p *pod, policies []*rules) (out [directions]*profile) {
	var lines [directions][]line
	var isolated [directions]bool
	for _, r := range policies {
		if !r.pods.Matches(p.labels) {
			continue
		}
		for d := range directions {
			if !r.isolates[d] {
				continue
			}
			isolated[d] = true
			for i := range r.allow[d] {
				lines[d] = append(lines[d], r.allow[d][i].lines(d, p)...)
			}
		}
	}
	for d := range directions {
		if isolated[d] {
			out[d] = newProfile(d, lines[d])
		}
	}
	return out
}

// closed allows nothing: of pods that are not yet known.
func closed() [directions]*profile {
	return [directions]*profile{newProfile(ingress, nil), newProfile(egress, nil)}
}

// newProfile is nil if everything is allowed.
func newProfile(d direction, lines []line) *profile {
	keys := map[string]line{}
	var order []string
	for _, l := range lines {
		if l == (line{}) {
			return nil
		}
		k := l.key()
		if _, ok := keys[k]; !ok {
			keys[k] = l
			order = append(order, k)
		}
	}
	slices.Sort(order)
	p := &profile{key: [...]string{"in", "out"}[d] + strings.Join(order, "\n")}
	for _, k := range order {
		p.lines = append(p.lines, keys[k])
	}
	return p
}

// lines of a rule as it is for one pod.
func (r *rule) lines(d direction, p *pod) (out []line) {
	var numbers *ports
	spans := r.ports
	if d == ingress { // names mean what they mean at this pod
		for _, n := range r.named {
			for _, port := range p.named(n.name, n.protocol) {
				spans = append(spans[:len(spans):len(spans)], portSpan{n.protocol, port, port})
			}
		}
	}
	if len(spans) > 0 {
		numbers = portsOf(spans)
	}
	if r.everywhere || numbers != nil {
		if r.anyone {
			out = append(out, line{ports: numbers})
		}
		for _, s := range r.pods {
			out = append(out, line{peers: groupOf(s, portName{}), ports: numbers})
		}
		if r.blocks != nil {
			out = append(out, line{blocks: r.blocks, ports: numbers})
		}
	}
	if d == ingress {
		return out
	}
	for _, n := range r.named { // at the peer
		if r.anyone {
			out = append(out, line{peers: groupOf(all(), n)})
		}
		for _, s := range r.pods {
			out = append(out, line{peers: groupOf(s, n)})
		}
		if r.blocks != nil {
			out = append(out, line{peers: groupOf(all(), n), blocks: r.blocks})
		}
	}
	return out
}
