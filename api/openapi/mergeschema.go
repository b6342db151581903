package openapi

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"

	"sigs.k8s.io/structured-merge-diff/v6/schema"
)

// The form of a merge schema on disk: a table of strings (count, then length and bytes of
// each), the number of types, then each type as its name and atom. Numbers are uvarints,
// strings are indexes into the table. It decodes ten times faster than JSON and, unlike a
// Go literal, weighs nothing until it is needed.

// Bits that say which parts of an atom, reference or field follow.
const (
	hasScalar = 1 << iota
	hasList
	hasMap
)

const (
	refNamed = 1 << iota
	refRelationship
	refNullable
)

type schemaWriter struct {
	index map[string]uint64
	table []string
	out   []byte
	err   error
}

// EncodeSchema writes types in the form that DecodeSchema reads.
func EncodeSchema(types []schema.TypeDef) ([]byte, error) {
	w := &schemaWriter{index: map[string]uint64{}}
	w.number(uint64(len(types)))
	for i := range types {
		w.text(types[i].Name)
		w.atom(&types[i].Atom)
	}
	if w.err != nil {
		return nil, w.err
	}
	head := binary.AppendUvarint(nil, uint64(len(w.table)))
	for _, s := range w.table {
		head = append(binary.AppendUvarint(head, uint64(len(s))), s...)
	}
	return append(head, w.out...), nil
}

func (w *schemaWriter) number(n uint64) { w.out = binary.AppendUvarint(w.out, n) }

func (w *schemaWriter) text(s string) {
	i, ok := w.index[s]
	if !ok {
		i = uint64(len(w.table))
		w.index[s] = i
		w.table = append(w.table, s)
	}
	w.number(i)
}

func (w *schemaWriter) atom(a *schema.Atom) {
	var bits uint64
	if a.Scalar != nil {
		bits |= hasScalar
	}
	if a.List != nil {
		bits |= hasList
	}
	if a.Map != nil {
		bits |= hasMap
	}
	w.number(bits)
	if a.Scalar != nil {
		w.text(string(*a.Scalar))
	}
	if l := a.List; l != nil {
		w.reference(&l.ElementType)
		w.text(string(l.ElementRelationship))
		w.number(uint64(len(l.Keys)))
		for _, k := range l.Keys {
			w.text(k)
		}
	}
	if m := a.Map; m != nil {
		if len(m.Unions) > 0 {
			w.err = errors.New("unions are not supported")
		}
		w.number(uint64(len(m.Fields)))
		for i := range m.Fields {
			w.text(m.Fields[i].Name)
			w.reference(&m.Fields[i].Type)
			w.value(m.Fields[i].Default)
		}
		w.reference(&m.ElementType)
		w.text(string(m.ElementRelationship))
	}
}

func (w *schemaWriter) reference(r *schema.TypeRef) {
	var bits uint64
	if r.NamedType != nil {
		bits |= refNamed
	}
	if r.ElementRelationship != nil {
		bits |= refRelationship
	}
	if r.Nullable {
		bits |= refNullable
	}
	w.number(bits)
	if r.NamedType != nil {
		w.text(*r.NamedType)
	} else {
		w.atom(&r.Inlined)
	}
	if r.ElementRelationship != nil {
		w.text(string(*r.ElementRelationship))
	}
}

// value writes a default as JSON, none as an empty string.
func (w *schemaWriter) value(v any) {
	if v == nil {
		w.text("")
		return
	}
	text, err := json.Marshal(v)
	if err != nil {
		w.err = fmt.Errorf("encode default %v: %w", v, err)
	}
	w.text(string(text))
}

type schemaReader struct {
	table []string
	in    []byte
	err   error
}

// DecodeSchema reads what EncodeSchema wrote.
func DecodeSchema(data []byte) ([]schema.TypeDef, error) {
	r := &schemaReader{in: data}
	r.table = make([]string, r.count())
	for i := range r.table {
		n := r.count()
		if r.err != nil {
			return nil, r.err
		}
		r.table[i], r.in = string(r.in[:n]), r.in[n:]
	}
	types := make([]schema.TypeDef, r.count())
	for i := range types {
		types[i].Name = r.text()
		r.atom(&types[i].Atom)
	}
	if r.err == nil && len(r.in) > 0 {
		r.err = fmt.Errorf("%d bytes follow the last type", len(r.in))
	}
	return types, r.err
}

func (r *schemaReader) number() uint64 {
	n, size := binary.Uvarint(r.in)
	if size <= 0 {
		r.fail("a number is cut off")
		return 0
	}
	r.in = r.in[size:]
	return n
}

// count is a number of things that each take at least a byte: more than are left is an error.
func (r *schemaReader) count() int {
	n := r.number()
	if n > uint64(len(r.in)) {
		r.fail("a count is too large")
		return 0
	}
	return int(n)
}

func (r *schemaReader) fail(msg string) {
	if r.err == nil {
		r.err = errors.New(msg)
	}
	r.in = nil // every further read ends at once
}

func (r *schemaReader) text() string {
	i := r.number()
	if i >= uint64(len(r.table)) {
		r.fail("a string is not in the table")
		return ""
	}
	return r.table[i]
}

func (r *schemaReader) atom(a *schema.Atom) {
	bits := r.number()
	if bits&hasScalar != 0 {
		s := schema.Scalar(r.text())
		a.Scalar = &s
	}
	if bits&hasList != 0 {
		l := &schema.List{}
		r.reference(&l.ElementType)
		l.ElementRelationship = schema.ElementRelationship(r.text())
		if n := r.count(); n > 0 {
			l.Keys = make([]string, n)
			for i := range l.Keys {
				l.Keys[i] = r.text()
			}
		}
		a.List = l
	}
	if bits&hasMap != 0 {
		m := &schema.Map{}
		if n := r.count(); n > 0 {
			m.Fields = make([]schema.StructField, n)
			for i := range m.Fields {
				m.Fields[i].Name = r.text()
				r.reference(&m.Fields[i].Type)
				m.Fields[i].Default = r.value()
			}
		}
		r.reference(&m.ElementType)
		m.ElementRelationship = schema.ElementRelationship(r.text())
		a.Map = m
	}
}

func (r *schemaReader) reference(t *schema.TypeRef) {
	if r.err != nil {
		return
	}
	bits := r.number()
	if bits&refNamed != 0 {
		name := r.text()
		t.NamedType = &name
	} else {
		r.atom(&t.Inlined)
	}
	if bits&refRelationship != 0 {
		e := schema.ElementRelationship(r.text())
		t.ElementRelationship = &e
	}
	t.Nullable = bits&refNullable != 0
}

func (r *schemaReader) value() any {
	text := r.text()
	if text == "" {
		return nil
	}
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		r.fail("a default is not JSON")
		return nil
	}
	return v
}
