//go:build upstream

package main

// The commands of images that need newer libraries than upstream's suite.
import (
	_ "go.etcd.io/etcd/etcdctl/v3"
	_ "go.etcd.io/etcd/server/v3"
)
