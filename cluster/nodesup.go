package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/cluster/pki"
	"github.com/skiff-k8s/skiff/cluster/process"
	"github.com/skiff-k8s/skiff/kubelet/certificates"
)

// Share is where a node reads how many nodes this host is divided among.
func (p Paths) Share() string { return filepath.Join(p.Dir, "share") }

// startNodes takes away nodes that were leaving and starts those that stay. The context that
// it returns ends with the reason when one of their processes does.
func (r *Running) startNodes(ctx context.Context) (context.Context, context.CancelFunc, error) {
	none := func() {}
	for _, s := range slices.Clone(r.Config.Nodes) {
		if s.Leaving {
			if err := r.finishRemoval(ctx, s.Name); err != nil {
				return ctx, none, err
			}
		}
	}
	if err := r.Config.writeShares(r.Paths); err != nil {
		return ctx, none, err
	}
	var stops []context.CancelFunc
	stop := func() {
		for _, s := range slices.Backward(stops) {
			s()
		}
	}
	for _, s := range r.Config.Nodes {
		p := r.agent(s)
		child, err := r.ensure(p)
		if err != nil {
			stop()
			return ctx, none, err
		}
		var one context.CancelFunc
		ctx, one = r.tend(ctx, p, child)
		stops = append(stops, one)
	}
	return ctx, stop, nil
}

// waitFurther returns once all further nodes are Ready.
func waitFurther(ctx context.Context, c *Config, p Paths) error {
	var names []string
	for _, s := range c.Nodes {
		names = append(names, s.Name)
	}
	return waitReady(ctx, p, names...)
}

// labelNodes gives nodes what only an administrator may give them.
func (r *Running) labelNodes(ctx context.Context) error {
	client, err := adminClient(r.Paths)
	if err != nil {
		return err
	}
	for _, s := range r.Config.Nodes {
		if err := labelNode(ctx, client, s.Name, s.Labels); err != nil {
			return err
		}
	}
	return labelNode(ctx, client, r.Config.NodeName, r.Config.controlPlaneLabels())
}

// agent is the process of a further node.
func (r *Running) agent(s NodeSpec) program {
	p := r.Paths.NodeDir(s.Name)
	return program{
		name: "the process of node " + s.Name, lock: p.Lock(Node), log: p.Log(Node),
		argv:   []string{r.opts.Executable, string(Node), "--data-dir", p.Dir},
		place:  process.Place{NetNS: r.Paths.NetNS(s.Name), Hostname: hostname(s.Name)},
		before: func() error { return r.Config.equip(r.Paths, s) },
	}
}

// hostname: the kernel's has at most 64 bytes.
func hostname(node string) string { return strings.TrimRight(node[:min(len(node), 64)], "-.") }

// programs are all that belong to the cluster now; nodes may have come and gone meanwhile.
func (r *Running) programs() ([]program, error) {
	c, err := Load(r.Paths.Dir)
	if err != nil {
		return nil, err
	}
	r.Config = c
	out := []program{r.role(ControlPlane), r.role(Node)}
	for _, s := range c.staying() {
		if _, err := os.Stat(r.Paths.NodeDir(s.Name).Node()); err == nil { // else who adds it has not come to start it yet
			out = append(out, r.agent(s))
		}
	}
	return out, nil
}

// equip makes all that a further node's process needs: namespace, link, configuration, identity. Idempotent.
func (c *Config) equip(p Paths, s NodeSpec) error {
	if err := c.ensureNodeLink(); err != nil {
		return err
	}
	if err := c.ensureNamespace(p, s); err != nil {
		return err
	}
	ca, err := pki.Dir{Path: p.PKI()}.Authority("ca", "kubernetes")
	if err != nil {
		return err
	}
	own, n := p.NodeDir(s.Name), c.furtherNode(s)
	for _, dir := range []string{own.Dir, own.NodePKI(), own.Run()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make data directory of node %s: %w", s.Name, err)
		}
	}
	if err := writeIfChanged(own.NodeCA(), ca.Cert, 0o644); err != nil {
		return err
	}
	who := pki.Leaf{CommonName: nodeSubject(s.Name).CommonName, Organizations: nodeSubject(s.Name).Organization}
	client, serving := who, who
	client.Client, serving.Server, serving.DNSNames, serving.IPs = true, true, []string{s.Name}, s.Addresses
	if err := identify(own.clientStore(), ca, client); err != nil {
		return err
	}
	if err := identify(own.servingStore(), ca, serving); err != nil {
		return err
	}
	text, err := json.MarshalIndent(n, "", "  ")
	if err != nil {
		return fmt.Errorf("encode configuration of node %s: %w", s.Name, err)
	}
	return writeIfChanged(own.Node(), append(text, '\n'), 0o600)
}

// identify gives a further node a certificate unless it has a good one. Its cluster's CA is at
// hand, so that it need not ask with a token, as machines do, and starts without an API server.
func identify(store certificates.Current, ca *pki.Authority, want pki.Leaf) error {
	have, err := store.Load()
	if err == nil && ca.Serves(have.Leaf, want, time.Now()) {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	pair, err := ca.Sign(want, time.Now(), nodeCertificateLife)
	if err != nil {
		return fmt.Errorf("sign certificate of %s: %w", want.CommonName, err)
	}
	return store.Save(pair.Cert, pair.Key)
}

// nodeCertificateLife is that of certificates which the cluster signs; nodes renew them while they run.
const nodeCertificateLife = 365 * 24 * time.Hour

func writeIfChanged(path string, text []byte, mode fs.FileMode) error {
	if have, err := os.ReadFile(path); err == nil && bytes.Equal(have, text) {
		return nil
	}
	return writeDurably(path, text, mode)
}

// writeShares tells the nodes how many they are: each has an equal share of this host, so that all
// together can allocate no more than there is.
func (c *Config) writeShares(p Paths) error {
	dirs := []Paths{p}
	for _, s := range c.staying() {
		dirs = append(dirs, p.NodeDir(s.Name))
	}
	for _, d := range dirs {
		if err := os.MkdirAll(d.Dir, 0o755); err != nil {
			return fmt.Errorf("divide this host among nodes: %w", err)
		}
		if err := writeIfChanged(d.Share(), []byte(strconv.Itoa(len(dirs))+"\n"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// machineShare reads how many nodes this host is divided among; nobody said means the node is
// alone. What cannot be read is told: the node then offers more than its part.
func machineShare(p Paths, log *slog.Logger) int64 {
	text, err := os.ReadFile(p.Share())
	if errors.Is(err, fs.ErrNotExist) {
		return 1
	}
	n := int64(0)
	if err == nil {
		n, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	}
	if err != nil {
		log.Error("read how many nodes share this host", "err", err)
	}
	return max(n, 1)
}

// labelNode gives a node those labels that a kubelet may not give itself (NodeRestriction).
func labelNode(ctx context.Context, client kubernetes.Interface, name string, labels map[string]string) error {
	given := map[string]string{}
	for k, v := range labels {
		if !ownLabel(k) {
			given[k] = v
		}
	}
	if len(given) == 0 {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": given}})
	if err != nil {
		return fmt.Errorf("encode labels of node %s: %w", name, err)
	}
	if _, err := client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("label node %s: %w", name, err)
	}
	return nil
}

// ownDomains are those of Kubernetes' own labels that a kubelet may give its node.
var ownDomains = []string{"topology.kubernetes.io", "node.kubernetes.io", "kubelet.kubernetes.io"}

// ownLabel tells whether a kubelet may give its node a label.
func ownLabel(key string) bool {
	domain, _, qualified := strings.Cut(key, "/")
	if !qualified || slices.Contains(ownDomains, domain) {
		return true
	}
	return domain != "kubernetes.io" && domain != "k8s.io" && !strings.HasSuffix(domain, ".kubernetes.io") && !strings.HasSuffix(domain, ".k8s.io")
}

// ownLabels are those that the node registers with.
func ownLabels(labels map[string]string) map[string]string {
	out := map[string]string{}
	for k, v := range labels {
		if ownLabel(k) {
			out[k] = v
		}
	}
	return out
}

// resolvers are the files that may name the host's DNS servers, the usual one first. A namespace
// cannot reach one on the host's loopback; what that one asks is in the second.
var resolvers = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// resolvConf chooses the file that names DNS servers which a node can reach.
func (n *NodeConfig) resolvConf() string {
	if n.PartOf == "" {
		return resolvers[0]
	}
	for _, path := range resolvers {
		servers, err := upstreamResolvers(path)
		if err == nil && slices.ContainsFunc(servers, reachable) {
			return path
		}
	}
	return resolvers[0]
}

func reachable(server string) bool {
	host, _, err := net.SplitHostPort(server)
	return err == nil && !net.ParseIP(host).IsLoopback()
}
