package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/skiff-k8s/skiff/cluster"
	"github.com/skiff-k8s/skiff/cluster/check"
)

// target is how a command names a cluster.
type target struct{ name, dir string }

func (t *target) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&t.name, "name", "default", "name of the cluster")
	cmd.Flags().StringVar(&t.dir, "data-dir", "", "where its data is (default /var/lib/skiff/NAME)")
}

// resolve makes the directory absolute; a directory alone also gives the name.
func (t *target) resolve(cmd *cobra.Command) error {
	if t.dir == "" {
		t.dir = cluster.DefaultDir(t.name)
		return nil
	}
	dir, err := filepath.Abs(t.dir)
	if err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	t.dir = dir
	if !cmd.Flags().Changed("name") {
		if c, err := cluster.Load(dir); err == nil {
			t.name = c.Name
		}
	}
	return nil
}

func upCommand() *cobra.Command {
	var t target
	var detach bool
	var plainHTTP, without []string
	var runtimeEndpoint string
	var etcd externalEtcd
	var audit cluster.AuditConfig
	var nodes int
	var pools []string
	var choice clusterChoice
	var pods podNetworkFlags
	var file string
	cmd := &cobra.Command{
		Use: "up", Short: "Start a cluster on this host, or what does not run of it", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			described, err := readClusterFile(cmd, file, &t)
			if err != nil {
				return err
			}
			if err := t.resolve(cmd); err != nil {
				return err
			}
			exe, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find the skiff binary: %w", err)
			}
			external, err := etcd.config()
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if cmd.Flags().Changed("nodes") && nodes < 1 {
				return fmt.Errorf("--nodes %d: must be 1 or more", nodes)
			}
			wanted, err := choice.wanted()
			if err != nil {
				return err
			}
			r, err := cluster.Up(cmd.Context(), cluster.UpOptions{Name: t.name, Dir: t.dir, Executable: exe, Etcd: external, PlainHTTPRegistries: plainHTTP, PodNetwork: pods.change(), RuntimeEndpoint: runtimeEndpoint, Without: without, LoadBalancerPools: pools, Audit: audit, Progress: out, Nodes: nodes, Wanted: wanted, File: described})
			if err != nil {
				return err
			}
			if err := followClusterFile(cmd, described, t.dir); err != nil {
				return err
			}
			fmt.Fprintf(out, "cluster %q is up\n  export KUBECONFIG=%s\n  kubectl create deployment hello --image=skiff.local/hello:v1 --replicas=3\n  kubectl get pods -o wide\n",
				t.name, r.Paths.Kubeconfig())
			if detach {
				fmt.Fprintf(out, "it runs in the background; end it with: skiff down --data-dir %s\n", t.dir)
				return nil
			}
			fmt.Fprintln(out, "Ctrl-C ends it (its data stays)")
			if err := r.Supervise(cmd.Context()); err != nil {
				return err
			}
			// The context has ended; what is left to do must not end with it.
			return cluster.Down(context.WithoutCancel(cmd.Context()), cluster.DownOptions{Dir: t.dir, Progress: out})
		},
	}
	t.flags(cmd)
	cmd.Flags().BoolVar(&detach, "detach", false, "return once the node is Ready and cluster DNS answers")
	cmd.Flags().StringVarP(&file, "file", "f", "", "cluster.yaml: what the cluster is to be like (docs/cluster-file.md)")
	cmd.Flags().IntVar(&nodes, "nodes", 0, "nodes in all on this host, further ones in network namespaces; none: as many as there are, one in a new cluster")
	choice.bind(cmd.Flags())
	bindPools(cmd.Flags(), &pools)
	pods.bind(cmd.Flags())
	etcd.bind(cmd.Flags())
	cmd.Flags().StringSliceVar(&without, "without", nil, "components that others run: kube-apiserver, kube-scheduler, kube-controller-manager, kubelet, kube-proxy; empty: none again")
	cmd.Flags().StringVar(&runtimeEndpoint, "container-runtime-endpoint", "", "CRI socket of another container runtime on this host, unix:///…; built-in: skiff's own again")
	cmd.Flags().StringSliceVar(&plainHTTP, "plain-http-registry", nil, "registry host[:port] to pull from over plain HTTP; may be given several times")
	cmd.Flags().StringVar(&audit.PolicyFile, "audit-policy-file", "", "audit.k8s.io/v1 Policy: which requests to the API are recorded, and how much of them")
	cmd.Flags().StringVar(&audit.LogPath, "audit-log-path", "", "file that audit events are written to, - for the control plane's log")
	return cmd
}

func downCommand() *cobra.Command {
	var t target
	var purge bool
	cmd := &cobra.Command{
		Use: "down", Short: "End a cluster and take away all that it made on this host", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := t.resolve(cmd); err != nil {
				return err
			}
			return cluster.Down(cmd.Context(), cluster.DownOptions{Dir: t.dir, Purge: purge, Progress: cmd.OutOrStdout()})
		},
	}
	t.flags(cmd)
	cmd.Flags().BoolVar(&purge, "purge", false, "remove its data too")
	return cmd
}

func checkCommand() *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use: "check", Short: "Find out what this host lacks to run a cluster, with the mend for each", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := t.resolve(cmd); err != nil {
				return err
			}
			host := check.Config{DataDir: t.dir, Ports: cluster.Ports(t.dir)}
			lacking := 0
			for _, r := range check.Host(host) {
				if r.Problem == nil {
					fmt.Fprintf(cmd.OutOrStdout(), "ok       %s\n", r.Name)
					continue
				}
				lacking++
				fmt.Fprintf(cmd.OutOrStdout(), "MISSING  %s: %v\n         mend: %s\n", r.Name, r.Problem, r.Mend)
			}
			if lacking > 0 {
				return errSaid
			}
			return nil
		},
	}
	t.flags(cmd)
	return cmd
}

// roleCommand runs one of a cluster's processes.
func roleCommand(role cluster.Role, short string, run func(context.Context, string) error) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use: string(role), Short: short, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return run(cmd.Context(), dir) },
	}
	cmd.Flags().StringVar(&dir, "data-dir", "", "the cluster's data directory, made by skiff up")
	cobra.CheckErr(cmd.MarkFlagRequired("data-dir"))
	return cmd
}

func controlPlaneCommand() *cobra.Command {
	return roleCommand(cluster.ControlPlane, "Run the control plane of a cluster (skiff up starts it)", func(ctx context.Context, dir string) error {
		return cluster.RunControlPlane(ctx, dir, extraArgs)
	})
}
