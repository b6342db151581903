package cluster

import (
	"log/slog"

	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/etcd"
)

// StoreConfig says where an API server keeps what it serves.
type StoreConfig struct {
	// DataDir and Name are of the member that runs in this process.
	DataDir, Name string
}

// keeper is a store that runs as part of this process.
type keeper interface {
	store.Store
	component.Component
	Ready() <-chan struct{}
}

// openStore makes the store; it starts nothing.
func openStore(c StoreConfig, log *slog.Logger) (keeper, error) {
	return etcd.New(etcd.Config{DataDir: c.DataDir, Name: c.Name, Logger: log})
}
