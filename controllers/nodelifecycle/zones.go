package nodelifecycle

import (
	corev1 "k8s.io/api/core/v1"
)

// zone is where a node is; that of nodes without labels has no name.
type zone struct{ region, name string }

func zoneOf(n *corev1.Node) zone {
	return zone{n.Labels[corev1.LabelTopologyRegion], n.Labels[corev1.LabelTopologyZone]}
}

// zones counts the nodes of each zone as they come, change and go, so that a node whose turn
// it may be need not look at all others. Not for concurrent use.
type zones struct {
	nodes  map[string]fare
	counts map[zone]zoneCount
	down   int // zones without a ready node
}

// fare is how a node fares.
type fare struct {
	zone  zone
	ready bool
}

func newZones() *zones {
	return &zones{nodes: map[string]fare{}, counts: map[zone]zoneCount{}}
}

func (z *zones) set(node string, now fare) {
	was, known := z.nodes[node]
	if known && was == now {
		return // nearly always: it was a heartbeat
	}
	if known {
		z.add(was, -1)
	}
	z.nodes[node] = now
	z.add(now, 1)
}

func (z *zones) remove(node string) {
	if was, known := z.nodes[node]; known {
		z.add(was, -1)
		delete(z.nodes, node)
	}
}

func (z *zones) add(f fare, n int) {
	c := z.counts[f.zone]
	if c.full() {
		z.down--
	}
	if f.ready {
		c.ready += n
	} else {
		c.notReady += n
	}
	if c.full() {
		z.down++
	}
	z.counts[f.zone] = c
	if c == (zoneCount{}) {
		delete(z.counts, f.zone)
	}
}

func (z *zones) allDown() bool { return z.down == len(z.counts) }
