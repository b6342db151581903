package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/skiff-k8s/skiff/cluster/portmap"
	"github.com/skiff-k8s/skiff/cluster/process"
	"github.com/skiff-k8s/skiff/component"
)

// PortMapping leads connections to a port of this host to one of a node.
type PortMapping struct {
	HostPort uint16 `json:"hostPort"`
	NodePort uint16 `json:"nodePort"`
	// Node on this host; empty: the first.
	Node     string     `json:"node,omitempty"`
	Protocol string     `json:"protocol"`
	Listen   netip.Addr `json:"listen,omitzero"`
}

func (m PortMapping) to(node netip.Addr) portmap.Mapping {
	listen := m.Listen
	if !listen.IsValid() {
		listen = netip.IPv6Unspecified()
	}
	return portmap.Mapping{Protocol: m.Protocol, Listen: netip.AddrPortFrom(listen, m.HostPort), Target: netip.AddrPortFrom(node, m.NodePort)}
}

// portMappings are those of the cluster with the addresses of their nodes. One whose node has gone
// leads nowhere.
func (c *Config) portMappings(log *slog.Logger) []portmap.Mapping {
	var out []portmap.Mapping
	for _, m := range c.Ports {
		to := c.NodeIPs[0]
		if m.Node != "" && m.Node != c.NodeName {
			s := c.spec(m.Node)
			if s == nil || len(s.Addresses) == 0 {
				log.Warn("port of the host leads to a node that is not there", "port", m.HostPort, "node", m.Node)
				continue
			}
			to = s.Addresses[0]
		}
		out = append(out, m.to(to))
	}
	return out
}

// newPortMaps makes what passes on the host's ports; nil: there are none.
func (c *Config) newPortMaps(log *slog.Logger) (component.Component, error) {
	mappings := c.portMappings(log)
	if len(mappings) == 0 {
		return nil, nil
	}
	return portmap.New(mappings, log)
}

// settings is where a role notes with which settings it runs, and settings of the configuration
// are those that it reads at its start only: when they differ, it starts again.
func (p Paths) settings(role Role) string { return filepath.Join(p.Run(), string(role)+".settings") }

func (c *Config) settings(role Role) string {
	var what any
	switch role {
	case ControlPlane:
		what = c.APIServerArgs
		if len(c.APIServerArgs) == 0 {
			what = nil
		}
		if len(c.LoadBalancerPools) > 0 {
			what = []any{c.APIServerArgs, c.LoadBalancerPools}
		}
	case Node:
		all := []any{c.portMappings(slog.New(slog.DiscardHandler)), c.Registries}
		if c.PodNetwork.NoPolicy { // so that what ran before there was the setting is not outdated
			all = append(all, "no network policies")
		}
		if m := c.PodNetwork.proxyMode(); m != ProxyNFTables {
			all = append(all, "proxy mode "+m)
		}
		what = all
	}
	text, err := json.Marshal(what)
	if err != nil { // these types always encode
		panic(err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// noteSettings is called by a role that starts.
func (c *Config) noteSettings(p Paths, role Role) error {
	if err := os.WriteFile(p.settings(role), []byte(c.settings(role)), 0o600); err != nil {
		return fmt.Errorf("note settings: %w", err)
	}
	return nil
}

func sameSettings(a, b any) bool {
	x, err1 := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err1 == nil && err2 == nil && string(x) == string(y)
}

// endOutdated ends the processes that run with former settings; they are started again like any
// that do not run. Pods go on.
func (r *Running) endOutdated(ctx context.Context) error {
	programs, err := r.outdated()
	if err != nil {
		return err
	}
	for _, p := range programs {
		if err := process.Stop(ctx, p.lock, 20*time.Second); err != nil {
			return fmt.Errorf("end %s to start it with new settings: %w", p.name, err)
		}
		r.steps.done(p.short() + " ended for new settings")
	}
	return nil
}

// addPortMaps adds to the first node's process what it does for the host: a node that joined has
// no cluster.json.
func addPortMaps(group *component.Group, p Paths, log *slog.Logger) error {
	c, err := Load(p.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.noteSettings(p, Node); err != nil {
		return err
	}
	maps, err := c.newPortMaps(log.With("component", "ports"))
	if err != nil || maps == nil {
		return err
	}
	group.Add(component.Member{Name: "ports", Component: maps, Background: true})
	return nil
}
