package recording

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
)

// Difference is one place where an answer is not the recorded one.
type Difference struct {
	Request, Path string
	Got, Want     any
}

// absent stands for a value that is not there.
type absent struct{}

func (absent) String() string { return "(none)" }

func (d Difference) String() string {
	return fmt.Sprintf("%s: %s\n  got  %s\n  want %s", d.Request, d.Path, show(d.Got), show(d.Want))
}

func show(v any) string {
	if a, ok := v.(absent); ok {
		return a.String()
	}
	const limit = 1500
	s := string(compact(v))
	if len(s) > limit {
		s = s[:limit] + "…"
	}
	return s
}

// Diff is where got differs from want.
func Diff(got, want Recording) []Difference {
	var out []Difference
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return append(out, Difference{want[i].Request, "request", absent{}, "an answer"})
		case i >= len(want):
			return append(out, Difference{got[i].Request, "request", "an answer", absent{}})
		case got[i].Request != want[i].Request:
			return append(out, Difference{got[i].Request, "request", got[i].Request, want[i].Request})
		}
		out = append(out, got[i].differences(want[i])...)
	}
	return out
}

func (a *Answer) differences(want *Answer) []Difference {
	var out []Difference
	add := func(path string, g, w any) { out = append(out, Difference{a.Request, path, g, w}) }
	if a.Status != want.Status {
		add("status", a.Status, want.Status)
	}
	for _, k := range slices.Sorted(maps.Keys(union(a.Header, want.Header))) {
		if !slices.Equal(a.Header[k], want.Header[k]) {
			add("header."+k, a.Header[k], want.Header[k])
		}
	}
	walk("body", a.Body, want.Body, add)
	return out
}

func walk(path string, got, want any, add func(string, any, any)) {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			break
		}
		for _, k := range slices.Sorted(maps.Keys(union(g, w))) {
			gv, gok := g[k]
			wv, wok := w[k]
			switch {
			case !gok:
				add(path+"."+k, absent{}, wv)
			case !wok:
				add(path+"."+k, gv, absent{})
			default:
				walk(path+"."+k, gv, wv, add)
			}
		}
		return
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			break
		}
		for i := range w {
			walk(fmt.Sprintf("%s.%d", path, i), g[i], w[i], add)
		}
		return
	}
	if !reflect.DeepEqual(got, want) {
		add(path, got, want)
	}
}

func union[V any](a, b map[string]V) map[string]V {
	out := maps.Clone(a)
	if out == nil {
		out = map[string]V{}
	}
	maps.Copy(out, b)
	return out
}

// Deviation is a difference that is meant.
type Deviation struct {
	Script, Request, Path, Reason string
	line                          int
	used                          bool
}

// Deviations is the list of them.
type Deviations []*Deviation

// ParseDeviations reads a list, one a line: script | request | path | reason. A path means
// all that is below it too.
func ParseDeviations(text string) (Deviations, error) {
	var out Deviations
	line := 0
	for s := range strings.Lines(text) {
		line++
		if s = strings.TrimSpace(s); s == "" || strings.HasPrefix(s, "#") {
			continue
		}
		f := strings.Split(s, " | ")
		if len(f) != 4 || strings.TrimSpace(f[3]) == "" {
			return nil, fmt.Errorf("line %d: want script | request | path | reason", line)
		}
		out = append(out, &Deviation{Script: f[0], Request: f[1], Path: f[2], Reason: f[3], line: line})
	}
	return out, nil
}

// Meant takes away the differences of a script that are in the list, and marks what it used.
func (l Deviations) Meant(script string, ds []Difference) (left []Difference, requests int) {
	meant := map[string]bool{}
	for _, d := range ds {
		i := slices.IndexFunc(l, func(e *Deviation) bool {
			return e.Script == script && e.Request == d.Request && (d.Path == e.Path || strings.HasPrefix(d.Path, e.Path+"."))
		})
		if i < 0 {
			left = append(left, d)
			continue
		}
		l[i].used, meant[d.Request] = true, true
	}
	return left, len(meant)
}

// Unused are the entries that met no difference.
func (l Deviations) Unused() []string {
	var out []string
	for _, e := range l {
		if !e.used {
			out = append(out, fmt.Sprintf("line %d: %s | %s | %s", e.line, e.Script, e.Request, e.Path))
		}
	}
	return out
}
