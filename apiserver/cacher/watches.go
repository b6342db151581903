package cacher

import (
	"k8s.io/apimachinery/pkg/fields"
)

// watches are the watches of a resource, by what can wake them: with thousands of
// nodes, each watching its own pods and the few secrets these use, a change must not
// wake all. The resource's lock guards it.
type watches struct {
	all     watcherSet
	byKey   map[string]watcherSet            // of one object
	byField map[string]map[string]watcherSet // of one value of a selectable field
}

type watcherSet map[*watcher]struct{}

// trigger is the field and value that every object of the watch must have.
func (m *matcher) trigger() (field, value string, ok bool) {
	if m.fields == nil || m.r.api.Fields == nil {
		return "", "", false
	}
	for _, q := range m.fields.Requirements() {
		if q.Field == "metadata.name" || q.Field == "metadata.namespace" {
			continue
		}
		if v, ok := m.fields.RequiresExactMatch(q.Field); ok {
			return q.Field, v, true
		}
	}
	return "", "", false
}

// home is the set that the watch belongs to; made if need be.
func (s *watches) home(w *watcher) watcherSet {
	if key := w.match.exact; key != "" {
		if s.byKey == nil {
			s.byKey = map[string]watcherSet{}
		}
		return member(s.byKey, key)
	}
	if field, value, ok := w.match.trigger(); ok {
		if s.byField == nil {
			s.byField = map[string]map[string]watcherSet{}
		}
		if s.byField[field] == nil {
			s.byField[field] = map[string]watcherSet{}
		}
		return member(s.byField[field], value)
	}
	if s.all == nil {
		s.all = watcherSet{}
	}
	return s.all
}

func member(sets map[string]watcherSet, key string) watcherSet {
	if sets[key] == nil {
		sets[key] = watcherSet{}
	}
	return sets[key]
}

func (s *watches) add(w *watcher) { s.home(w)[w] = struct{}{} }

func (s *watches) remove(w *watcher) {
	delete(s.home(w), w)
	if key := w.match.exact; key != "" {
		if len(s.byKey[key]) == 0 {
			delete(s.byKey, key)
		}
	} else if field, value, ok := w.match.trigger(); ok && len(s.byField[field][value]) == 0 {
		delete(s.byField[field], value)
		if len(s.byField[field]) == 0 {
			delete(s.byField, field)
		}
	}
}

// read is the sequence number before which every watch has read all that concerns it;
// end where none has anything to read.
func (s *watches) read(end int64) int64 {
	least := func(set watcherSet) {
		for w := range set {
			if w.pending {
				end = min(end, w.seq)
			}
		}
	}
	least(s.all)
	for _, set := range s.byKey {
		least(set)
	}
	for _, values := range s.byField {
		for _, set := range values {
			least(set)
		}
	}
	return end
}

// offer tells those concerned of a change that is about to get the sequence number seq.
func (s *watches) offer(c *change, seq int64) {
	s.all.offer(c, seq)
	s.byKey[c.key].offer(c, seq)
	if len(s.byField) == 0 {
		return
	}
	now, before, err := c.fieldSets()
	for field, values := range s.byField {
		if err != nil { // each watch finds out for itself, and ends with it
			for _, set := range values {
				set.offer(c, seq)
			}
			continue
		}
		if now != nil {
			values[now[field]].offer(c, seq)
		}
		if before != nil && (now == nil || now[field] != before[field]) {
			values[before[field]].offer(c, seq)
		}
	}
}

// fieldSets are the selectable fields of the object after and before the change.
func (c *change) fieldSets() (now, before fields.Set, err error) {
	of := func(e *entry) (fields.Set, error) {
		if e == nil {
			return nil, nil
		}
		f, err := e.decode()
		if err != nil {
			return nil, err
		}
		return e.res.api.Fields(f.obj), nil
	}
	if now, err = of(c.cur); err != nil {
		return nil, nil, err
	}
	before, err = of(c.prev)
	return now, before, err
}

// offer marks a change for every watch of the set whose scope has it. One that was idle
// has nothing to read before it.
func (s watcherSet) offer(c *change, seq int64) {
	for w := range s {
		if !w.match.scope(c.key) {
			continue
		}
		if !w.pending {
			w.pending, w.seq = true, seq
		}
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}
