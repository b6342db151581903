package iptables

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// text is rules in the language of iptables-restore, by table.
type text map[string]*bytes.Buffer

func (t text) write(table string, words ...string) {
	b := t[table]
	if b == nil {
		b = &bytes.Buffer{}
		t[table] = b
	}
	for _, w := range words {
		b.WriteString(w)
	}
	b.WriteByte('\n')
}

// fresh makes a chain that is empty, whether it was there or not.
func (t text) fresh(table, chain string) { t.write(table, ":", chain, " - [0:0]") }

func (t text) empty() bool { return len(t) == 0 }

// bytes has the table that refuses before the one that leads on: nothing is let past in between.
func (t text) bytes() []byte {
	var out bytes.Buffer
	for _, table := range []string{mangle, filter, nat} {
		if b := t[table]; b != nil {
			out.WriteString("*" + table + "\n")
			out.Write(b.Bytes())
			out.WriteString("COMMIT\n")
		}
	}
	return out.Bytes()
}

// existing is what the kernel has of a table.
type existing struct {
	chains map[string]bool
	rules  []string
}

// whole is the texts that, one after the other, make the kernel have these parts and nothing of another
// Service. Pure. All but the last have the chains of at most so many parts, which nothing leads to before; 0: there
// is one text. firsts counts the lines of services in nat that go before others.
func (s *scene) whole(parts []part, have map[string]existing, most int) (texts []text, firsts int) {
	t, ours := text{}, map[string]bool{}
	for table, names := range s.chains() {
		for _, name := range names {
			t.fresh(table, name)
		}
	}
	for _, p := range parts {
		for _, c := range p.own {
			ours[c.name] = true
		}
	}
	var stale []string
	for name := range have[nat].chains {
		if ofPort(name) && !ours[name] {
			stale = append(stale, name)
		}
	}
	slices.Sort(stale)
	for _, name := range stale {
		t.fresh(nat, name)
	}
	if most == 0 || len(parts) <= most {
		t.ports(parts)
	} else {
		for some := range slices.Chunk(parts, most) {
			piece := text{}
			if texts == nil { // which all lead to
				piece.fresh(nat, masquerade)
				piece.write(nat, "-A ", masquerade, " ", s.mark())
			}
			piece.ports(some)
			texts = append(texts, piece)
		}
	}
	for _, j := range s.jumps() {
		if !slices.ContainsFunc(have[j.table].rules, j.is) {
			t.write(j.table, "-I ", j.from, " ", j.text())
		}
	}
	for _, first := range []bool{true, false} {
		for _, p := range parts {
			for _, l := range p.shared {
				if l.first == first {
					t.write(l.table, "-A ", l.chain, " ", l.text)
				}
			}
			if first {
				firsts += p.firsts()
			}
		}
	}
	for _, l := range s.base() {
		t.write(l.table, "-A ", l.chain, " ", l.text)
	}
	for _, name := range stale {
		t.write(nat, "-X ", name)
	}
	return append(texts, t), firsts
}

// ports has the chains of these parts. Later names come first: iptables-nft-restore keeps those that it has read
// in a sorted list, and looks for the place of each from its start.
func (t text) ports(parts []part) {
	var all []chain
	for _, p := range parts {
		all = append(all, p.own...)
	}
	slices.SortFunc(all, func(a, b chain) int { return strings.Compare(b.name, a.name) })
	for _, c := range all {
		t.fresh(nat, c.name)
	}
	for _, c := range all {
		t.rules(c)
	}
}

func (t text) rules(c chain) {
	for _, r := range c.rules {
		t.write(nat, "-A ", c.name, " ", r)
	}
}

func (p *part) firsts() (n int) {
	for _, l := range p.shared {
		if l.first {
			n++
		}
	}
	return n
}

// difference is the text that turns one part into another. Pure. firsts is the number of first
// lines that the kernel has, and afterwards has.
func difference(was, is part, firsts int) (t text, after int) {
	t = text{}
	gone, fresh := lack(was.shared, is.shared), lack(is.shared, was.shared)
	before := map[string][]string{}
	for _, c := range was.own {
		before[c.name] = c.rules
	}
	var changed []chain
	for _, c := range is.own {
		if rules, had := before[c.name]; !had || !slices.Equal(rules, c.rules) {
			t.fresh(nat, c.name)
			changed = append(changed, c)
		}
		delete(before, c.name)
	}
	left := make([]string, 0, len(before))
	for name := range before {
		left = append(left, name)
	}
	slices.Sort(left)
	for _, name := range left {
		t.fresh(nat, name)
	}
	for _, l := range gone {
		t.write(l.table, "-D ", l.chain, " ", l.text)
		if l.first {
			firsts--
		}
	}
	for _, c := range changed {
		t.rules(c)
	}
	for _, l := range fresh {
		if l.first {
			t.write(l.table, "-I ", l.chain, " 1 ", l.text)
			firsts++
		}
	}
	for _, l := range fresh {
		switch {
		case l.first:
		case l.table == nat && l.chain == services:
			t.write(l.table, "-I ", l.chain, " ", strconv.Itoa(firsts+1), " ", l.text)
		default:
			t.write(l.table, "-A ", l.chain, " ", l.text)
		}
	}
	for _, name := range left {
		t.write(nat, "-X ", name)
	}
	return t, firsts
}

// lack are the lines of a that b has not.
func lack(a, b []line) (out []line) {
	has := make(map[line]bool, len(b))
	for _, l := range b {
		has[l] = true
	}
	for _, l := range a {
		if !has[l] {
			out = append(out, l)
		}
	}
	return out
}
