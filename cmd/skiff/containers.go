package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/skiff-k8s/skiff/cluster"
	"github.com/skiff-k8s/skiff/containers/image"
)

// runtimeFlags are the flags of skiff containers.
type runtimeFlags struct {
	root, listen       string
	podCIDRs           []string
	bridge, cgroupRoot string
	handlers           []string
	plainHTTP          []string
}

func containersCommand() *cobra.Command {
	var f runtimeFlags
	var down bool
	cmd := &cobra.Command{
		Use: "containers", Short: "Serve the built-in container runtime (CRI) alone, for any kubelet or crictl", Args: cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.root, "root", "/var/lib/skiff-containers", "directory of images, containers and the network's address book")
	flags.StringVar(&f.listen, "listen", "", "socket to serve at, unix:///… (default ROOT/run/cri.sock)")
	flags.StringSliceVar(&f.podCIDRs, "pod-cidr", []string{"10.88.0.0/16"}, "addresses of sandboxes, at most one network of IPv4 and one of IPv6")
	flags.StringVar(&f.bridge, "bridge", "skiffc", "link that joins the sandboxes, made by it")
	flags.StringVar(&f.cgroupRoot, "cgroup-root", "/skiff-containers", "control group above those of sandboxes whose client names none")
	flags.StringSliceVar(&f.handlers, "runtime-handler", nil, "further names that RuntimeClasses may ask for this runtime by")
	flags.StringSliceVar(&f.plainHTTP, "plain-http-registry", nil, "registry host[:port] to pull from over plain HTTP; may be given several times")
	flags.BoolVar(&down, "down", false, "end all that the runtime of --root has made and take it away, instead; images stay")
	logging := bindLogging(flags)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log, err := logging.logger(cmd)
		if err != nil {
			return err
		}
		c, err := f.config(log)
		if err != nil {
			return err
		}
		if down {
			return cluster.DownContainers(cmd.Context(), c)
		}
		return cluster.RunContainers(cmd.Context(), c)
	}
	return cmd
}

func (f *runtimeFlags) config(log *slog.Logger) (cluster.ContainersConfig, error) {
	none := func(err error) (cluster.ContainersConfig, error) { return cluster.ContainersConfig{}, err }
	root, err := filepath.Abs(f.root)
	if err != nil {
		return none(fmt.Errorf("--root: %w", err))
	}
	c := cluster.ContainersConfig{
		Root: root, Bridge: f.bridge, CgroupRoot: f.cgroupRoot, RuntimeHandlers: f.handlers,
		Registries: image.Registries{PlainHTTP: f.plainHTTP}, Logger: log,
	}
	if f.listen != "" {
		path, ok := strings.CutPrefix(f.listen, "unix://")
		if !ok || !filepath.IsAbs(path) {
			return none(fmt.Errorf("--listen=%s is no unix socket; use unix:///path", f.listen))
		}
		c.Socket = path
	}
	families := map[bool]string{}
	for _, s := range f.podCIDRs {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return none(fmt.Errorf("--pod-cidr=%s is no network such as 10.88.0.0/16", s))
		}
		if other, twice := families[p.Addr().Is6()]; twice {
			return none(fmt.Errorf("--pod-cidr=%s: %s is of the same family; give at most one of each", s, other))
		}
		families[p.Addr().Is6()] = s
		c.PodCIDRs = append(c.PodCIDRs, p)
	}
	if len(c.PodCIDRs) == 0 {
		return none(fmt.Errorf("--pod-cidr is required: sandboxes get their addresses from it"))
	}
	return c, nil
}
