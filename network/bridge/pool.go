package bridge

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
)

// pool is the address book: one file an address, holding the sandbox that has it. A file
// is written before its address is used, so that a crash can leak an address (until
// its sandbox is detached) but never give it twice.
type pool struct {
	dir   string
	cidrs []netip.Prefix

	mu    sync.Mutex
	taken map[netip.Addr]string
	byID  map[string][]netip.Addr
	next  []netip.Addr // where the search of each CIDR goes on: addresses are not reused at once
}

func openPool(dir string, cidrs []netip.Prefix) (*pool, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make address book: %w", err)
	}
	p := &pool{dir: dir, taken: map[netip.Addr]string{}, byID: map[string][]netip.Addr{}}
	for _, c := range cidrs {
		p.cidrs = append(p.cidrs, c.Masked())
		p.next = append(p.next, c.Masked().Addr().Next().Next())
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read address book: %w", err)
	}
	for _, e := range entries {
		a, err := netip.ParseAddr(e.Name())
		if err != nil {
			continue // an unfinished temporary file
		}
		id, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read address book entry: %w", err)
		}
		p.taken[a] = string(id)
		p.byID[string(id)] = append(p.byID[string(id)], a)
		for i, c := range p.cidrs {
			if c.Contains(a) && !a.Less(p.next[i]) {
				p.next[i] = a.Next()
			}
		}
	}
	return p, nil
}

func (p *pool) gateways() []netip.Addr {
	gws := make([]netip.Addr, len(p.cidrs))
	for i, c := range p.cidrs {
		gws[i] = c.Addr().Next()
	}
	return gws
}

// used is how many sandboxes have addresses.
func (p *pool) used() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.byID)
}

func (p *pool) has(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.byID[id]) > 0
}

func (p *pool) take(id string) ([]netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if have := p.byID[id]; len(have) == len(p.cidrs) {
		return have, nil
	}
	var got []netip.Addr
	for i := range p.cidrs {
		a, err := p.takeOne(i, id)
		if err != nil {
			return nil, errors.Join(err, p.releaseLocked(id))
		}
		got = append(got, a)
	}
	return got, nil
}

func (p *pool) takeOne(i int, id string) (netip.Addr, error) {
	c := p.cidrs[i]
	first := c.Addr().Next().Next() // behind network and gateway
	a := p.next[i]
	for wrapped := false; ; a = a.Next() {
		if !usable(c, a) {
			if wrapped {
				return netip.Addr{}, fmt.Errorf("no free address in pod CIDR %s: all %d are taken", c, len(p.taken))
			}
			wrapped, a = true, first
			if !usable(c, a) {
				return netip.Addr{}, fmt.Errorf("pod CIDR %s has no room for pods", c)
			}
		}
		if _, busy := p.taken[a]; !busy {
			break
		}
	}
	if err := writeFile(filepath.Join(p.dir, a.String()), id); err != nil {
		return netip.Addr{}, fmt.Errorf("enter address %s: %w", a, err)
	}
	p.taken[a], p.byID[id], p.next[i] = id, append(p.byID[id], a), a.Next()
	return a, nil
}

// usable: inside the CIDR, and not the broadcast address of an IPv4 one.
func usable(c netip.Prefix, a netip.Addr) bool {
	return c.Contains(a) && (a.Is6() || c.Contains(a.Next()))
}

func (p *pool) release(id string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.releaseLocked(id)
}

func (p *pool) releaseLocked(id string) error {
	for _, a := range p.byID[id] {
		if err := os.Remove(filepath.Join(p.dir, a.String())); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("free address %s: %w", a, err)
		}
		delete(p.taken, a)
	}
	delete(p.byID, id)
	return nil
}

// writeFile replaces a file whole. It is not synced: after a power cut the
// sandboxes are gone, and so are their addresses.
func writeFile(path, text string) error {
	tmp := filepath.Join(filepath.Dir(path), ".new-"+filepath.Base(path))
	if err := os.WriteFile(tmp, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
