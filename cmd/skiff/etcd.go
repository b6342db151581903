package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/skiff-k8s/skiff/cluster"
)

func etcdCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "etcd", Short: "Look after the etcd in a cluster's control planes: its members, snapshots and restores"}
	member := &cobra.Command{Use: "member", Short: "List and remove the members, one on each control plane"}
	member.AddCommand(memberListCommand(), memberRemoveCommand())
	snap := &cobra.Command{Use: "snapshot", Short: "Save, check and restore the state of a cluster"}
	snap.AddCommand(snapshotSaveCommand(), snapshotStatusCommand(), snapshotRestoreCommand())
	cmd.AddCommand(member, snap)
	return cmd
}

// ofCluster finds the cluster that the flags name.
func ofCluster(cmd *cobra.Command, t *target) (*cluster.Config, cluster.Paths, error) {
	if err := t.resolve(cmd); err != nil {
		return nil, cluster.Paths{}, err
	}
	c, err := cluster.Load(t.dir)
	if err != nil {
		return nil, cluster.Paths{}, fmt.Errorf("no control plane in %s; run this on one, and name it with --name or --data-dir", t.dir)
	}
	return c, cluster.Paths{Dir: t.dir}, nil
}

func memberListCommand() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use: "ls", Short: "List the members, who leads and who does not answer", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, p, err := ofCluster(cmd, &t)
			if err != nil {
				return err
			}
			list, err := cluster.EtcdMembers(cmd.Context(), c, p)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "ID\tNAME\tSTATUS\tPEER\tDB SIZE\tRAFT INDEX")
			for _, m := range list {
				fmt.Fprintf(w, "%x\t%s\t%s\t%s\t%d\t%d\n", m.MemberInfo.ID, m.Name, memberState(m), strings.Join(m.PeerURLs, ","), m.DBSize, m.RaftIndex)
			}
			return w.Flush()
		},
	}
	t.flags(cmd)
	return cmd
}

func memberState(m cluster.Member) string {
	switch {
	case m.Name == "":
		return "never started"
	case m.Problem != nil:
		return "does not answer"
	case len(m.Errors) > 0:
		return strings.Join(m.Errors, ",")
	case m.Leader:
		return "leader"
	case m.Learner:
		return "catching up"
	}
	return "follower"
}

func memberRemoveCommand() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use: "rm NAME|ID", Short: "Remove a member for ever, such as that of a machine that is lost; its machine can join anew", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, p, err := ofCluster(cmd, &t)
			if err != nil {
				return err
			}
			m, err := cluster.RemoveEtcdMember(cmd.Context(), c, p, args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "member %s (%x) removed; its node stays until kubectl delete node %s\n", m.Name, m.ID, m.Name)
			return nil
		},
	}
	t.flags(cmd)
	return cmd
}

func snapshotSaveCommand() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use: "save FILE", Short: "Copy the state of a cluster that runs to a file, which etcdutl reads too", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, p, err := ofCluster(cmd, &t)
			if err != nil {
				return err
			}
			info, err := cluster.SaveSnapshot(cmd.Context(), c, p, args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s: revision %d, %d keys, %d bytes; it holds all Secrets: keep it as you keep those, and the directory %s with it\n", args[0], info.Revision, info.Keys, info.Size, p.PKI())
			return nil
		},
	}
	t.flags(cmd)
	return cmd
}

func snapshotStatusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status FILE", Short: "Check a snapshot and tell what is in it", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			info, err := cluster.SnapshotStatus(args[0])
			if err != nil {
				return err
			}
			hash := "good"
			if !info.Checked {
				hash = "none"
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
			fmt.Fprintln(w, "CONTENT\tREVISION\tKEYS\tSIZE\tSTORAGE VERSION\tHASH OF THE FILE")
			fmt.Fprintf(w, "%08x\t%d\t%d\t%d\t%s\t%s\n", info.Hash, info.Revision, info.Keys, info.Size, info.Version, hash)
			return w.Flush()
		},
	}
}

func snapshotRestoreCommand() *cobra.Command {
	var t target
	var bump int64
	var skip bool
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Make a snapshot the state of the cluster, whose etcd has one member then that others join", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, p, err := ofCluster(cmd, &t)
			if err != nil {
				return err
			}
			if bump < 0 {
				return fmt.Errorf("--bump-revision=%d is negative", bump)
			}
			aside, err := cluster.RestoreSnapshot(c, p, args[0], bump, skip)
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if aside != "" {
				fmt.Fprintf(out, "the former state is in %s\n", aside)
			}
			fmt.Fprintf(out, "%s is the state of the cluster in %s; start it as before. Other control planes join it anew: there skiff down --purge, then the command of skiff token create --control-plane\n", args[0], p.Dir)
			return nil
		},
	}
	t.flags(cmd)
	cmd.Flags().Int64Var(&bump, "bump-revision", cluster.DefaultBump, "how far revisions jump, so that nobody who watched takes new ones for old; all before are compacted; 0: not at all")
	cmd.Flags().BoolVar(&skip, "skip-hash-check", false, "take a file without a hash, such as etcd/member/snap/db of a control plane that is down")
	return cmd
}
