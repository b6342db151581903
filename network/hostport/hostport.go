// Package hostport leads ports of the node to pods: the hostPort field of a container's
// ports, as CRI port mappings carry it.
//
// A mapping is one element of a map in the package's own nftables table; the rules are
// the same for one mapping and for a thousand. Which sandbox has which mapping is kept
// in files, so that a new process finds what an earlier one left. It must not know
// Services (proxy does), links (bridge does) or the API.
package hostport

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/skiff-k8s/skiff/host/netlink"
	"github.com/skiff-k8s/skiff/host/nft"
)

// Protocol numbers that mappings may have.
const (
	TCP  = 6
	UDP  = 17
	SCTP = 132
)

// Mapping leads a port of the node to a port of a pod.
type Mapping struct {
	Protocol uint8 `json:"protocol"`
	// HostIP is the one address of the node that is mapped; unset or unspecified means
	// all of them, in its family if it has one.
	HostIP   netip.Addr `json:"hostIP"`
	HostPort uint16     `json:"hostPort"`
	PodPort  uint16     `json:"podPort"`
}

// Config configures Ports.
type Config struct {
	// Table is the name of the nftables tables, one a family.
	Table string
	// StateDir keeps the book of mappings; it must survive a restart of the process.
	StateDir string
	// Link is where pods are behind: the one that may carry answers to 127.0.0.1.
	Link string
	// ProcSys is where sysctls are; empty is /proc/sys.
	ProcSys string
}

// Ports programs mappings. Safe for concurrent use.
type Ports struct {
	cfg    Config
	tables [2]*nft.Table

	mu   sync.Mutex
	book book
	// current tells whether the kernel has what the book says.
	current bool
}

// New takes up the book of an earlier process. It touches no rules before the first
// change: what that process programmed goes on working.
func New(cfg Config) (*Ports, error) {
	if cfg.Table == "" || cfg.StateDir == "" || cfg.Link == "" {
		return nil, errors.New("host ports need a table name, a state directory and a link")
	}
	if cfg.ProcSys == "" {
		cfg.ProcSys = "/proc/sys"
	}
	p := &Ports{cfg: cfg, book: book{}}
	for i, f := range families {
		p.tables[i] = nft.NewTable(f, cfg.Table)
	}
	if err := p.load(); err != nil {
		return nil, err
	}
	return p, nil
}

var families = [...]nft.Family{nft.IPv4, nft.IPv6}

// Set gives a sandbox exactly these mappings to its addresses, at most one a family.
// A mapping that another sandbox has too goes to the one that came last, and back to
// the other when that one is removed. Idempotent.
func (p *Ports) Set(id string, addrs []netip.Addr, mappings []Mapping) error {
	if len(mappings) == 0 {
		return p.Remove(id)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	old, had := p.book[id]
	e := entry{Order: p.book.next(), Addrs: addrs, Mappings: mappings}
	if had {
		e.Order = old.Order
	}
	if had && old.equal(e) && p.current {
		return nil
	}
	if err := p.keep(id, e); err != nil { // first: what is programmed can always be removed
		return err
	}
	p.book[id] = e
	if err := p.program(); err != nil {
		return fmt.Errorf("map host ports of sandbox %s: %w", id, err)
	}
	return p.forgetFlows(e)
}

// Remove takes a sandbox's mappings back. One that has none is no error.
func (p *Ports) Remove(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	e, ok := p.book[id]
	if !ok {
		return nil
	}
	delete(p.book, id)
	if err := p.program(); err != nil {
		p.book[id] = e
		return fmt.Errorf("take back host ports of sandbox %s: %w", id, err)
	}
	if err := p.forgetFlows(e); err != nil {
		return err
	}
	if err := os.Remove(p.file(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget host ports of sandbox %s: %w", id, err)
	}
	return nil
}

// forgetFlows lets clients of UDP, whose flows never end by themselves while they talk,
// reach who has the port now.
func (p *Ports) forgetFlows(e entry) error {
	ports := map[uint16]bool{}
	for _, m := range e.Mappings {
		if m.Protocol == UDP {
			ports[m.HostPort] = true
		}
	}
	if len(ports) == 0 {
		return nil
	}
	_, err := netlink.DeleteFlows(func(f netlink.Flow) bool { return ports[f.Original.Port()] },
		netlink.FlowKind{Protocol: UDP}, netlink.FlowKind{V6: true, Protocol: UDP})
	return err
}

// program replaces the tables in one transaction a family: no packet sees them half done.
func (p *Ports) program() error {
	p.current = false
	for i, f := range families {
		if err := p.programFamily(p.tables[i], p.book.contents(f == nft.IPv6)); err != nil {
			return err
		}
	}
	p.current = true
	return nil
}

func (p *Ports) programFamily(t *nft.Table, c contents) error {
	if c.empty() {
		return nft.Remove(t.Family(), p.cfg.Table)
	}
	if t.Family() == nft.IPv4 {
		if err := p.allowLocalhost(); err != nil {
			return err
		}
	}
	b := t.Reset()
	for _, s := range sets() {
		b.AddSet(s)
	}
	b.AddChains(chains(t.Family())...)
	for set, els := range c {
		b.AddElements(set, els)
	}
	return b.Commit()
}

// allowLocalhost lets 127.0.0.1 of the node be translated to a pod and back. The chain
// "guard" keeps pods from using it for anything else (CVE-2020-8558).
func (p *Ports) allowLocalhost() error {
	path := filepath.Join(p.cfg.ProcSys, "net/ipv4/conf", p.cfg.Link, "route_localnet")
	if have, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(have)) == "1" {
		return nil
	}
	if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
		return fmt.Errorf("set sysctl net.ipv4.conf.%s.route_localnet=1: %w", p.cfg.Link, err)
	}
	return nil
}

// Remove takes the tables and the book of a cluster away that is going down. It needs no
// running Ports.
func Remove(cfg Config) error {
	return errors.Join(nft.Remove(nft.IPv4, cfg.Table), nft.Remove(nft.IPv6, cfg.Table), os.RemoveAll(cfg.bookDir()))
}

func (c Config) bookDir() string { return filepath.Join(c.StateDir, "hostports") }

func (p *Ports) file(id string) string { return filepath.Join(p.cfg.bookDir(), id+".json") }

func (p *Ports) load() error {
	files, err := os.ReadDir(p.cfg.bookDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read book of host ports: %w", err)
	}
	for _, f := range files {
		id, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok {
			continue // an unfinished temporary file
		}
		text, err := os.ReadFile(p.file(id))
		if err != nil {
			return fmt.Errorf("read host ports of sandbox %s: %w", id, err)
		}
		var e entry
		if err := json.Unmarshal(text, &e); err != nil {
			return fmt.Errorf("read host ports of sandbox %s from %s: %w", id, p.file(id), err)
		}
		p.book[id] = e
	}
	return nil
}

func (p *Ports) keep(id string, e entry) error {
	text, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encode host ports of sandbox %s: %w", id, err)
	}
	if err := os.MkdirAll(p.cfg.bookDir(), 0o700); err != nil {
		return fmt.Errorf("make book of host ports: %w", err)
	}
	temp := p.file(id) + ".new"
	if err := os.WriteFile(temp, text, 0o600); err != nil {
		return fmt.Errorf("keep host ports of sandbox %s: %w", id, err)
	}
	if err := os.Rename(temp, p.file(id)); err != nil {
		return fmt.Errorf("keep host ports of sandbox %s: %w", id, err)
	}
	return nil
}
