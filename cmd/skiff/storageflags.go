package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/skiff-k8s/skiff/cluster"
)

// storageFlags say where an API server keeps what it serves.
type storageFlags struct {
	dataDir  string
	external externalEtcd
	compact  time.Duration
	eventTTL time.Duration
}

// storageRefused are upstream's flags of the store that are not supported.
var storageRefused = []others{
	{"all resources are kept in one place", "etcd-servers-overrides"},
}

// storageAccepted have nothing to say.
var storageAccepted = []others{
	{"the store is asked by each probe, for at most 5 s", "etcd-healthcheck-timeout etcd-readycheck-timeout"},
	{"objects are counted as they come and go", "etcd-count-metric-poll-period etcd-db-metric-poll-interval"},
}

func (s *storageFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&s.dataDir, "etcd-data-dir", "", "directory of an etcd member that runs in this process, instead of --etcd-servers (skiff's own flag)")
	s.external.bind(flags)
	flags.DurationVar(&s.compact, "etcd-compaction-interval", 5*time.Minute, "how long history is kept at least; 0: others compact")
	flags.DurationVar(&s.eventTTL, "event-ttl", time.Hour, "how long Events live after their last write")
}

func (s *storageFlags) config() (cluster.StoreConfig, error) {
	c := cluster.StoreConfig{CompactInterval: s.compact, EventTTL: s.eventTTL}
	if s.compact < 0 || s.eventTTL <= 0 {
		return c, errors.New("--etcd-compaction-interval must not be below 0s, and --event-ttl not be 0s")
	}
	if s.compact == 0 {
		c.CompactInterval = -1
	}
	var err error
	if c.External, err = s.external.config(); err != nil {
		return c, err
	}
	switch {
	case c.External != nil && s.dataDir != "":
		return c, errors.New("--etcd-servers and --etcd-data-dir exclude each other: give one")
	case c.External != nil:
		return c, nil
	case s.dataDir == "":
		return c, errors.New("--etcd-servers is required (or --etcd-data-dir, for an etcd in this process)")
	}
	if c.DataDir, err = filepath.Abs(s.dataDir); err != nil {
		return c, fmt.Errorf("--etcd-data-dir: %w", err)
	}
	if c.Name, err = os.Hostname(); err != nil {
		return c, fmt.Errorf("find the host's name: %w", err)
	}
	return c, nil
}

// externalEtcd are upstream's flags of an etcd that runs elsewhere.
type externalEtcd struct {
	e cluster.ExternalEtcd
}

const defaultPrefix = "/registry"

func (x *externalEtcd) bind(flags *pflag.FlagSet) {
	flags.StringSliceVar(&x.e.Servers, "etcd-servers", nil, "URLs of the members of an etcd that runs elsewhere, or of kine")
	flags.StringVar(&x.e.CAFile, "etcd-cafile", "", "CA of its certificates; none: the host's trusted roots")
	flags.StringVar(&x.e.CertFile, "etcd-certfile", "", "certificate shown to it")
	flags.StringVar(&x.e.KeyFile, "etcd-keyfile", "", "key of that certificate")
	flags.StringVar(&x.e.Prefix, "etcd-prefix", defaultPrefix, "prefix of all keys there")
}

// config is nil when no such etcd was named.
func (x *externalEtcd) config() (*cluster.ExternalEtcd, error) {
	e := x.e
	if "/"+strings.Trim(e.Prefix, "/") == defaultPrefix {
		e.Prefix = ""
	}
	if len(e.Servers) == 0 {
		if e.CAFile != "" || e.CertFile != "" || e.KeyFile != "" || e.Prefix != "" {
			return nil, errors.New("--etcd-cafile, --etcd-certfile, --etcd-keyfile and --etcd-prefix belong to --etcd-servers, which is missing")
		}
		return nil, nil
	}
	if strings.Trim(x.e.Prefix, "/") == "" {
		return nil, fmt.Errorf("--etcd-prefix=%s: must not be empty", x.e.Prefix)
	}
	return &e, e.Absolute()
}
