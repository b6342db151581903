// Package etcd keeps cluster state in etcd: in an embedded member (Server) or in one
// that runs elsewhere (Client).
//
// Owns: the data directory, etcd's configuration, leases for TTLs, compaction. Must
// not: know what keys and values mean, or put gRPC between the embedded member and
// its callers. The member is raw etcdserver: etcd's embed package brings front ends that
// nothing here uses, and reflection that keeps dead code alive.
package etcd

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/client/pkg/v3/types"
	"go.etcd.io/etcd/server/v3/config"
	"go.etcd.io/etcd/server/v3/features"
	"go.uber.org/zap"
	"k8s.io/utils/clock"
)

// Config configures an embedded member.
type Config struct {
	// DataDir is created if need be; one process uses it at a time.
	DataDir string
	// Name of the member; empty: "default".
	Name   string
	Logger *slog.Logger
	// Clock paces compaction; nil: the real clock.
	Clock clock.WithTicker
	// CompactInterval is how long history is kept at least; 0: 5 minutes, as
	// upstream. Negative: never compact.
	CompactInterval time.Duration
	// QuotaBytes bounds the database; 0: etcd's default of 2 GiB.
	QuotaBytes int64
	// ReserveBytes is the free space on disk below which writes are refused, so that
	// etcd itself can go on; 0: 64 MiB.
	ReserveBytes int64
	// Quorum makes it a member that others may join, or that joins others; nil: it is
	// alone for ever.
	Quorum *Quorum
	// Socket is a unix socket that serves etcd's client API to root of this host; empty: none.
	Socket string
}

const (
	defaultCompactInterval = 5 * time.Minute
	defaultReserve         = 64 << 20
	defaultQuota           = 2 << 30
)

func (c *Config) complete() error {
	if c.DataDir == "" {
		return errors.New("etcd: DataDir must be set")
	}
	if c.Name == "" {
		c.Name = "default"
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.CompactInterval == 0 {
		c.CompactInterval = defaultCompactInterval
	}
	if c.QuotaBytes == 0 {
		c.QuotaBytes = defaultQuota
	}
	if c.ReserveBytes == 0 {
		c.ReserveBytes = defaultReserve
	}
	if c.Quorum != nil {
		return c.Quorum.check()
	}
	return nil
}

// Tuning of a cluster of one. Elections only ever have one outcome there, so that
// waiting long for one only delays the start; and nobody needs old log entries to
// catch up. None of this may be used with more members.
const (
	singleTickMs         = 50
	singleElectionTicks  = 2
	singleSnapshotCount  = 1000
	singleCatchUpEntries = 500
	walSegmentBytes      = 8 << 20 // each is preallocated; etcd's 64 MB are for busy clusters
)

// AlonePeerURL is the identity of a member that is alone: nothing listens on or dials it.
const AlonePeerURL = "http://localhost:2380"

// Members of a quorum have etcd's own settings, which embed has as defaults: they are what
// etcd is tested with.
const (
	tickMs         = 100
	electionTicks  = 10
	snapshotCount  = 10000
	catchUpEntries = 5000
)

// serverConfig is what etcd's embed package would pass to etcdserver by default, but
// for the differences that the test lists with their reasons. A member that joins is given
// the members that there are, itself included.
func serverConfig(c Config, joined types.URLsMap, lg *zap.Logger) (config.ServerConfig, error) {
	out := config.ServerConfig{
		Name:    c.Name,
		DataDir: c.DataDir,

		ClientURLs:          []url.URL{},
		InitialClusterToken: "etcd-cluster",
		NewCluster:          joined == nil,

		TickMs:                     singleTickMs,
		ElectionTicks:              singleElectionTicks,
		InitialElectionTickAdvance: true,
		SnapshotCount:              singleSnapshotCount,
		SnapshotCatchUpEntries:     singleCatchUpEntries,
		MaxSnapFiles:               5,
		MaxWALFiles:                5,

		QuotaBackendBytes:           c.QuotaBytes,
		BackendFreelistType:         bbolt.FreelistMapType,
		MaxTxnOps:                   128,
		MaxRequestBytes:             1.5 * 1024 * 1024,
		MaxConcurrentStreams:        math.MaxUint32,
		WarningApplyDuration:        100 * time.Millisecond,
		WarningUnaryRequestDuration: 300 * time.Millisecond,

		StrictReconfigCheck:  true,
		PreVote:              true,
		CompactHashCheckTime: time.Minute,
		DowngradeCheckTime:   5 * time.Second,
		MaxLearners:          1,
		V2Deprecation:        config.V2DeprDefault,

		AutoCompactionMode: "periodic", // with no retention: compaction is ours
		BcryptCost:         10,
		TokenTTL:           300,

		Logger:            lg,
		ServerFeatureGate: features.NewDefaultServerFeatureGate(c.Name, lg),
		Metrics:           "basic",
	}
	peer := AlonePeerURL
	if q := c.Quorum; q != nil {
		peer = q.peerURL()
		out.TickMs, out.ElectionTicks = tickMs, electionTicks
		out.SnapshotCount, out.SnapshotCatchUpEntries = snapshotCount, catchUpEntries
		out.PeerTLSInfo = q.peerTLS()
		out.ClientCertAuthEnabled = true
		if q.Token != "" {
			out.InitialClusterToken = q.Token
		}
		clients, err := types.NewURLs([]string{q.clientURL()})
		if err != nil {
			return config.ServerConfig{}, fmt.Errorf("client URL: %w", err)
		}
		out.ClientURLs = clients
	}
	peers, err := types.NewURLs([]string{peer})
	if err != nil {
		return config.ServerConfig{}, fmt.Errorf("peer URL: %w", err)
	}
	out.PeerURLs, out.InitialPeerURLsMap = peers, types.URLsMap{c.Name: peers}
	if joined != nil {
		out.InitialPeerURLsMap = joined
	}
	return out, nil
}
