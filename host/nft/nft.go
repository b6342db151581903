// Package nft is the seam to nftables: tables of maps, sets, chains and rules, written
// over netlink in atomic batches.
//
// It offers the little that skiff needs, as values, so that what is programmed can be
// compared and tested without a kernel. Must not: know Services, pods or policies;
// touch a table that the caller did not name.
package nft

import (
	"fmt"
	"maps"
	"os"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Family is the address family of a table.
type Family uint8

const (
	IPv4 Family = iota
	IPv6
	// Bridge is of frames between ports of bridges; addresses are IPv6's, after OfIPv6.
	Bridge
)

func (f Family) proto() byte { return byte(f.table()) }

func (f Family) table() nftables.TableFamily {
	switch f {
	case IPv6:
		return nftables.TableFamilyIPv6
	case Bridge:
		return nftables.TableFamilyBridge
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
	// Interval lets elements be ranges, from Key to KeyEnd field by field.
	Interval bool
}

// Element of a set. Key and Value are the fields' wire forms, each padded to four bytes.
type Element struct {
	Key, Value []byte
	// KeyEnd is the last key of a range; empty: Key alone. Sets of ranges need it.
	KeyEnd []byte
	// Goto is the chain that a verdict map's element goes to; "drop" drops.
	Goto string
	// Timeout is how long an element lives, Expires how long it still does.
	Timeout, Expires time.Duration
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

// Table programs one nftables table, in the network namespace of the thread that commits its
// first batch. One goroutine at a time.
type Table struct {
	family Family
	name   string
	sets   map[string]Set
	// socket stays open between batches: when one is closed, the kernel first frees all that
	// the last batch removed, which takes it some 10 ms. Closed when the Table is garbage.
	socket *os.File
}

// NewTable names a table; nothing is touched until a Batch is committed.
func NewTable(family Family, name string) *Table {
	return &Table{family: family, name: name, sets: map[string]Set{}}
}

// Family of the table.
func (t *Table) Family() Family { return t.family }

// Batch collects changes; Commit applies all of them or none. Whatever the order of calls,
// sets are made first, then chains, then rules; elements are removed before others are
// added; what is to go goes last.
type Batch struct {
	t   *Table
	err error
	// sets, chains and rules to make, and removals of chains and sets.
	sets, chains, rules, gone *wire
	less, more                map[string]*elements
	order                     []string // of sets in less and more
	// newSets are entered into the table's books on success only.
	newSets map[string]Set
	oldSets []string
	reset   bool
}

// Begin starts a batch on the table as it is.
func (t *Table) Begin() *Batch {
	b := &Batch{
		t: t, newSets: map[string]Set{}, sets: newWire(), chains: newWire(), rules: newWire(), gone: newWire(),
		less: map[string]*elements{}, more: map[string]*elements{},
	}
	b.table(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	return b
}

func (b *Batch) table(kind, flags uint16) {
	b.sets.message(kind, flags, b.t.family.proto())
	b.sets.text(unix.NFTA_TABLE_NAME, b.t.name)
	b.sets.end()
}

// Reset starts a batch that replaces the whole table.
func (t *Table) Reset() *Batch {
	b := t.Begin() // so that it exists
	b.table(unix.NFT_MSG_DELTABLE, 0)
	b.table(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE)
	b.reset = true
	return b
}

// AddSet makes a set or map.
func (b *Batch) AddSet(s Set) {
	if b.err != nil {
		return
	}
	key := b.t.family.concat(s.Key)
	var flags uint32
	if s.Verdicts || len(s.Value) > 0 {
		flags |= unix.NFT_SET_MAP
	}
	if s.Timeout {
		flags |= unix.NFT_SET_TIMEOUT | unix.NFT_SET_EVAL
	}
	if s.Interval {
		flags |= unix.NFT_SET_INTERVAL
	}
	if len(s.Key) > 1 {
		flags |= setConcat
	}
	w := b.sets
	w.message(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE, b.t.family.proto())
	w.text(unix.NFTA_SET_TABLE, b.t.name)
	w.text(unix.NFTA_SET_NAME, s.Name)
	w.u32(unix.NFTA_SET_FLAGS, flags)
	w.u32(unix.NFTA_SET_KEY_TYPE, key.GetNFTMagic())
	w.u32(unix.NFTA_SET_KEY_LEN, key.Bytes)
	b.newSets[s.Name] = s
	w.u32(unix.NFTA_SET_ID, uint32(len(b.newSets)))
	switch {
	case s.Verdicts:
		w.u32(unix.NFTA_SET_DATA_TYPE, unix.NFT_DATA_VERDICT)
		w.u32(unix.NFTA_SET_DATA_LEN, 0)
	case len(s.Value) > 0:
		value := b.t.family.concat(s.Value)
		w.u32(unix.NFTA_SET_DATA_TYPE, value.GetNFTMagic())
		w.u32(unix.NFTA_SET_DATA_LEN, value.Bytes)
	}
	if len(s.Key) > 1 {
		desc := w.open(unix.NFTA_SET_DESC)
		concat := w.open(setDescConcat)
		for _, f := range s.Key {
			field := w.open(unix.NFTA_LIST_ELEM)
			w.u32(setFieldLen, b.t.family.typeOf(f).Bytes)
			w.close(field)
		}
		w.close(concat)
		w.close(desc)
	}
	w.end()
}

// DeleteSet removes a set that no rule uses any more.
func (b *Batch) DeleteSet(name string) {
	if !b.has(name) {
		return
	}
	b.gone.message(unix.NFT_MSG_DELSET, 0, b.t.family.proto())
	b.gone.text(unix.NFTA_SET_TABLE, b.t.name)
	b.gone.text(unix.NFTA_SET_NAME, name)
	b.gone.end()
	b.oldSets = append(b.oldSets, name)
}

// AddElements adds elements to a set of this table.
func (b *Batch) AddElements(set string, els []Element) {
	add := b.Adding(set)
	for i := range els {
		add(&els[i])
	}
}

// DeleteElements removes elements; each must exist.
func (b *Batch) DeleteElements(set string, els []Element) {
	remove := b.Deleting(set)
	for i := range els {
		remove(&els[i])
	}
}

// Adding returns what adds elements to a set, one by one. It keeps nothing of them.
func (b *Batch) Adding(set string) func(*Element) {
	return b.changing(b.more, set, unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE|unix.NLM_F_EXCL)
}

// Deleting returns what removes elements from a set; each must exist.
func (b *Batch) Deleting(set string) func(*Element) {
	return b.changing(b.less, set, unix.NFT_MSG_DELSETELEM, 0)
}

func (b *Batch) changing(in map[string]*elements, set string, kind, flags uint16) func(*Element) {
	if !b.has(set) {
		return func(*Element) {}
	}
	e := in[set]
	if e == nil {
		e = &elements{wire: newWire(), kind: kind, flags: flags, family: b.t.family.proto(), table: b.t.name, set: set}
		in[set] = e
		b.order = append(b.order, set)
	}
	return e.put
}

// drop as a Goto drops.
const drop = "drop"

// AddChains makes chains, then their rules, so that rules may refer to any of them.
func (b *Batch) AddChains(chains ...Chain) {
	if b.err != nil {
		return
	}
	family := b.t.family.proto()
	for _, c := range chains {
		b.chains.message(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, family)
		b.chains.text(unix.NFTA_CHAIN_TABLE, b.t.name)
		b.chains.text(unix.NFTA_CHAIN_NAME, c.Name)
		if c.Hook != nil {
			hook := b.chains.open(unix.NFTA_CHAIN_HOOK)
			b.chains.u32(unix.NFTA_HOOK_HOOKNUM, hooks[c.Hook.Point])
			b.chains.u32(unix.NFTA_HOOK_PRIORITY, uint32(c.Hook.Priority))
			b.chains.close(hook)
			b.chains.text(unix.NFTA_CHAIN_TYPE, c.Hook.Type)
		}
		b.chains.end()
		for _, r := range c.Rules {
			exprs, err := b.compile(r)
			if err != nil {
				b.err = fmt.Errorf("rule of chain %s: %w", c.Name, err)
				return
			}
			if b.err = b.rule(c.Name, exprs); b.err != nil {
				return
			}
		}
	}
}

func (b *Batch) rule(chain string, exprs []expr.Any) error {
	w, family := b.rules, b.t.family.proto()
	w.message(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, family)
	w.text(unix.NFTA_RULE_TABLE, b.t.name)
	w.text(unix.NFTA_RULE_CHAIN, chain)
	list := w.open(unix.NFTA_RULE_EXPRESSIONS)
	for _, e := range exprs {
		data, err := expr.Marshal(family, e)
		if err != nil {
			return fmt.Errorf("encode a rule of chain %s: %w", chain, err)
		}
		w.bytes(unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, data)
	}
	w.close(list)
	w.end()
	return nil
}

// DeleteChain removes a chain that nothing refers to any more.
func (b *Batch) DeleteChain(name string) {
	b.gone.message(unix.NFT_MSG_DELCHAIN, 0, b.t.family.proto())
	b.gone.text(unix.NFTA_CHAIN_TABLE, b.t.name)
	b.gone.text(unix.NFTA_CHAIN_NAME, name)
	b.gone.end()
}

var hooks = map[string]uint32{
	"prerouting": unix.NF_INET_PRE_ROUTING, "input": unix.NF_INET_LOCAL_IN, "forward": unix.NF_INET_FORWARD,
	"output": unix.NF_INET_LOCAL_OUT, "postrouting": unix.NF_INET_POST_ROUTING,
}

// has tells whether a set is there, made by this batch or before.
func (b *Batch) has(name string) bool {
	if b.err != nil {
		return false
	}
	if _, ok := b.newSets[name]; ok {
		return true
	}
	if _, ok := b.t.sets[name]; ok && !b.reset {
		return true
	}
	b.err = fmt.Errorf("no set %s in table %s", name, b.t.name)
	return false
}

// Commit sends the batch. On an error the kernel has kept the old state; after
// one, the caller should Reset.
func (b *Batch) Commit() error {
	if b.err != nil {
		return b.err
	}
	parts := []*wire{b.sets, b.chains, b.rules}
	for _, in := range []map[string]*elements{b.less, b.more} {
		done := map[string]bool{}
		for _, set := range b.order {
			if e := in[set]; e != nil && !done[set] {
				done[set] = true
				e.finish()
				parts = append(parts, e.wire)
			}
		}
	}
	if err := b.t.transact(append(parts, b.gone)); err != nil {
		return fmt.Errorf("commit nftables table %s: %w", b.t.name, err)
	}
	if b.reset {
		clear(b.t.sets)
	}
	maps.Copy(b.t.sets, b.newSets)
	for _, n := range b.oldSets {
		delete(b.t.sets, n)
	}
	return nil
}

// Remove deletes a table; one that does not exist is no error.
func Remove(family Family, name string) error {
	b := NewTable(family, name).Begin()
	b.table(unix.NFT_MSG_DELTABLE, 0)
	return b.Commit()
}
