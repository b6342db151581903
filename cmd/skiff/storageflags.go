package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/pflag"

	"github.com/skiff-k8s/skiff/cluster"
)

// storageFlags say where an API server keeps what it serves.
type storageFlags struct {
	dataDir string
	prefix  string
}

// storageRefused are upstream's flags of the store that are not supported.
var storageRefused = []others{
	{"the store runs in the API server's process; use --etcd-data-dir", "etcd-servers etcd-cafile etcd-certfile etcd-keyfile etcd-servers-overrides"},
	{"the store looks after itself", "etcd-compaction-interval etcd-count-metric-poll-period etcd-db-metric-poll-interval etcd-healthcheck-timeout etcd-readycheck-timeout"},
}

func (s *storageFlags) bind(flags *pflag.FlagSet) {
	flags.StringVar(&s.dataDir, "etcd-data-dir", "", "directory of the etcd member that runs in this process (skiff's own flag)")
	flags.StringVar(&s.prefix, "etcd-prefix", "/registry", "prefix of all keys")
}

func (s *storageFlags) config() (cluster.StoreConfig, error) {
	if s.prefix != "/registry" {
		return cluster.StoreConfig{}, fmt.Errorf("--etcd-prefix=%s is not supported; use /registry", s.prefix)
	}
	if s.dataDir == "" {
		return cluster.StoreConfig{}, errors.New("--etcd-data-dir is required")
	}
	dir, err := filepath.Abs(s.dataDir)
	if err != nil {
		return cluster.StoreConfig{}, fmt.Errorf("--etcd-data-dir: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return cluster.StoreConfig{}, fmt.Errorf("find the host's name: %w", err)
	}
	return cluster.StoreConfig{DataDir: dir, Name: host}, nil
}
