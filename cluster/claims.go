package cluster

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/skiff-k8s/skiff/cluster/check"
	"github.com/skiff-k8s/skiff/cluster/process"
	"github.com/skiff-k8s/skiff/host/netlink"
)

// claim is what someone on this host uses: a range of addresses or a port.
type claim struct {
	CIDR netip.Prefix
	Port uint16
	// Who, for people.
	Who string
	// Route claims are the host's routes: a range that a default-like route covers is not taken.
	Route bool
}

// overlapping finds who has part of a range. A route that is wider than the range says only
// where all that is not known otherwise goes.
func overlapping(p netip.Prefix, taken []claim) (claim, bool) {
	for _, t := range taken {
		if t.CIDR.IsValid() && t.CIDR.Overlaps(p) && !(t.Route && t.CIDR.Bits() < p.Bits()) {
			return t, true
		}
	}
	return claim{}, false
}

// listening finds who has a port.
func listening(port uint16, taken []claim) (claim, bool) {
	i := slices.IndexFunc(taken, func(t claim) bool { return t.Port == port })
	if i < 0 {
		return claim{}, false
	}
	return taken[i], true
}

// claims are those of the cluster.
func (c *Config) claims() []claim {
	who := fmt.Sprintf("cluster %q", c.Name)
	var out []claim
	n := c.node()
	for _, list := range [][]netip.Prefix{n.PodCIDRs, n.ServiceCIDRs, c.NodeSubnets} {
		for _, p := range list {
			out = append(out, claim{CIDR: p, Who: who})
		}
	}
	for _, port := range c.ports() {
		out = append(out, claim{Port: port, Who: who})
	}
	return out
}

// placed is a cluster and its data directory.
type placed struct {
	*Config
	dir string
}

// otherClusters are those below the default directory, beside dir and of the notes, whether they run
// or not. Clusters in other network namespaces are in nobody's way.
func otherClusters(dir string) []placed {
	var out []placed
	for _, pattern := range []string{DefaultDir("*"), filepath.Join(filepath.Dir(dir), "*"), filepath.Join(clustersElsewhere, "*"+noteSuffix())} {
		found, _ := filepath.Glob(filepath.Join(pattern, "cluster.json")) // the pattern is good
		for _, f := range found {
			c, err := Load(filepath.Dir(f))
			if err != nil || samePath(filepath.Dir(f), dir) || slices.ContainsFunc(out, func(o placed) bool { return o.ID == c.ID }) {
				continue // what cannot be read claims nothing that could be known
			}
			if !elsewhere(Paths{filepath.Dir(f)}) {
				out = append(out, placed{c, filepath.Dir(f)})
			}
		}
	}
	return out
}

// elsewhere tells whether a cluster runs in another network namespace than this process.
func elsewhere(p Paths) bool {
	for _, role := range []Role{ControlPlane, Node} {
		if pid, err := process.Running(p.Lock(role)); err == nil && pid != 0 {
			return !samePath(fmt.Sprintf("/proc/%d/ns/net", pid), "/proc/self/ns/net")
		}
	}
	return false
}

// clustersElsewhere holds a link to each data directory that is not below the default one. Its
// name is the cluster's id and noteSuffix.
const clustersElsewhere = "/var/lib/skiff/.elsewhere"

// noteSuffix tells network namespaces apart.
func noteSuffix() string {
	st, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		return ""
	}
	return fmt.Sprintf(".%d", st.Sys().(*syscall.Stat_t).Ino)
}

func samePath(a, b string) bool {
	x, errA := os.Stat(a)
	y, errB := os.Stat(b)
	return errA == nil && errB == nil && os.SameFile(x, y)
}

// hostClaims are all that this host knows but the cluster in dir.
func hostClaims(dir string) ([]claim, error) {
	var out []claim
	for _, c := range otherClusters(dir) {
		out = append(out, c.claims()...)
	}
	routes, err := netlink.Destinations()
	if err != nil {
		return nil, err
	}
	for p, link := range routes {
		out = append(out, claim{CIDR: p, Who: "a route of this host (" + p.String() + " dev " + link + ")", Route: true})
	}
	return out, nil
}

// Ranges that a cluster can have where the usual one is taken: of the same size, where neither
// home routers nor container engines are wont to be.
func candidates(usual netip.Prefix, more ...string) []netip.Prefix {
	out := []netip.Prefix{usual}
	for _, m := range more {
		wide := netip.MustParsePrefix(m)
		for a := wide.Addr(); wide.Contains(a); {
			out = append(out, netip.PrefixFrom(a, 16))
			b := a.As4()
			if b[1] == 255 {
				break
			}
			b[1]++
			a = netip.AddrFrom4(b)
		}
	}
	return out
}

var (
	podCandidates     = candidates(netip.MustParsePrefix("10.244.0.0/16"), "10.240.0.0/12", "10.192.0.0/12", "172.20.0.0/14")
	serviceCandidates = candidates(netip.MustParsePrefix("10.96.0.0/16"), "10.96.0.0/12", "10.112.0.0/12", "172.24.0.0/14")
)

// freeRange is the first candidate that nobody has a part of.
func freeRange(what, mend string, from []netip.Prefix, taken []claim) (netip.Prefix, error) {
	var first claim
	for i, p := range from {
		t, clash := overlapping(p, taken)
		if !clash {
			return p, nil
		}
		if i == 0 {
			first = t
		}
	}
	return netip.Prefix{}, fmt.Errorf("no range of %s is free: %s is taken by %s, and so are all others that skiff would choose; %s", what, from[0], first.Who, mend)
}

// freePort is the first port from usual on, in steps, that nobody claims or listens on.
func freePort(usual uint16, step int, taken []claim) (uint16, error) {
	for i := range 100 {
		port := usual + uint16(i*step)
		if _, clash := listening(port, taken); !clash && check.PortFree(port) == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("port %d is taken, and so are the hundred that skiff would choose in its place: stop what listens there (ss -ltnp)", usual)
}
