package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/cluster"
	"github.com/skiff-k8s/skiff/containers"
	"github.com/skiff-k8s/skiff/containers/image"
)

func imageCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "Load, list and remove images of a running cluster's nodes"}
	cmd.AddCommand(imageLoadCommand(), imageListCommand(), imageRemoveCommand())
	return cmd
}

// runtimes are those of a cluster's nodes on this host, by default all of them.
type runtimes struct {
	target
	node string
}

func (r *runtimes) flags(cmd *cobra.Command) {
	r.target.flags(cmd)
	cmd.Flags().StringVar(&r.node, "node", "", "one node of this host; none: all of them")
}

// each connects to the runtimes, one after the other.
func (r *runtimes) each(cmd *cobra.Command, do func(ctx context.Context, node string, c *containers.Client) error) error {
	if err := r.resolve(cmd); err != nil {
		return err
	}
	conf, err := cluster.Load(r.dir)
	if err != nil {
		return fmt.Errorf("no cluster in %s; start one with skiff up, or name one with --name or --data-dir", r.dir)
	}
	sockets := conf.RuntimeSockets(cluster.Paths{Dir: r.dir})
	if r.node != "" {
		socket, ok := sockets[r.node]
		if !ok {
			return fmt.Errorf("--node %s: cluster %q has no such node on this host; skiff node ls shows them", r.node, r.name)
		}
		sockets = map[string]string{r.node: socket}
	}
	for _, node := range slices.Sorted(maps.Keys(sockets)) {
		if _, err := os.Stat(sockets[node]); err != nil {
			return fmt.Errorf("node %s of cluster %q does not run (no socket %s); start it with skiff up", node, r.name, sockets[node])
		}
		c, err := containers.Dial(sockets[node])
		if err != nil {
			return err
		}
		err = do(cmd.Context(), node, c)
		_ = c.Close()
		if err != nil {
			return fmt.Errorf("node %s: %w", node, err)
		}
	}
	return nil
}

func imageLoadCommand() *cobra.Command {
	var r runtimes
	cmd := &cobra.Command{
		Use: "load FILE.tar|DIR", Short: "Load images from a docker-save archive, an OCI archive or an OCI layout", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var names []string
			err := r.each(cmd, func(ctx context.Context, node string, c *containers.Client) (err error) {
				show := newProgressLine(os.Stderr)
				defer show.clear()
				names, err = c.LoadImages(ctx, args[0], func(p image.Progress) {
					show.set(fmt.Sprintf("node %s: layer %d of %d, %.1f MB unpacked", node, min(p.Done+1, p.Layers), p.Layers, float64(p.Bytes)/1e6))
				})
				return err
			})
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(names, "\n"))
			return err
		},
	}
	r.flags(cmd)
	return cmd
}

func imageListCommand() *cobra.Command {
	var r runtimes
	cmd := &cobra.Command{
		Use: "ls", Short: "List images", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var lines []string
			err := r.each(cmd, func(ctx context.Context, node string, c *containers.Client) error {
				resp, err := c.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
				if err != nil {
					return fmt.Errorf("list images: %w", err)
				}
				for _, im := range resp.Images {
					names := im.RepoTags
					if len(names) == 0 {
						names = im.RepoDigests
					}
					for _, n := range names {
						lines = append(lines, fmt.Sprintf("%s\t%.19s\t%.1f MB\t%s", n, im.Id, float64(im.Size)/1e6, node))
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			slices.Sort(lines)
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "IMAGE\tID\tSIZE\tNODE")
			for _, l := range lines {
				fmt.Fprintln(w, l)
			}
			return w.Flush()
		},
	}
	r.flags(cmd)
	return cmd
}

func imageRemoveCommand() *cobra.Command {
	var r runtimes
	cmd := &cobra.Command{
		Use: "rm IMAGE...", Short: "Remove images", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			removed := map[string]bool{}
			err := r.each(cmd, func(ctx context.Context, _ string, c *containers.Client) error {
				for _, name := range args {
					spec := &runtimeapi.ImageSpec{Image: name}
					st, err := c.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
					if err != nil {
						return fmt.Errorf("find image %s: %w", name, err)
					}
					if st.Image == nil {
						continue
					}
					if _, err := c.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec}); err != nil {
						return fmt.Errorf("remove image %s: %w", name, err)
					}
					removed[name] = true
				}
				return nil
			})
			if err != nil {
				return err
			}
			for _, name := range args {
				if !removed[name] {
					return fmt.Errorf("no image %s; skiff image ls shows what is there", name)
				}
				fmt.Fprintln(cmd.OutOrStdout(), name)
			}
			return nil
		},
	}
	r.flags(cmd)
	return cmd
}
