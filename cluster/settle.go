package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/skiff-k8s/skiff/cluster/check"
	"github.com/skiff-k8s/skiff/host/netlink"
)

// Wanted is what the user chose for a new cluster; what is empty is chosen free of conflicts.
type Wanted struct {
	APIPort, KubeletPort   uint16
	PodCIDRs, ServiceCIDRs []netip.Prefix
}

// settle gives a new cluster ranges and ports that nobody on this host has; of one that is
// there it finds out whether another that runs is in its way. It returns what others have.
func (c *Config) settle(o UpOptions, fresh, running bool) ([]claim, error) {
	if !fresh {
		if err := c.refuseOther(o.Wanted); err != nil {
			return nil, err
		}
		if !running {
			if err := c.inTheWay(o.Dir); err != nil {
				return nil, err
			}
		}
		return hostClaims(o.Dir)
	}
	taken, err := hostClaims(o.Dir)
	if err != nil {
		return nil, err
	}
	return taken, c.choose(o.Wanted, o.Reach.NodeIPs, taken)
}

// refuseOther says that what a cluster was made with stays.
func (c *Config) refuseOther(w Wanted) error {
	for _, x := range []struct {
		flag       string
		set        bool
		have, want string
	}{
		{"--api-port", w.APIPort != 0, fmt.Sprint(c.APIPort), fmt.Sprint(w.APIPort)},
		{"--kubelet-port", w.KubeletPort != 0, fmt.Sprint(c.KubeletPort), fmt.Sprint(w.KubeletPort)},
		{"--pod-cidr", len(w.PodCIDRs) > 0, cidrList(c.PodCIDRs), cidrList(w.PodCIDRs)},
		{"--service-cidr", len(w.ServiceCIDRs) > 0, cidrList(c.ServiceCIDRs), cidrList(w.ServiceCIDRs)},
	} {
		if x.set && x.have != x.want {
			return fmt.Errorf("%s=%s: cluster %q was made with %s, which stays; leave it out, or make another cluster with --name", x.flag, x.want, c.Name, x.have)
		}
	}
	return nil
}

// choose decides ranges and ports of a new cluster.
func (c *Config) choose(w Wanted, nodeIPs []netip.Addr, taken []claim) error {
	taken, err := c.chooseRanges(w, nodeIPs, taken)
	if err != nil {
		return err
	}
	for _, x := range []struct {
		flag    string
		lacking bool
		want    uint16
		step    int
		out     *uint16
	}{
		{"--api-port", c.lacks(APIServer), w.APIPort, 1, &c.APIPort},
		{"--kubelet-port", c.lacks(Kubelet), w.KubeletPort, 10, &c.KubeletPort},
	} {
		if x.want == 0 {
			if x.lacking {
				continue // others listen there, on purpose
			}
			var err error
			if *x.out, err = freePort(*x.out, x.step, taken); err != nil {
				return err
			}
		} else if t, clash := listening(x.want, taken); clash {
			return fmt.Errorf("%s=%d is a port of %s; choose another, or leave it out", x.flag, x.want, t.Who)
		} else if err := check.PortFree(x.want); err != nil && !x.lacking {
			return fmt.Errorf("%s=%d: port %d: %w (stop what listens there: ss -ltnp 'sport = :%d'), choose another, or leave it out", x.flag, x.want, x.want, err, x.want)
		} else {
			*x.out = x.want
		}
		taken = append(taken, claim{Port: *x.out, Who: "this cluster"})
	}
	return c.chooseBridge()
}

// chooseBridge: names of links begin with four digits of the id, which two clusters may share.
func (c *Config) chooseBridge() error {
	for range 10 {
		has, err := netlink.HasLink(c.Bridge)
		if err != nil || !has {
			return err
		}
		if c.ID, err = randomID(); err != nil {
			return err
		}
		c.Bridge = "sk" + c.ID[:4]
	}
	return errors.New("all names for the pod network's link are taken on this host; ip -br link shows them")
}

// inTheWay finds another cluster that runs with ranges of this one: both were made where the
// other could not be seen.
func (c *Config) inTheWay(dir string) error {
	own := c.claims()
	for _, o := range otherClusters(dir) {
		if running, err := anyRunning(Paths{o.dir}); err != nil || !running {
			continue // nobody's lock can be looked at: nobody runs
		}
		for _, mine := range own {
			if !mine.CIDR.IsValid() {
				continue // ports are looked at where they are listened on
			}
			if t, clash := overlapping(mine.CIDR, o.claims()); clash {
				return fmt.Errorf("range %s of cluster %q overlaps %s of cluster %q, which runs; end that one first: skiff down --data-dir %s", mine.CIDR, c.Name, t.CIDR, o.Name, o.dir)
			}
		}
	}
	return nil
}

// settleNodes decides how many further nodes there are and where.
func (c *Config) settleNodes(p Paths, n int, taken []claim) error {
	if n < 0 {
		return fmt.Errorf("--nodes %d: must be 1 or more", n)
	}
	if n > 0 {
		if err := c.growNodes(n); err != nil {
			return err
		}
	}
	return c.placeNodes(p, append(c.claims(), taken...))
}

// noteElsewhere lets other clusters find one that is not below the default directory.
func noteElsewhere(c *Config, dir string) error {
	if filepath.Dir(dir) == filepath.Dir(DefaultDir("x")) {
		return nil
	}
	if err := os.MkdirAll(clustersElsewhere, 0o755); err != nil {
		return fmt.Errorf("note where the cluster is: %w", err)
	}
	link := filepath.Join(clustersElsewhere, c.ID+noteSuffix())
	if to, err := os.Readlink(link); err == nil && to == dir {
		return nil
	}
	if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("note where the cluster is: %w", err)
	}
	if err := os.Symlink(dir, link); err != nil {
		return fmt.Errorf("note where the cluster is: %w", err)
	}
	return nil
}

// forgetElsewhere takes the note away, and those of clusters that are gone.
func forgetElsewhere(id string) error {
	entries, err := os.ReadDir(clustersElsewhere)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("forget where the cluster is: %w", err)
	}
	var errs []error
	for _, e := range entries {
		link := filepath.Join(clustersElsewhere, e.Name())
		if _, err := os.Stat(filepath.Join(link, "cluster.json")); strings.HasPrefix(e.Name(), id) || errors.Is(err, os.ErrNotExist) {
			if err := os.Remove(link); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, fmt.Errorf("forget where the cluster is: %w", err))
			}
		}
	}
	for dir := clustersElsewhere; strings.HasPrefix(dir, "/var/lib/skiff"); dir = filepath.Dir(dir) {
		if os.Remove(dir) != nil { // not empty: others have notes or data there
			break
		}
	}
	return errors.Join(errs...)
}
