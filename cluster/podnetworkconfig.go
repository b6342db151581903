package cluster

import (
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/skiff-k8s/skiff/containers"
	"github.com/skiff-k8s/skiff/network/cni"
	"github.com/skiff-k8s/skiff/network/routes"
)

// PodNetworkConfig is how pods are connected.
type PodNetworkConfig struct {
	// Mode says how other nodes are reached: "" by routes where they are on one link and by VXLAN
	// elsewhere, "vxlan" always so, "routes" never.
	Mode routes.Mode `json:"mode,omitempty"`
	// VXLANPort is a UDP port, VNI the number of the VXLAN network; 0 is the default. All nodes of a
	// cluster need the same.
	VXLANPort uint16 `json:"vxlanPort,omitempty"`
	VNI       uint32 `json:"vni,omitempty"`
	// CNIConfDir is where CNI configurations are waited for, that then make the pod network. Without
	// it they are looked for in the data directory (cni/net.d), and the bridge serves until there is one.
	CNIConfDir string `json:"cniConfDir,omitempty"`
	// CNIBinDirs are where CNI plugins are; none: /opt/cni/bin and /usr/lib/cni.
	CNIBinDirs []string `json:"cniBinDirs,omitempty"`
	// NoPolicy leaves NetworkPolicies to others.
	NoPolicy bool `json:"noPolicy,omitempty"`
	// ProxyMode is what Services are programmed by; none: nftables.
	ProxyMode ProxyMode `json:"proxyMode,omitempty"`
}

var podNetworkModes = map[string]routes.Mode{"auto": routes.Auto, string(routes.Always): routes.Always, string(routes.Never): routes.Never}

// DefaultVXLANPort is the UDP port unless another is set.
const DefaultVXLANPort = routes.DefaultPort

// PodNetworkChange is what flags say of a pod network; nil fields leave it as it is.
type PodNetworkChange struct {
	Mode       *string // auto, or as in PodNetworkConfig
	VXLANPort  *uint16
	CNIConfDir *string
	CNIBinDirs []string
	Policy     *bool // whether NetworkPolicies are enforced
	ProxyMode  *string
}

// change tells whether there was anything to change.
func (c *PodNetworkConfig) change(to PodNetworkChange) (bool, error) {
	if to.Mode != nil {
		mode, ok := podNetworkModes[*to.Mode]
		if !ok {
			return false, fmt.Errorf("--pod-network=%s: must be auto, %s or %s", *to.Mode, routes.Always, routes.Never)
		}
		c.Mode = mode
	}
	if to.VXLANPort != nil {
		c.VXLANPort = *to.VXLANPort
	}
	if to.CNIConfDir != nil {
		if dir := *to.CNIConfDir; dir != "" && !filepath.IsAbs(dir) {
			return false, fmt.Errorf("--cni-conf-dir=%s: must be absolute", dir)
		}
		c.CNIConfDir = *to.CNIConfDir
	}
	for _, dir := range to.CNIBinDirs {
		if !filepath.IsAbs(dir) {
			return false, fmt.Errorf("--cni-bin-dir=%s: must be absolute", dir)
		}
	}
	if to.CNIBinDirs != nil {
		c.CNIBinDirs = to.CNIBinDirs
	}
	if to.ProxyMode != nil {
		mode, err := ParseProxyMode(*to.ProxyMode)
		if err != nil {
			return false, fmt.Errorf("--proxy-mode: %w", err)
		}
		c.ProxyMode = mode
	}
	if to.Policy != nil {
		c.NoPolicy = !*to.Policy
	}
	return to.ProxyMode != nil || to.Policy != nil || to.Mode != nil || to.VXLANPort != nil || to.CNIConfDir != nil || to.CNIBinDirs != nil, nil
}

// CNI is the directory of CNI configurations, unless another was asked for.
func (p Paths) CNI() string { return filepath.Join(p.Dir, "cni", "net.d") }

func (n *NodeConfig) cniConfig(p Paths, log *slog.Logger) cni.Config {
	c := cni.Config{ConfDir: n.PodNetwork.CNIConfDir, BinDirs: n.PodNetwork.CNIBinDirs, StateDir: filepath.Join(p.Network(), "cni"), Logger: log}
	if c.ConfDir == "" {
		c.ConfDir = p.CNI()
	}
	if len(c.BinDirs) == 0 {
		c.BinDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}
	}
	return c
}

// Annotations by which a pod limits its bandwidth, as upstream's.
const (
	ingressBandwidth = "kubernetes.io/ingress-bandwidth"
	egressBandwidth  = "kubernetes.io/egress-bandwidth"
)

// cniSandbox is a sandbox in CNI's words.
func cniSandbox(s containers.Sandbox) (cni.Sandbox, error) {
	out := cni.Sandbox{ID: s.ID, Namespace: s.Namespace, Name: s.Name, UID: s.UID, NetNS: s.NetNSPath}
	for _, m := range s.PortMappings {
		if m.GetHostPort() != 0 {
			out.Ports = append(out.Ports, cni.Port{
				HostPort: m.GetHostPort(), ContainerPort: m.GetContainerPort(), HostIP: m.GetHostIp(), Protocol: strings.ToLower(m.GetProtocol().String()),
			})
		}
	}
	if d := s.DNS; d != nil {
		out.DNS = cni.DNS{Servers: d.GetServers(), Searches: d.GetSearches(), Options: d.GetOptions()}
	}
	var err error
	if out.Ingress, err = bandwidth(s.Annotations, ingressBandwidth); err != nil {
		return cni.Sandbox{}, err
	}
	out.Egress, err = bandwidth(s.Annotations, egressBandwidth)
	return out, err
}

// Bounds of a bandwidth limit, in bits a second, as upstream has them.
var minBandwidth, maxBandwidth = resource.MustParse("1k"), resource.MustParse("1P")

func bandwidth(annotations map[string]string, key string) (uint64, error) {
	text, ok := annotations[key]
	if !ok {
		return 0, nil
	}
	q, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, fmt.Errorf("annotation %s=%q: %w", key, text, err)
	}
	if q.Cmp(minBandwidth) < 0 || q.Cmp(maxBandwidth) > 0 {
		return 0, fmt.Errorf("annotation %s=%q: must be between %s and %s", key, text, minBandwidth.String(), maxBandwidth.String())
	}
	return uint64(q.Value()), nil
}
