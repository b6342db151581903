package main

import (
	"cmp"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/skiff-k8s/skiff/cluster"
)

// nodeCommand is the set of a cluster's nodes on this host; by itself it is what skiff up starts
// to run the first one.
func nodeCommand() *cobra.Command {
	cmd := roleCommand(cluster.Node, "Add, list and remove nodes of a cluster on this host (alone: run one, as skiff up does)", cluster.RunNode)
	cmd.AddCommand(nodeAddCommand(), nodeListCommand(), nodeRemoveCommand())
	return cmd
}

func nodeAddCommand() *cobra.Command {
	var t target
	var labels map[string]string
	var taintList []string
	cmd := &cobra.Command{
		Use: "add [NAME]", Short: "Add a node to a running cluster, in a network namespace of this host", Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := t.resolve(cmd); err != nil {
				return err
			}
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find the skiff binary: %w", err)
			}
			o := cluster.AddNodeOptions{Dir: t.dir, Executable: exe, Progress: cmd.OutOrStdout(), Node: cluster.NodeSpec{Name: strings.Join(args, ""), Labels: labels}}
			if o.Node.Taints, err = taints("taints", taintList); err != nil {
				return err
			}
			name, err := cluster.AddNode(cmd.Context(), o)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "node %s is Ready; every node's share of this host is smaller now\n", name)
			return nil
		},
	}
	t.flags(cmd)
	cmd.Flags().StringToStringVar(&labels, "labels", nil, "labels of the node: key=value,…")
	cmd.Flags().StringSliceVar(&taintList, "taints", nil, "taints of the node: key=value:effect,…")
	return cmd
}

func nodeListCommand() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use: "ls", Short: "List a cluster's nodes", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := t.resolve(cmd); err != nil {
				return err
			}
			nodes, err := cluster.Nodes(cmd.Context(), t.dir)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NODE\tSTATUS\tADDRESS\tPLACE\tPID")
			for _, n := range nodes {
				pid := "-"
				if n.PID != 0 {
					pid = fmt.Sprint(n.PID)
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", n.Name, n.Ready, cmp.Or(strings.Join(n.Addresses, ","), "-"), n.Place, pid)
			}
			return w.Flush()
		},
	}
	t.flags(cmd)
	return cmd
}

func nodeRemoveCommand() *cobra.Command {
	var t target
	var force bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "rm NAME", Short: "Drain a node of this host and take it away", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := t.resolve(cmd); err != nil {
				return err
			}
			return cluster.RemoveNode(cmd.Context(), cluster.RemoveNodeOptions{Dir: t.dir, Name: args[0], Force: force, Timeout: timeout, Progress: cmd.OutOrStdout()})
		},
	}
	t.flags(cmd)
	cmd.Flags().BoolVar(&force, "force", false, "evict pods that no controller would make again elsewhere, too")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long evictions may take, which respect disruption budgets; 0: for ever")
	return cmd
}
