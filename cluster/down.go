package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/skiff-k8s/skiff/cluster/process"
	"github.com/skiff-k8s/skiff/host/cgroup"
	"github.com/skiff-k8s/skiff/host/mount"
)

// DownOptions say which cluster to take away.
type DownOptions struct {
	Dir string
	// Purge removes the data directory too.
	Purge    bool
	Progress io.Writer
}

// Down ends a cluster's, or joined node's, processes and containers and takes away every mount, cgroup,
// link and nftables table that it made. It works from what is on disk, so it also cleans
// up after processes that were killed. Idempotent.
func Down(ctx context.Context, o DownOptions) error {
	n, _, err := nodeOf(o.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("no cluster in %s; name one with --name or --data-dir", o.Dir)
	}
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("taking a cluster away needs root")
	}
	if n.PartOf != "" {
		return fmt.Errorf("%s is the further node %s of a cluster; take it away with skiff node rm %s", o.Dir, n.NodeName, n.NodeName)
	}
	c, err := Load(o.Dir)
	if errors.Is(err, fs.ErrNotExist) { // a node that joined
		c, err = &Config{ID: n.ClusterID}, nil
	}
	if err != nil {
		return err
	}
	p := Paths{o.Dir}
	s := newSteps(o.Progress)
	var errs []error
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"further nodes ended", func() error { return c.endNodes(ctx, Paths{o.Dir}) }},
		{"node process ended", func() error { return process.Stop(ctx, p.Lock(Node), 20*time.Second) }},
		{"control plane ended", func() error { return process.Stop(ctx, p.Lock(ControlPlane), 20*time.Second) }},
		{"containers ended", func() error { return purgeContainers(ctx, n, p) }},
		{"network removed", func() error {
			return errors.Join(n.removeProxyRules(p), n.removePodNetwork(p))
		}},
		{"mounts and cgroups removed", func() error {
			return errors.Join(unmountBelow(p.Dir), removeCgroups(n.CgroupRoot))
		}},
		{"data removed", func() error {
			if !o.Purge {
				return nil
			}
			return errors.Join(removeData(p), forgetElsewhere(c.ID))
		}},
	} {
		if err := step.do(); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", step.name, err))
			continue
		}
		if (step.name != "data removed" || o.Purge) && (step.name != "further nodes ended" || len(c.Nodes) > 0) {
			s.done(step.name)
		}
	}
	return errors.Join(errs...)
}

// removeData removes the data directory, cluster.json or node.json last: what a crash leaves
// is still known as a cluster's or node's, and the next purge goes on.
func removeData(p Paths) error {
	entries, err := os.ReadDir(p.Dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if path := p.Dir + "/" + e.Name(); path != p.Config() && path != p.Node() {
			if err := os.RemoveAll(path); err != nil {
				return err
			}
		}
	}
	return os.RemoveAll(p.Dir)
}

func unmountBelow(dir string) error {
	points, err := mount.Kernel{}.Under(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range points { // deepest first
		errs = append(errs, mount.Kernel{}.Unmount(p))
	}
	return errors.Join(errs...)
}

func removeCgroups(root string) error {
	tree, err := cgroup.Open("/sys/fs/cgroup")
	if err != nil {
		return err
	}
	return tree.Remove(root)
}
