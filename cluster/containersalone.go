package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"syscall"

	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/containers"
	"github.com/skiff-k8s/skiff/containers/image"
	"github.com/skiff-k8s/skiff/network/bridge"
	"github.com/skiff-k8s/skiff/network/hostport"
)

// ContainersConfig is a container runtime that runs alone, for whichever CRI client.
type ContainersConfig struct {
	// Root keeps images, records and the network's address book.
	Root string
	// Socket is where CRI is served.
	Socket string
	// PodCIDRs are the sandboxes' addresses, at most one a family.
	PodCIDRs []netip.Prefix
	// Bridge is the name of the link that joins the sandboxes.
	Bridge          string
	CgroupRoot      string
	RuntimeHandlers []string
	Registries      image.Registries
	Logger          *slog.Logger
}

func (c ContainersConfig) bridge() bridge.Config {
	return bridge.Config{Name: c.Bridge, StateDir: filepath.Join(c.Root, "network"), ClusterCIDRs: c.PodCIDRs, Logger: c.Logger}
}

func (c ContainersConfig) hostPorts() hostport.Config {
	return hostport.Config{Table: c.Bridge + "-hostports", StateDir: filepath.Join(c.Root, "network"), Link: c.Bridge}
}

// runtime composes what runs sandboxes: the network as its last run left it, below the
// same root as the runtime.
func (c ContainersConfig) runtime() (containers.Config, *bridge.Bridge, error) {
	br, err := bridge.New(c.bridge())
	if err != nil {
		return containers.Config{}, nil, err
	}
	ports, err := hostport.New(c.hostPorts())
	if err != nil {
		return containers.Config{}, nil, err
	}
	return containers.Config{
		RootDir: c.Root, SocketPath: c.Socket, CgroupRoot: c.CgroupRoot, Network: sandboxNetwork{bridge: br, ports: ports},
		Registries: c.Registries, RuntimeHandlers: c.RuntimeHandlers, Logger: c.Logger,
	}, br, nil
}

// RunContainers serves CRI alone until ctx ends. Containers go on.
func RunContainers(ctx context.Context, c ContainersConfig) error {
	syscall.Umask(0o022) // volumes' files get their modes from us
	cfg, br, err := c.runtime()
	if err != nil {
		return err
	}
	cri, err := containers.New(cfg)
	if err != nil {
		return err
	}
	if err := br.SetPodCIDRs(c.PodCIDRs); err != nil {
		return fmt.Errorf("set up the sandboxes' network: %w", err)
	}
	group := component.NewGroup(c.Logger)
	group.Add(component.Member{Name: "containers", Component: cri})
	group.Add(trim())
	return group.Run(ctx)
}

// DownContainers ends all that a runtime alone has made, whether or not it ended well.
// Images stay.
func DownContainers(ctx context.Context, c ContainersConfig) error {
	cfg, _, err := c.runtime()
	if err != nil {
		return err
	}
	if err := containers.Down(ctx, cfg); err != nil {
		return err
	}
	return errors.Join(hostport.Remove(c.hostPorts()), bridge.Remove(c.bridge()))
}
