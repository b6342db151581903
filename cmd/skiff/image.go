package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/cluster"
	"github.com/skiff-k8s/skiff/containers"
)

func imageCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "Load, list and remove images of a running cluster's node"}
	cmd.AddCommand(imageLoadCommand(), imageListCommand(), imageRemoveCommand())
	return cmd
}

// withRuntime connects to the runtime of a cluster's node.
func withRuntime(cmd *cobra.Command, t *target, do func(context.Context, *containers.Client) error) error {
	if err := t.resolve(cmd); err != nil {
		return err
	}
	if _, err := cluster.Load(t.dir); err != nil {
		return fmt.Errorf("no cluster in %s; start one with skiff up, or name one with --name or --data-dir", t.dir)
	}
	socket := cluster.Paths{Dir: t.dir}.CRISocket()
	if _, err := os.Stat(socket); err != nil {
		return fmt.Errorf("the node of cluster %q does not run (no socket %s); start it with skiff up", t.name, socket)
	}
	c, err := containers.Dial(socket)
	if err != nil {
		return err
	}
	defer c.Close()
	return do(cmd.Context(), c)
}

func imageLoadCommand() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use: "load FILE.tar|DIR", Short: "Load images from a docker-save archive, an OCI archive or an OCI layout", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withRuntime(cmd, &t, func(ctx context.Context, c *containers.Client) error {
				names, err := c.LoadImages(ctx, args[0])
				if err != nil {
					return err
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), strings.Join(names, "\n"))
				return err
			})
		},
	}
	t.flags(cmd)
	return cmd
}

func imageListCommand() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use: "ls", Short: "List images", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withRuntime(cmd, &t, func(ctx context.Context, c *containers.Client) error {
				resp, err := c.Images.ListImages(ctx, &runtimeapi.ListImagesRequest{})
				if err != nil {
					return fmt.Errorf("list images: %w", err)
				}
				var lines []string
				for _, im := range resp.Images {
					names := im.RepoTags
					if len(names) == 0 {
						names = im.RepoDigests
					}
					for _, n := range names {
						lines = append(lines, fmt.Sprintf("%s\t%.19s\t%.1f MB", n, im.Id, float64(im.Size)/1e6))
					}
				}
				slices.Sort(lines)
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
				fmt.Fprintln(w, "IMAGE\tID\tSIZE")
				for _, l := range lines {
					fmt.Fprintln(w, l)
				}
				return w.Flush()
			})
		},
	}
	t.flags(cmd)
	return cmd
}

func imageRemoveCommand() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use: "rm IMAGE...", Short: "Remove images", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withRuntime(cmd, &t, func(ctx context.Context, c *containers.Client) error {
				for _, name := range args {
					spec := &runtimeapi.ImageSpec{Image: name}
					st, err := c.Images.ImageStatus(ctx, &runtimeapi.ImageStatusRequest{Image: spec})
					if err != nil {
						return fmt.Errorf("find image %s: %w", name, err)
					}
					if st.Image == nil {
						return fmt.Errorf("no image %s; skiff image ls shows what is there", name)
					}
					if _, err := c.Images.RemoveImage(ctx, &runtimeapi.RemoveImageRequest{Image: spec}); err != nil {
						return fmt.Errorf("remove image %s: %w", name, err)
					}
					fmt.Fprintln(cmd.OutOrStdout(), name)
				}
				return nil
			})
		},
	}
	t.flags(cmd)
	return cmd
}
