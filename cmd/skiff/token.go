package main

import (
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/cluster"
)

func tokenCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Make, list and remove the tokens by which machines join a cluster"}
	cmd.AddCommand(tokenCreateCommand(), tokenListCommand(), tokenRemoveCommand())
	return cmd
}

// withCluster runs f with the cluster that the flags name, as its administrator.
func withCluster(cmd *cobra.Command, t *target, f func(*cluster.Config, cluster.Paths, kubernetes.Interface) error) error {
	if err := t.resolve(cmd); err != nil {
		return err
	}
	c, err := cluster.Load(t.dir)
	if err != nil {
		return fmt.Errorf("no cluster in %s; tokens are made on its server: name it with --name or --data-dir", t.dir)
	}
	p := cluster.Paths{Dir: t.dir}
	cfg, err := cluster.AdminConfig(p)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	return f(c, p, client)
}

func tokenCreateCommand() *cobra.Command {
	var t target
	var ttl time.Duration
	var description string
	printJoin, controlPlane := true, false
	cmd := &cobra.Command{
		Use: "create", Short: "Make a token and print the command by which a machine joins with it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ttl < 0 {
				return fmt.Errorf("--ttl=%s is negative; 0 is a token that never expires", ttl)
			}
			return withCluster(cmd, &t, func(c *cluster.Config, p cluster.Paths, client kubernetes.Interface) error {
				if controlPlane {
					return joinControlPlane(cmd, c, p, client, ttl, description)
				}
				token, err := cluster.CreateToken(cmd.Context(), client, p, ttl, description)
				if err != nil {
					return err
				}
				line := token.String()
				if printJoin {
					line = cluster.JoinCommand(c, token)
				}
				_, err = fmt.Fprintln(cmd.OutOrStdout(), line)
				return err
			})
		},
	}
	t.flags(cmd)
	cmd.Flags().DurationVar(&ttl, "ttl", 24*time.Hour, "how long machines can join with it; 0: for ever")
	cmd.Flags().StringVar(&description, "description", "", "what it is for, as skiff token ls shows it")
	cmd.Flags().BoolVar(&controlPlane, "control-plane", false, "for a machine that becomes a further control plane: also puts the cluster's keys, encrypted, where it finds them for two hours")
	cmd.Flags().BoolVar(&printJoin, "print-join-command", true, "print the command; false: the token alone")
	return cmd
}

// joinControlPlane prints the command by which a machine becomes a further control plane.
func joinControlPlane(cmd *cobra.Command, c *cluster.Config, p cluster.Paths, client kubernetes.Interface, ttl time.Duration, description string) error {
	key, err := cluster.UploadCerts(cmd.Context(), c, p, client)
	if err != nil {
		return err
	}
	token, err := cluster.CreateToken(cmd.Context(), client, p, ttl, description)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), cluster.JoinControlPlaneCommand(c, token, key))
	return err
}

func tokenListCommand() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use: "ls", Short: "List the tokens, without their secrets", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return withCluster(cmd, &t, func(_ *cluster.Config, _ cluster.Paths, client kubernetes.Interface) error {
				list, err := cluster.Tokens(cmd.Context(), client)
				if err != nil {
					return err
				}
				w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 8, 2, ' ', 0)
				fmt.Fprintln(w, "TOKEN\tEXPIRES\tUSAGES\tDESCRIPTION")
				for _, k := range list {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", k.ID, expiry(k.Expires, time.Now()), strings.Join(k.Usages, ","), k.Description)
				}
				return w.Flush()
			})
		},
	}
	t.flags(cmd)
	return cmd
}

func expiry(at, now time.Time) string {
	switch {
	case at.IsZero():
		return "never"
	case !at.After(now):
		return "expired"
	}
	return "in " + at.Sub(now).Round(time.Second).String()
}

func tokenRemoveCommand() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use: "rm TOKEN...", Short: "Remove tokens; who has joined stays", Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withCluster(cmd, &t, func(_ *cluster.Config, _ cluster.Paths, client kubernetes.Interface) error {
				for _, token := range args {
					if err := cluster.DeleteToken(cmd.Context(), client, token); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	t.flags(cmd)
	return cmd
}
