package main

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/skiff-k8s/skiff/apiserver/bootstrap"
	"github.com/skiff-k8s/skiff/cluster"
)

// balanceFlags are upstream's flags of an API server that is one of several: how the others
// and clients find it, and how it ends.
type balanceFlags struct {
	reconciler string
	servers    int
	peerIP     string
	peerPort   string

	delay, watches time.Duration
	retryAfter     bool
	goaway         float64
}

// balanceNames are the flags.
var balanceNames = []string{"endpoint-reconciler-type", "apiserver-count", "peer-advertise-ip", "peer-advertise-port",
	"shutdown-delay-duration", "shutdown-watch-termination-grace-period", "shutdown-send-retry-after", "goaway-chance"}

func (f *balanceFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&f.reconciler, "endpoint-reconciler-type", string(bootstrap.Leased), "how addresses come behind the kubernetes Service: lease, master-count (deprecated) or none")
	flags.IntVar(&f.servers, "apiserver-count", 1, "API servers of the cluster, for --endpoint-reconciler-type=master-count")
	flags.StringVar(&f.peerIP, "peer-advertise-ip", "", "address that other API servers reach this one at; none: the advertised one")
	flags.StringVar(&f.peerPort, "peer-advertise-port", "", "port that other API servers reach this one at")
	flags.DurationVar(&f.delay, "shutdown-delay-duration", 0, "how long requests are served as before once the server is told to end and /readyz fails; balancers notice meanwhile")
	flags.DurationVar(&f.watches, "shutdown-watch-termination-grace-period", 0, "over how long watches end, then; 0: all at once")
	flags.BoolVar(&f.retryAfter, "shutdown-send-retry-after", false, "answer new requests with 429, then, until those in work are through, instead of refusing connections")
	flags.Float64Var(&f.goaway, "goaway-chance", 0, "share of HTTP/2 requests, from 0 to 0.02, after which the client is told to connect anew")
}

// set takes what the flags say into the configuration.
func (f *balanceFlags) set(c *cluster.APIServerConfig) error {
	kind := bootstrap.Reconciler(f.reconciler)
	if !slices.Contains(bootstrap.Reconcilers, kind) {
		return oneOf("endpoint-reconciler-type", f.reconciler, string(bootstrap.Leased), string(bootstrap.Counted), string(bootstrap.Unkept))
	}
	switch {
	case f.servers <= 0:
		return fmt.Errorf("--apiserver-count=%d: want 1 or more", f.servers)
	case f.delay < 0:
		return fmt.Errorf("--shutdown-delay-duration=%s: want 0s or more", f.delay)
	case f.watches < 0:
		return fmt.Errorf("--shutdown-watch-termination-grace-period=%s: want 0s or more", f.watches)
	case f.goaway < 0 || f.goaway > 0.02:
		return fmt.Errorf("--goaway-chance=%v: want 0 to 0.02", f.goaway)
	case (f.peerIP == "") != (f.peerPort == ""):
		return fmt.Errorf("--peer-advertise-ip and --peer-advertise-port: give both or neither")
	case f.peerIP != "":
		peer, err := netip.ParseAddrPort(f.peerIP + ":" + f.peerPort)
		if a, aerr := netip.ParseAddr(f.peerIP); aerr == nil && a.Is6() {
			peer, err = netip.ParseAddrPort("[" + f.peerIP + "]:" + f.peerPort)
		}
		if err != nil {
			return fmt.Errorf("--peer-advertise-ip=%s --peer-advertise-port=%s: want an IP address and a port", f.peerIP, f.peerPort)
		}
		c.Peer = peer
	}
	c.Endpoints, c.Servers = kind, f.servers
	c.ShutdownDelay, c.WatchGrace, c.ShutdownRetryAfter, c.GoawayChance = f.delay, f.watches, f.retryAfter, f.goaway
	return nil
}
