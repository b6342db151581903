package main

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/skiff-k8s/skiff/cluster"
)

// serverToken is how long the join command holds that a server prints when it starts.
const serverToken = 24 * time.Hour

func serverCommand() *cobra.Command {
	var t target
	var etcd externalEtcd
	var pods podNetworkFlags
	o := cluster.UpOptions{}
	var nodeIPs, advertise string
	var join cluster.ControlPlaneJoin
	cmd := &cobra.Command{
		Use: "server", Short: "Run a control plane and its node for agents on other machines, in the foreground", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := t.resolve(cmd); err != nil {
				return err
			}
			var err error
			if o.Executable, err = os.Executable(); err != nil {
				return fmt.Errorf("find the skiff binary: %w", err)
			}
			if o.Etcd, err = etcd.config(); err != nil {
				return err
			}
			if o.Reach.NodeIPs, err = addresses("node-ip", nodeIPs); err != nil {
				return err
			}
			if advertise != "" {
				if o.Reach.Advertise, err = netip.ParseAddr(advertise); err != nil || o.Reach.Advertise.IsUnspecified() {
					return fmt.Errorf("--advertise-address=%s is no address that other machines can reach", advertise)
				}
			}
			out := cmd.OutOrStdout()
			o.Name, o.Dir, o.Progress, o.PodNetwork, o.Join = t.name, t.dir, out, pods.change(), join
			r, err := cluster.Up(cmd.Context(), o)
			if err != nil {
				return err
			}
			token, err := r.Token(cmd.Context(), serverToken, "printed by skiff server when it started")
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "cluster %q is up\n  export KUBECONFIG=%s\nother machines join with (for %s; skiff token create makes more)\n  %s\nCtrl-C ends it (its containers go on; skiff down --data-dir %s takes all away)\n",
				r.Config.Name, r.Paths.Kubeconfig(), serverToken, cluster.JoinCommand(r.Config, token), t.dir)
			if err := r.Supervise(cmd.Context()); err != nil {
				return err
			}
			// The context has ended; what is left to do must not end with it.
			return cluster.Halt(context.WithoutCancel(cmd.Context()), t.dir)
		},
	}
	t.flags(cmd)
	flags := cmd.Flags()
	etcd.bind(flags)
	pods.bind(flags)
	bindPools(flags, &o.LoadBalancerPools)
	flags.StringVar(&o.Reach.NodeName, "node-name", "", "name of this machine's node; none: the host's")
	flags.StringVar(&nodeIPs, "node-ip", "", "addresses of this machine's node, the primary one first; none: this host's")
	flags.StringVar(&advertise, "advertise-address", "", "address by which other machines reach the API server; none: the node's")
	flags.StringVar(&o.Reach.Endpoint, "control-plane-endpoint", "", "HOST[:PORT] of what leads to the API servers of several control planes, such as a balancer; needed before others join")
	flags.StringVar(&join.Server, "server", "", "become a further control plane of the cluster at this URL, https://HOST:6443; needed the first time")
	flags.StringVar(&join.Token, "token", "", "token with the hash of the cluster's CA, as skiff token create --control-plane prints it")
	flags.StringVar(&join.CAHash, "ca-cert-hash", "", "sha256:… hash of the cluster's CA for a token without one")
	flags.BoolVar(&join.SkipCA, "insecure-skip-ca-verification", false, "join without such a hash: whoever knows the token can then pass for the server")
	flags.StringVar(&join.CertificateKey, "certificate-key", "", "what decrypts the cluster's keys, as skiff token create --control-plane prints it")
	flags.StringSliceVar(&o.Reach.TLSSANs, "tls-san", nil, "further names and addresses in the API server's certificate")
	flags.DurationVar(&o.Reach.SigningDuration, "cluster-signing-duration", 0, "how long nodes' certificates last, which renew them before; none: a year")
	flags.StringSliceVar(&o.Without, "without", nil, "components that others run: kube-apiserver, kube-scheduler, kube-controller-manager, kubelet, kube-proxy; empty: none again")
	flags.StringSliceVar(&o.PlainHTTPRegistries, "plain-http-registry", nil, "registry host[:port] to pull from over plain HTTP; may be given several times")
	flags.StringVar(&o.Audit.PolicyFile, "audit-policy-file", "", "audit.k8s.io/v1 Policy: which requests to the API are recorded, and how much of them")
	flags.StringVar(&o.Audit.LogPath, "audit-log-path", "", "file that audit events are written to, - for the control plane's log")
	return cmd
}
