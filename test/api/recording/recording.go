// Package recording keeps what an API server answered to a script, in a form in which the
// answers of two servers can be compared: what each server chooses freely (uids, resource
// versions, times, generated names, allocated addresses) is replaced by symbols, the same
// value by the same symbol.
//
// Owns: normalising, the format of the files, finding differences, the list of those that
// are meant. Must not: talk to a server or know the script language.
package recording

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
)

// Answer is what a server said to one request, or one event of a watch.
type Answer struct {
	// Request names what was answered: the line of the script.
	Request string
	// Status is the HTTP status, for an event of a watch its type.
	Status string
	// Header holds the headers that are compared.
	Header map[string][]string
	// Body is the decoded body, or its text.
	Body any
}

// Recording is all answers to one script, in order.
type Recording []*Answer

// Add appends an answer under a name of its own.
func (r *Recording) Add(a *Answer) {
	name := a.Request
	for n := 2; slices.ContainsFunc(*r, func(o *Answer) bool { return o.Request == a.Request }); n++ {
		a.Request = name + " #" + strconv.Itoa(n)
	}
	*r = append(*r, a)
}

// Format writes a recording as a txtar archive, an answer a file: its status, its
// headers, an empty line, its body.
func (r Recording) Format() []byte {
	ar := &txtar.Archive{}
	for _, a := range r {
		var b bytes.Buffer
		b.WriteString(a.Status + "\n")
		for _, k := range slices.Sorted(maps.Keys(a.Header)) {
			for _, v := range a.Header[k] {
				fmt.Fprintf(&b, "%s: %s\n", k, v)
			}
		}
		if a.Body != nil {
			b.WriteByte('\n')
			write(&b, "", a.Body)
			b.WriteByte('\n')
		}
		ar.Files = append(ar.Files, txtar.File{Name: a.Request, Data: b.Bytes()})
	}
	return txtar.Format(ar)
}

// Parse reads what Format wrote.
func Parse(data []byte) (Recording, error) {
	var r Recording
	for _, f := range txtar.Parse(data).Files {
		a := &Answer{Request: f.Name, Header: map[string][]string{}}
		head, body, _ := strings.Cut(string(f.Data), "\n\n")
		for i, line := range strings.Split(strings.TrimSuffix(head, "\n"), "\n") {
			if i == 0 {
				a.Status = line
				continue
			}
			k, v, ok := strings.Cut(line, ": ")
			if !ok {
				return nil, fmt.Errorf("%s: %q is not a header", f.Name, line)
			}
			a.Header[k] = append(a.Header[k], v)
		}
		if body != "" {
			if err := json.Unmarshal([]byte(body), &a.Body); err != nil {
				return nil, fmt.Errorf("%s: body: %w", f.Name, err)
			}
		}
		r = append(r, a)
	}
	return r, nil
}

// width is how long a value may be to stand in one line.
const width = 120

// write prints JSON with sorted keys, small values in one line.
func write(b *bytes.Buffer, indent string, v any) {
	flat := compact(v)
	if len(indent)+len(flat) <= width {
		b.Write(flat)
		return
	}
	deeper := indent + " "
	switch t := v.(type) {
	case map[string]any:
		b.WriteString("{\n")
		for i, k := range slices.Sorted(maps.Keys(t)) {
			if i > 0 {
				b.WriteString(",\n")
			}
			b.WriteString(deeper)
			b.Write(compact(k))
			b.WriteString(": ")
			write(b, deeper, t[k])
		}
		b.WriteString("}")
	case []any:
		b.WriteString("[\n")
		for i, e := range t {
			if i > 0 {
				b.WriteString(",\n")
			}
			b.WriteString(deeper)
			write(b, deeper, e)
		}
		b.WriteString("]")
	default:
		b.Write(flat)
	}
}

func compact(v any) []byte {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return []byte(strconv.Quote(err.Error()))
	}
	return bytes.TrimSpace(b.Bytes())
}
