package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/skiff-k8s/skiff/cluster"
	"github.com/skiff-k8s/skiff/cluster/clusterfile"
	"github.com/skiff-k8s/skiff/containers"
)

// readClusterFile reads the file of up -f, which names the cluster too; nil without one.
func readClusterFile(cmd *cobra.Command, path string, t *target) (*clusterfile.File, error) {
	if path == "" {
		if cmd.Flags().Changed("file") {
			return nil, fmt.Errorf("--file: give the path of a cluster file")
		}
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("--file: %w", err)
	}
	f, err := clusterfile.Parse(path, text)
	if err != nil {
		return nil, err
	}
	for flag, field := range map[string]string{"nodes": "nodes", "api-port": "apiServer.port", "pod-cidr": "network.podCIDRs", "service-cidr": "network.serviceCIDRs"} {
		if cmd.Flags().Changed(flag) && f.Has(field) {
			return nil, f.Errorf(field, "--%s says it too; leave one of them out", flag)
		}
	}
	if f.Name != "" {
		if cmd.Flags().Changed("name") && t.name != f.Name {
			return nil, f.Errorf("name", "%s, but --name is %s; leave one of them out", f.Name, t.name)
		}
		t.name = f.Name
		if t.dir != "" { // a directory alone would give the name
			if c, err := cluster.Load(t.dir); err == nil && c.Name != f.Name {
				return nil, f.Errorf("name", "--data-dir %s belongs to cluster %q, not %q", t.dir, c.Name, f.Name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(f.APIServer.ExtraArgs)) {
		err := extraArgs(&cluster.APIServerConfig{Serving: &tls.Config{}}, map[string][]string{name: f.APIServer.ExtraArgs[name]})
		if err != nil {
			field := "apiServer.extraArgs." + name
			return nil, f.Errorf(field, "%s", strings.TrimPrefix(strings.TrimPrefix(err.Error(), "--"+name), ": "))
		}
	}
	return f, nil
}

// drainTimeout is how long a node that the file no longer has may take to be emptied.
const drainTimeout = 5 * time.Minute

// followClusterFile does what needs a cluster that is up: it takes nodes away and loads images.
func followClusterFile(cmd *cobra.Command, f *clusterfile.File, dir string) error {
	if f == nil {
		return nil
	}
	surplus, err := cluster.Surplus(f, dir)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	for _, name := range surplus {
		if err := cluster.RemoveNode(cmd.Context(), cluster.RemoveNodeOptions{Dir: dir, Name: name, Timeout: drainTimeout, Progress: out}); err != nil {
			return f.Errorf("nodes", "node %s is no longer in it: %s", name, err)
		}
	}
	for i, path := range f.Images {
		r := runtimes{target: target{dir: dir}}
		err := r.each(cmd, func(ctx context.Context, _ string, c *containers.Client) error {
			_, err := c.LoadImages(ctx, f.Path(path), nil)
			return err
		})
		if err != nil {
			return f.Errorf(fmt.Sprintf("images[%d]", i), "%s", err)
		}
		fmt.Fprintf(out, "  images of %s loaded\n", path)
	}
	return nil
}
