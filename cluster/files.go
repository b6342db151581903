package cluster

import (
	"errors"
	"io/fs"
	"os"
)

// Role names a process of a cluster.
type Role string

const (
	ControlPlane Role = "control-plane"
	Node         Role = "node"
)

func readIfExists(path string) ([]byte, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return b, err
}
