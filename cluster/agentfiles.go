package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/skiff-k8s/skiff/kubelet/certificates"
)

// Files of the data directory of a node that joined.
func (p Paths) Node() string    { return filepath.Join(p.Dir, "node.json") }
func (p Paths) NodeCA() string  { return filepath.Join(p.NodePKI(), "ca.crt") }
func (p Paths) NodePKI() string { return filepath.Join(p.Kubelet(), "pki") }

// Names of a kubelet's certificates, as upstream's.
const (
	clientName  = "kubelet-client"
	servingName = "kubelet-server"
)

// clientStore and servingStore hold the certificates of a node that joined, under the names
// of upstream's kubelet.
func (p Paths) clientStore() certificates.Current {
	return certificates.Current{Dir: p.NodePKI(), Name: clientName}
}

func (p Paths) servingStore() certificates.Current {
	return certificates.Current{Dir: p.NodePKI(), Name: servingName}
}

// LoadNode reads the configuration of a node that joined; fs.ErrNotExist if dir holds none.
func LoadNode(dir string) (*NodeConfig, error) {
	path := (Paths{dir}).Node()
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read node configuration: %w", err)
	}
	var n NodeConfig
	if err := json.Unmarshal(text, &n); err != nil {
		return nil, fmt.Errorf("%s is damaged (%w); join again with another --data-dir", path, err)
	}
	return &n, nil
}

func (n *NodeConfig) save(dir string) error {
	text, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return fmt.Errorf("encode node configuration: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("--data-dir: %w", err)
	}
	return writeDurably((Paths{dir}).Node(), append(text, '\n'), 0o600)
}

// joinedCredentials are those of a node that joined.
func joinedCredentials(p Paths) (*NodeCredentials, error) {
	ca, err := os.ReadFile(p.NodeCA())
	if err != nil {
		return nil, fmt.Errorf("read the cluster's CA: %w", err)
	}
	client := p.clientStore()
	return &NodeCredentials{
		CA: ca, ClientCert: client.Path(), ClientKey: client.Path(),
		client: client, serving: p.servingStore(), conns: newConnections(), mend: joinAgain(p.Dir),
	}, nil
}

// nodeOf is the node that runs from a data directory, and who it is: the first node of a
// cluster, or one that joined.
func nodeOf(dir string) (*NodeConfig, func() (*NodeCredentials, error), error) {
	p := Paths{dir}
	c, err := Load(dir)
	if err == nil {
		return c.node(), func() (*NodeCredentials, error) {
			creds, err := EnsureCredentials(dir, c)
			if err != nil {
				return nil, err
			}
			return creds.nodeCredentials(p)
		}, nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, err
	}
	n, err := LoadNode(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, fmt.Errorf("no cluster and no node that joined one is in %s: %w", dir, err)
	}
	if err != nil {
		return nil, nil, err
	}
	return n, func() (*NodeCredentials, error) { return joinedCredentials(p) }, nil
}
