// Package cni has plugins of the Container Network Interface (specification 1.1, as old as 0.3.0)
// connect sandboxes, in place of the built-in bridge.
//
// Which configuration counts is looked up for each sandbox, so that a changed one serves new
// sandboxes; a sandbox is taken down by the one that it came up with, which is kept beside what the
// plugins answered. It is kept before the plugins are called, so that nothing is left behind by a crash.
//
// Owns: the records below StateDir. Must not: know what plugins do, CRI or the API.
package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// Config configures a Network.
type Config struct {
	// ConfDir holds configurations, .conflist or .conf.
	ConfDir string
	// BinDirs are where plugins are looked for, in order.
	BinDirs []string
	// StateDir keeps what is attached; it must survive a restart of the process.
	StateDir string
	Logger   *slog.Logger
	// Now is the clock; nil is the system's.
	Now func() time.Time
}

// Network attaches sandboxes. Safe for concurrent use.
type Network struct {
	cfg  Config
	lib  *libcni.CNIConfig
	book book

	mu    sync.Mutex
	locks map[string]*sandboxLock
	told  string // what was wrong with configurations, last

	// status of the plugins, asked at most once in statusFor.
	statusMu sync.Mutex
	status   error
	statusOf string
	statusAt time.Time
}

type sandboxLock struct {
	sync.Mutex
	users int
}

// link is what the interface in a sandbox is called.
const link = "eth0"

// statusFor is how long what plugins said of themselves holds: each question starts their programs.
const statusFor = 10 * time.Second

// New makes a Network; nothing is called yet.
func New(cfg Config) (*Network, error) {
	if cfg.ConfDir == "" || cfg.StateDir == "" || len(cfg.BinDirs) == 0 {
		return nil, errors.New("CNI needs directories of configurations, plugins and state")
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	b, err := openBook(filepath.Join(cfg.StateDir, "attached"))
	if err != nil {
		return nil, err
	}
	return &Network{
		cfg: cfg, book: b, locks: map[string]*sandboxLock{},
		lib: libcni.NewCNIConfigWithCacheDir(cfg.BinDirs, filepath.Join(cfg.StateDir, "cache"), nil),
	}, nil
}

// Sandbox is what plugins may know of a sandbox.
type Sandbox struct {
	ID, Namespace, Name, UID string
	// NetNS is the path of its network namespace; it may be gone at Detach.
	NetNS string
	Ports []Port
	// Ingress and Egress are limits in bits a second; 0: none.
	Ingress, Egress uint64
	DNS             DNS
}

// Port is a port mapping, in the words of the "portMappings" capability.
type Port struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// DNS in the words of the "dns" capability.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// Configured tells whether the directory holds a configuration.
func (n *Network) Configured() bool {
	list, _, err := load(n.cfg.ConfDir)
	return err == nil && list != nil
}

// Attached tells whether a sandbox was attached here, and not detached since.
func (n *Network) Attached(id string) bool { return n.book.has(id) }

// MapsPorts tells whether the plugins lead host ports to sandboxes.
func (n *Network) MapsPorts() bool {
	list, _, err := load(n.cfg.ConfDir)
	return err == nil && declares(list, "portMappings")
}

func (n *Network) load() (*libcni.NetworkConfigList, error) {
	list, wrong, err := load(n.cfg.ConfDir)
	text := ""
	if len(wrong) > 0 {
		text = errors.Join(wrong...).Error()
	}
	n.mu.Lock()
	news := text != n.told
	n.told = text
	n.mu.Unlock()
	if news && text != "" {
		n.cfg.Logger.Warn("CNI configuration skipped", "err", text)
	}
	return list, err
}

// Attach has the plugins connect a sandbox and returns its addresses. Idempotent: what a sandbox was
// given it keeps, as long as the plugins find it in order.
func (n *Network) Attach(ctx context.Context, s Sandbox) ([]netip.Addr, error) {
	defer n.lock(s.ID)()
	if old, ok, err := n.book.get(s.ID); err != nil {
		return nil, err
	} else if ok {
		if len(old.Addresses) > 0 && n.check(ctx, old) == nil {
			return old.Addresses, nil
		}
		if err := n.detach(ctx, s.ID, old, s.NetNS); err != nil { // half made, or broken since
			return nil, err
		}
	}
	list, err := n.load()
	if err != nil {
		return nil, err
	}
	if err := findPlugins(list, n.cfg.BinDirs); err != nil { // before anything has to be undone
		return nil, err
	}
	config, err := flatten(list)
	if err != nil {
		return nil, err
	}
	r := record{id: s.ID, Config: config, Args: arguments(s), Capabilities: capabilities(s), NetNS: s.NetNS}
	if err := n.book.put(s.ID, r); err != nil {
		return nil, err
	}
	result, err := n.lib.AddNetworkList(ctx, list, r.runtime(s.ID))
	if err == nil {
		r.Addresses, err = addresses(result)
	}
	if err == nil {
		err = n.book.put(s.ID, r)
	}
	if err != nil {
		err = fmt.Errorf("network %q: %w", list.Name, err)
		// The specification wants DEL after a failed ADD: some plugins of the list have done their part.
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if gone := n.detach(undo, s.ID, r, s.NetNS); gone != nil {
			n.cfg.Logger.Warn("undo a failed attachment", "sandbox", s.ID, "err", gone)
		}
		return nil, err
	}
	return r.Addresses, nil
}

// undoTimeout bounds the DEL after a failed ADD, whose own time may be up.
const undoTimeout = 20 * time.Second

// check has the plugins look whether all is as they made it; versions before 0.4.0 can't.
func (n *Network) check(ctx context.Context, r record) error {
	list, err := r.list()
	if err != nil {
		return err
	}
	if list.DisableCheck || older(list.CNIVersion, "0.4.0") {
		return nil
	}
	if err := n.lib.CheckNetworkList(ctx, list, r.runtime(r.id)); err != nil {
		n.cfg.Logger.Warn("an attachment is not in order and is made anew", "sandbox", r.id, "err", err)
		return err
	}
	return nil
}

// Detach has the plugins take a sandbox off. An empty netns is the one that it was attached with.
// Idempotent.
func (n *Network) Detach(ctx context.Context, id, netns string) error {
	defer n.lock(id)()
	r, ok, err := n.book.get(id)
	if err != nil || !ok {
		return err
	}
	return n.detach(ctx, id, r, netns)
}

// Forget gives up what was attached for a sandbox without its plugins. Links go with the sandbox's
// namespace; what else the plugins made is theirs to collect.
func (n *Network) Forget(id string) error {
	defer n.lock(id)()
	return n.book.remove(id)
}

func (n *Network) detach(ctx context.Context, id string, r record, netns string) error {
	list, err := r.list()
	if err != nil {
		return err
	}
	if netns == "" {
		netns = r.NetNS
	}
	if _, err := os.Stat(netns); err != nil {
		netns = "" // so the specification says that it has gone
	}
	r.NetNS = netns
	if err := findPlugins(list, n.cfg.BinDirs); err != nil && (netns == "" || len(r.Addresses) == 0) {
		// The links have gone with the namespace, or never came: who took the plugins away has not left
		// much. A sandbox that is connected waits for them to come back.
		n.cfg.Logger.Warn("a sandbox is taken off its network without the plugins", "sandbox", id, "err", err)
		return n.book.remove(id)
	}
	if err := n.lib.DelNetworkList(ctx, list, r.runtime(id)); err != nil {
		return fmt.Errorf("network %q: %w", list.Name, err)
	}
	return n.book.remove(id)
}

// Ready is nil once sandboxes can be attached.
func (n *Network) Ready(ctx context.Context) error {
	list, err := n.load()
	if err != nil {
		return err
	}
	if err := findPlugins(list, n.cfg.BinDirs); err != nil {
		return err
	}
	if older(list.CNIVersion, "1.1.0") {
		return nil
	}
	n.statusMu.Lock()
	defer n.statusMu.Unlock()
	if now := n.cfg.Now(); n.statusOf != string(list.Bytes) || now.Sub(n.statusAt) >= statusFor {
		n.status = nil
		if err := n.lib.GetStatusNetworkList(ctx, list); err != nil {
			n.status = fmt.Errorf("network %q: %w", list.Name, err)
		}
		n.statusOf, n.statusAt = string(list.Bytes), now
	}
	return n.status
}

// Collect takes off what is attached for sandboxes that are no more, and lets plugins of
// specification 1.1 look for what they have left over.
func (n *Network) Collect(ctx context.Context, live []string) error {
	keep := map[string]bool{}
	for _, id := range live {
		keep[id] = true
	}
	var errs []error
	ids, err := n.book.ids()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if !keep[id] {
			errs = append(errs, n.Detach(ctx, id, ""))
		}
	}
	list, _, err := load(n.cfg.ConfDir)
	if err != nil || older(list.CNIVersion, "1.1.0") || list.DisableGC {
		return errors.Join(errs...)
	}
	args := &libcni.GCArgs{}
	for _, id := range ids {
		if keep[id] {
			args.ValidAttachments = append(args.ValidAttachments, types.GCAttachment{ContainerID: id, IfName: link})
		}
	}
	if err := n.lib.GCNetworkList(ctx, list, args); err != nil {
		errs = append(errs, fmt.Errorf("network %q: collect garbage: %w", list.Name, err))
	}
	return errors.Join(errs...)
}

// lock a sandbox until the result is called.
func (n *Network) lock(id string) (unlock func()) {
	n.mu.Lock()
	l := n.locks[id]
	if l == nil {
		l = &sandboxLock{}
		n.locks[id] = l
	}
	l.users++
	n.mu.Unlock()
	l.Lock()
	return func() {
		l.Unlock()
		n.mu.Lock()
		defer n.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(n.locks, id)
		}
	}
}

// addresses of the sandbox's interface, in the order that the plugins give.
func addresses(result types.Result) ([]netip.Addr, error) {
	if result == nil {
		return nil, errors.New("the plugins gave no result")
	}
	r, err := types100.NewResultFromResult(result)
	if err != nil {
		return nil, fmt.Errorf("read the plugins' result: %w", err)
	}
	var out []netip.Addr
	for _, ip := range r.IPs {
		if i := ip.Interface; i != nil && *i >= 0 && *i < len(r.Interfaces) && r.Interfaces[*i].Sandbox == "" {
			continue // an interface of the host
		}
		if a, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			out = append(out, a.Unmap())
		}
	}
	if len(out) == 0 {
		return nil, errors.New("the plugins gave the sandbox no address")
	}
	return out, nil
}
