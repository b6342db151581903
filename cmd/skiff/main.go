// Command skiff is a whole Kubernetes cluster in one binary. This file and its
// neighbours are verbs and flags; what they do lives in cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // CronJobs name time zones, which a small host may not have

	"github.com/spf13/cobra"

	"github.com/skiff-k8s/skiff/version"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := root().ExecuteContext(ctx); err != nil {
		if !errors.Is(err, errSaid) {
			fmt.Fprintln(os.Stderr, "skiff:", err)
		}
		os.Exit(1)
	}
}

// errSaid is returned when the user has been told already.
var errSaid = errors.New("said")

func root() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "skiff",
		Short:         "A whole Kubernetes cluster in one small binary",
		SilenceErrors: true,
		SilenceUsage:  true,
		// Suggestions would spread an error over several lines.
		DisableSuggestions: true,
		CompletionOptions: cobra.CompletionOptions{
			HiddenDefaultCmd: true,
		},
	}
	cmd.AddCommand(upCommand(), downCommand(), serverCommand(), agentCommand(), tokenCommand(), etcdCommand(), checkCommand(), manifestsCommand(), imageCommand(), versionCommand(),
		controlPlaneCommand(), nodeCommand(), containersCommand(),
		kubeAPIServerCommand(), kubeSchedulerCommand(), kubeControllerManagerCommand(), cloudControllerManagerCommand(), kubeletCommand(), kubeProxyCommand())
	return cmd
}

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print skiff's version and that of the Kubernetes API it serves", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "skiff %s (commit %s)\nkubernetes %s\n", version.Skiff, version.Commit, version.Kubernetes)
			return err
		},
	}
}
