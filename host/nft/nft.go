// Package nft is the seam to nftables: tables of maps, sets, chains and rules, written
// over netlink in atomic batches.
//
// It offers the little that skiff needs, as values, so that what is programmed can be
// compared and tested without a kernel. Must not: know Services, pods or policies;
// touch a table that the caller did not name.
package nft

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
)

// Family is the address family of a table.
type Family uint8

const (
	IPv4 Family = iota
	IPv6
)

func (f Family) table() nftables.TableFamily {
	if f == IPv6 {
		return nftables.TableFamilyIPv6
	}
	return nftables.TableFamilyIPv4
}

// Set is a set, or a map when Value is not empty or Verdicts is set.
type Set struct {
	Name string
	Key  []Field
	// Value types of a data map.
	Value []Field
	// Verdicts makes it a verdict map.
	Verdicts bool
	// Timeout lets elements carry one and rules add them (dynamic).
	Timeout bool
}

// Element of a set. Key and Value are the fields' wire forms, each padded to four bytes.
type Element struct {
	Key, Value []byte
	// Goto is the chain that a verdict map's element goes to; "drop" drops.
	Goto string
}

// Hook attaches a base chain.
type Hook struct {
	Type     string // filter, nat
	Point    string // prerouting, input, forward, output, postrouting
	Priority int32
}

// Chain is a base chain (Hook set) or one that rules go to.
type Chain struct {
	Name  string
	Hook  *Hook
	Rules []Rule
}

// Rule is a list of statements.
type Rule []Statement

// Table programs one nftables table. One goroutine at a time.
type Table struct {
	family Family
	name   string
	sets   map[string]*nftables.Set
	decls  map[string]Set
	nextID uint32
}

// NewTable names a table; nothing is touched until a Batch is committed.
func NewTable(family Family, name string) *Table {
	return &Table{family: family, name: name, sets: map[string]*nftables.Set{}, decls: map[string]Set{}}
}

// Family of the table.
func (t *Table) Family() Family { return t.family }

// Batch collects changes; Commit applies all of them or none.
type Batch struct {
	t    *Table
	conn *nftables.Conn
	tbl  *nftables.Table
	err  error
	// newSets are entered into the table's books on success only.
	newSets map[string]*nftables.Set
	oldSets []string
	reset   bool
}

// netlinkBuffer lets one batch of tens of thousands of elements fit the socket.
const netlinkBuffer = 64 << 20

func connect() (*nftables.Conn, error) {
	return nftables.New(nftables.WithSockOptions(func(c *netlink.Conn) error {
		raw, err := c.SyscallConn()
		if err != nil {
			return err
		}
		var errs error
		err = raw.Control(func(fd uintptr) {
			for _, opt := range []int{syscall.SO_SNDBUFFORCE, syscall.SO_RCVBUFFORCE} {
				if err := syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, opt, netlinkBuffer); err != nil {
					errs = errors.Join(errs, os.NewSyscallError("setsockopt", err))
				}
			}
		})
		return errors.Join(err, errs)
	}))
}

// Begin starts a batch on the table as it is.
func (t *Table) Begin() *Batch {
	b := &Batch{t: t, newSets: map[string]*nftables.Set{}}
	if b.conn, b.err = connect(); b.err != nil {
		b.err = fmt.Errorf("open nftables: %w", b.err)
		return b
	}
	b.tbl = b.conn.AddTable(&nftables.Table{Family: t.family.table(), Name: t.name})
	return b
}

// Reset starts a batch that replaces the whole table.
func (t *Table) Reset() *Batch {
	b := t.Begin()
	if b.err == nil {
		b.conn.DelTable(b.tbl) // added just before, so that it exists
		b.tbl = b.conn.AddTable(&nftables.Table{Family: t.family.table(), Name: t.name})
		b.reset = true
	}
	return b
}

// AddSet makes a set or map.
func (b *Batch) AddSet(s Set) {
	if b.err != nil {
		return
	}
	b.t.nextID++
	n := &nftables.Set{
		Table: b.tbl, ID: b.t.nextID, Name: s.Name, IsMap: s.Verdicts || len(s.Value) > 0,
		KeyType: b.t.family.concat(s.Key), Concatenation: len(s.Key) > 1,
		HasTimeout: s.Timeout, Dynamic: s.Timeout,
	}
	switch {
	case s.Verdicts:
		n.DataType = nftables.TypeVerdict
	case len(s.Value) > 0:
		n.DataType = b.t.family.concat(s.Value)
	}
	if err := b.conn.AddSet(n, nil); err != nil {
		b.err = fmt.Errorf("add set %s: %w", s.Name, err)
		return
	}
	b.newSets[s.Name] = n
	b.t.decls[s.Name] = s
}

// DeleteSet removes a set that no rule uses any more.
func (b *Batch) DeleteSet(name string) {
	if s := b.set(name); s != nil {
		b.conn.DelSet(s)
		b.oldSets = append(b.oldSets, name)
	}
}

// maxElements in one message: its length field has 16 bits.
const maxElements = 400

// AddElements adds elements to a set of this table.
func (b *Batch) AddElements(set string, els []Element) {
	b.elements(set, els, (*nftables.Conn).SetAddElements)
}

// DeleteElements removes elements; each must exist.
func (b *Batch) DeleteElements(set string, els []Element) {
	b.elements(set, els, (*nftables.Conn).SetDeleteElements)
}

func (b *Batch) elements(set string, els []Element, do func(*nftables.Conn, *nftables.Set, []nftables.SetElement) error) {
	s := b.set(set)
	if s == nil {
		return
	}
	for len(els) > 0 {
		n := min(len(els), maxElements)
		out := make([]nftables.SetElement, n)
		for i, e := range els[:n] {
			out[i] = nftables.SetElement{Key: e.Key, Val: e.Value, VerdictData: verdict(e.Goto)}
		}
		if err := do(b.conn, s, out); err != nil {
			b.err = fmt.Errorf("change elements of %s: %w", set, err)
			return
		}
		els = els[n:]
	}
}

func verdict(chain string) *expr.Verdict {
	switch chain {
	case "":
		return nil
	case "drop":
		return &expr.Verdict{Kind: expr.VerdictDrop}
	}
	return &expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}
}

// AddChains makes chains, then their rules, so that rules may refer to any of them.
func (b *Batch) AddChains(chains ...Chain) {
	if b.err != nil {
		return
	}
	made := make([]*nftables.Chain, len(chains))
	for i, c := range chains {
		n := &nftables.Chain{Table: b.tbl, Name: c.Name}
		if c.Hook != nil {
			n.Type, n.Hooknum, n.Priority = nftables.ChainType(c.Hook.Type), hooks[c.Hook.Point], nftables.ChainPriorityRef(nftables.ChainPriority(c.Hook.Priority))
		}
		made[i] = b.conn.AddChain(n)
	}
	for i, c := range chains {
		for _, r := range c.Rules {
			exprs, err := b.compile(r)
			if err != nil {
				b.err = fmt.Errorf("rule of chain %s: %w", c.Name, err)
				return
			}
			b.conn.AddRule(&nftables.Rule{Table: b.tbl, Chain: made[i], Exprs: exprs})
		}
	}
}

// DeleteChain removes a chain that nothing refers to any more.
func (b *Batch) DeleteChain(name string) {
	if b.err == nil {
		b.conn.DelChain(&nftables.Chain{Table: b.tbl, Name: name})
	}
}

var hooks = map[string]*nftables.ChainHook{
	"prerouting": nftables.ChainHookPrerouting, "input": nftables.ChainHookInput, "forward": nftables.ChainHookForward,
	"output": nftables.ChainHookOutput, "postrouting": nftables.ChainHookPostrouting,
}

func (b *Batch) set(name string) *nftables.Set {
	if b.err != nil {
		return nil
	}
	if s, ok := b.newSets[name]; ok {
		return s
	}
	if s, ok := b.t.sets[name]; ok && !b.reset {
		// An ID is known to the kernel only within the batch that makes the set.
		c := *s
		c.ID, c.Table = 0, b.tbl
		return &c
	}
	b.err = fmt.Errorf("no set %s in table %s", name, b.t.name)
	return nil
}

// Commit sends the batch. On an error the kernel has kept the old state; after
// one, the caller should Reset.
func (b *Batch) Commit() error {
	if b.err != nil {
		return b.err
	}
	if err := b.conn.Flush(); err != nil {
		return fmt.Errorf("commit nftables table %s: %w", b.t.name, err)
	}
	if b.reset {
		clear(b.t.sets)
	}
	for n, s := range b.newSets {
		b.t.sets[n] = s
	}
	for _, n := range b.oldSets {
		delete(b.t.sets, n)
	}
	return nil
}

// Elements reads what a set holds now.
func (t *Table) Elements(set string) ([]Element, error) {
	s, ok := t.sets[set]
	if !ok {
		return nil, fmt.Errorf("no set %s in table %s", set, t.name)
	}
	conn, err := connect()
	if err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	els, err := conn.GetSetElements(s)
	if err != nil {
		return nil, fmt.Errorf("read set %s: %w", set, err)
	}
	out := make([]Element, len(els))
	for i, e := range els {
		out[i] = Element{Key: e.Key, Value: e.Val}
	}
	return out, nil
}

// Remove deletes a table; one that does not exist is no error.
func Remove(family Family, name string) error {
	b := NewTable(family, name).Begin()
	if b.err == nil {
		b.conn.DelTable(b.tbl)
	}
	return b.Commit()
}
