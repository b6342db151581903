package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"github.com/skiff-k8s/skiff/network/bridge"
)

// A runtime that others run (NodeConfig.RuntimeEndpoint) connects pods itself, by CNI. Unless
// its directory of configurations has one already, or one is waited for (PodNetwork.CNIConfDir),
// it is given one that leads pods to where the bridge leads those of the built-in runtime: each
// by a link of its own to the host, with an address of the node's pod CIDR, DNS at the bridge's address.

// defaultCNIConfDir is where runtimes look unless they are told otherwise.
const defaultCNIConfDir = "/etc/cni/net.d"

// runtimeCNI keeps that configuration.
type runtimeCNI struct {
	dir, name, state string
	others           bool // somebody else brings the configuration
	mapsPorts        bool // iptables, which the plugin for host ports runs, is there
	bridge           *bridge.Bridge
	log              *slog.Logger
}

func (n *NodeConfig) runtimeCNI(p Paths, b *bridge.Bridge, log *slog.Logger) *runtimeCNI {
	_, err := exec.LookPath("iptables")
	return &runtimeCNI{dir: defaultCNIConfDir, others: n.PodNetwork.CNIConfDir != "", name: "10-skiff-" + n.Bridge + ".conflist", state: filepath.Join(p.Network(), "runtime"), mapsPorts: err == nil, bridge: b, log: log}
}

// Run writes the configuration once the node has its pod CIDRs.
func (r *runtimeCNI) Run(ctx context.Context) error {
	if r.others {
		<-ctx.Done()
		return nil
	}
	err := poll(ctx, 100*time.Millisecond, func(context.Context) error {
		if len(r.bridge.PodCIDRs()) == 0 {
			return bridge.ErrNoPodCIDR
		}
		return nil
	})
	if err != nil {
		return nil // the context ended first
	}
	if err := r.write(r.bridge.PodCIDRs()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (r *runtimeCNI) write(cidrs []netip.Prefix) error {
	entries, err := os.ReadDir(r.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read CNI configurations: %w", err)
	}
	for _, e := range entries {
		if slices.Contains([]string{".conf", ".conflist", ".json"}, filepath.Ext(e.Name())) && e.Name() != r.name {
			r.log.Info("the runtime has a pod network of its own", "configuration", filepath.Join(r.dir, e.Name()))
			return r.bridge.SetAddressOnly(true)
		}
	}
	if err := r.bridge.SetAddressOnly(false); err != nil {
		return err
	}
	if !r.mapsPorts {
		r.log.Warn("pods have no host ports: the plugin that makes them needs iptables, which is not installed")
	}
	text, err := cniConfiguration(cidrs, r.state, r.mapsPorts)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of CNI configurations: %w", err)
	}
	return writeDurably(filepath.Join(r.dir, r.name), text, 0o644)
}

// cniConfiguration uses the reference plugins, in the oldest version that has lists of plugins
// and both families.
func cniConfiguration(cidrs []netip.Prefix, state string, ports bool) ([]byte, error) {
	var ranges [][]map[string]string
	var routes []map[string]string
	for _, c := range cidrs {
		ranges = append(ranges, []map[string]string{{"subnet": c.Masked().String()}})
		all := "0.0.0.0/0"
		if c.Addr().Is6() {
			all = "::/0"
		}
		routes = append(routes, map[string]string{"dst": all})
	}
	plugins := []map[string]any{{"type": "ptp", "ipam": map[string]any{"type": "host-local", "dataDir": state, "ranges": ranges, "routes": routes}}}
	if ports {
		plugins = append(plugins, map[string]any{"type": "portmap", "capabilities": map[string]bool{"portMappings": true}})
	}
	text, err := json.MarshalIndent(map[string]any{"cniVersion": "0.4.0", "name": "skiff", "plugins": plugins}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the CNI configuration: %w", err)
	}
	return append(text, '\n'), nil
}

// remove takes the configuration back.
func (r *runtimeCNI) remove() error {
	if err := os.Remove(filepath.Join(r.dir, r.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the CNI configuration: %w", err)
	}
	return nil
}
