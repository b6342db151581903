package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skiff-k8s/skiff/cluster"
)

// agentDir is where a node that joined keeps its data.
const agentDir = "/var/lib/skiff/agent"

func agentCommand() *cobra.Command {
	var o cluster.JoinOptions
	var nodeIPs string
	var nodeTaints []string
	var pods podNetworkFlags
	cmd := &cobra.Command{
		Use: "agent", Short: "Join a cluster on another machine and run this one as its node, in the foreground", Args: cobra.NoArgs,
		Example: "  skiff agent --server https://192.0.2.1:6443 --token abcdef.0123456789abcdef@sha256:…",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Dir, err = filepath.Abs(o.Dir); err != nil {
				return fmt.Errorf("--data-dir: %w", err)
			}
			if o.NodeIPs, err = addresses("node-ip", nodeIPs); err != nil {
				return err
			}
			if o.Taints, err = taints("register-with-taints", nodeTaints); err != nil {
				return err
			}
			o.PodNetwork = pods.change()
			o.Progress, o.Logger = cmd.OutOrStdout(), slog.New(slog.NewTextHandler(os.Stderr, nil))
			return cluster.RunAgent(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	pods.bind(flags)
	flags.StringVar(&o.Server, "server", "", "URL of the API server, https://HOST:6443; needed the first time")
	flags.StringVar(&o.Token, "token", "", "token with the hash of the cluster's CA, as skiff token create prints it; needed the first time")
	flags.StringVar(&o.CAHash, "ca-cert-hash", "", "sha256:… hash of the cluster's CA for a token without one, such as kubeadm's")
	flags.BoolVar(&o.SkipCA, "insecure-skip-ca-verification", false, "join without such a hash: whoever knows the token can then pass for the server")
	flags.StringVar(&o.NodeName, "node-name", "", "name of the node; none: the host's")
	flags.StringVar(&nodeIPs, "node-ip", "", "addresses of the node, one or one of each family, the primary one first; none: the one that reaches the server")
	flags.StringToStringVar(&o.Labels, "node-labels", nil, "labels of the node when it registers")
	flags.StringSliceVar(&nodeTaints, "register-with-taints", nil, "taints of the node when it registers: key=value:effect")
	flags.StringSliceVar(&o.PlainHTTPRegistries, "plain-http-registry", nil, "registry host[:port] to pull from over plain HTTP; may be given several times")
	flags.StringVar(&o.RuntimeEndpoint, "container-runtime-endpoint", "", "CRI socket of another container runtime, unix:///…; none: the built-in one")
	flags.StringVar(&o.CgroupRoot, "cgroup-root", "", "control group above those of pods; none: one of its own")
	flags.StringVar(&o.Dir, "data-dir", agentDir, "where the node keeps its data")
	return cmd
}

// addresses reads a list of IP addresses; none if it is empty.
func addresses(flag, list string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, s := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return nil, fmt.Errorf("--%s=%s is no IP address", flag, s)
		}
		out = append(out, a)
	}
	return out, nil
}
