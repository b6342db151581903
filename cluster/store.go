package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/etcd"
)

// StoreConfig says where an API server keeps what it serves: in a member that runs in
// this process, or in an etcd elsewhere.
type StoreConfig struct {
	// DataDir and Name are of the member that runs in this process.
	DataDir, Name string
	// Quorum is how that one and other members reach each other; nil: it is alone.
	Quorum *etcd.Quorum
	// Socket serves its client API to this host's root; empty: it is not served.
	Socket string
	// External is used instead where it is set.
	External *ExternalEtcd
	// CompactInterval is how long history is kept at least; 0: 5 minutes; negative: others compact.
	CompactInterval time.Duration
	// EventTTL is how long Events live after their last write; 0: an hour.
	EventTTL time.Duration
}

// expire makes Events live as long as was asked for.
func (c *StoreConfig) expire(resources []*api.Resource) {
	for _, r := range resources {
		if r.Plural == "events" && c.EventTTL > 0 {
			r.TTL = func(runtime.Object) time.Duration { return c.EventTTL }
		}
	}
}

// ExternalEtcd is an etcd that others run, or what speaks its protocol (kine).
type ExternalEtcd struct {
	// Servers are the URLs of its members.
	Servers []string `json:"servers"`
	// Prefix of all keys; empty: /registry.
	Prefix string `json:"prefix,omitempty"`
	// CAFile verifies the servers; CertFile and KeyFile are shown to them.
	CAFile   string `json:"caFile,omitempty"`
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
}

// Absolute makes file names independent of the working directory.
func (e *ExternalEtcd) Absolute() error {
	for _, f := range []*string{&e.CAFile, &e.CertFile, &e.KeyFile} {
		if *f == "" {
			continue
		}
		path, err := filepath.Abs(*f)
		if err != nil {
			return fmt.Errorf("find %s: %w", *f, err)
		}
		*f = path
	}
	return nil
}

// keyPrefix is the prefix of all keys as the API server's parts want it: with slashes around.
func (e *ExternalEtcd) keyPrefix() string {
	if e == nil || strings.Trim(e.Prefix, "/") == "" {
		return "/registry/"
	}
	return "/" + strings.Trim(e.Prefix, "/") + "/"
}

// keeper is a store that runs as part of this process.
type keeper interface {
	store.Store
	component.Component
	Ready() <-chan struct{}
}

// openStore makes the store; it starts nothing.
func openStore(c StoreConfig, log *slog.Logger) (keeper, error) {
	if e := c.External; e != nil {
		return etcd.NewClient(etcd.ClientConfig{
			Endpoints: e.Servers, CAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile,
			CompactInterval: c.CompactInterval, Logger: log,
		})
	}
	return etcd.New(etcd.Config{DataDir: c.DataDir, Name: c.Name, Quorum: c.Quorum, Socket: c.Socket, CompactInterval: c.CompactInterval, Logger: log})
}

// keepIn settles where a cluster keeps its state: where it was made. Only the way to the
// same etcd may change. The member of this process, if there ever was one, is in dir.
func (c *Config) keepIn(external *ExternalEtcd, dir string) (changed bool, err error) {
	if external == nil {
		return false, nil
	}
	_, err = os.Stat(dir)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return false, fmt.Errorf("find the cluster's state: %w", err)
	case err == nil && c.Etcd == nil:
		return false, errors.New("--etcd-servers: this cluster keeps its state in its data directory; choose another --name or --data-dir for a cluster on an external etcd")
	case c.Etcd != nil && c.Etcd.keyPrefix() != external.keyPrefix():
		return false, fmt.Errorf("--etcd-prefix=%s: this cluster's keys are below %s; say that, or make a new cluster (skiff down --purge ends this one)",
			external.keyPrefix(), c.Etcd.keyPrefix())
	}
	if c.Etcd != nil && slices.Equal(c.Etcd.Servers, external.Servers) && c.Etcd.CAFile == external.CAFile &&
		c.Etcd.CertFile == external.CertFile && c.Etcd.KeyFile == external.KeyFile {
		return false, nil
	}
	// What is wrong with it is better told before anything starts.
	if _, err := openStore(StoreConfig{External: external}, slog.New(slog.DiscardHandler)); err != nil {
		return false, err
	}
	c.Etcd = external
	return true, nil
}
