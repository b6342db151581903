package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// result is one line of the results file: one thing that was compared.
type result struct {
	// Check is read, list, unchanged, put, watch, fill, allocate, token or kinds.
	Check string `json:"check"`
	// Writer wrote what Reader was asked for.
	Writer string   `json:"writer,omitempty"`
	Reader string   `json:"reader,omitempty"`
	Kind   string   `json:"kind"`
	Object string   `json:"object,omitempty"`
	OK     bool     `json:"ok"`
	Diffs  []string `json:"diffs,omitempty"`
	// Meant are differences that deviations.txt gives a reason for.
	Meant []string `json:"meant,omitempty"`
}

// deviation is a difference that is meant.
type deviation struct {
	check, kind, diff *regexp.Regexp
	used              bool
}

type report struct {
	results    []result
	deviations []*deviation
}

// readDeviations: lines of check, kind and the beginning of a difference, as regular
// expressions, behind a comment line that says why.
func readDeviations(path string) ([]*deviation, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []*deviation
	for s := bufio.NewScanner(f); s.Scan(); {
		line := strings.TrimSpace(s.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Fields(line)
		if len(parts) != 3 {
			return nil, fmt.Errorf("%s: %q: want check, kind, difference", path, line)
		}
		d := &deviation{}
		for i, re := range []**regexp.Regexp{&d.check, &d.kind, &d.diff} {
			if *re, err = regexp.Compile("^(?:" + parts[i] + ")"); err != nil {
				return nil, fmt.Errorf("%s: %w", path, err)
			}
		}
		out = append(out, d)
	}
	return out, nil
}

func (r *report) add(res result, diffs ...string) {
	for _, d := range diffs {
		i := slices.IndexFunc(r.deviations, func(v *deviation) bool {
			return v.check.MatchString(res.Check) && v.kind.MatchString(res.Kind) && v.diff.MatchString(d)
		})
		if i < 0 {
			res.Diffs = append(res.Diffs, d)
			continue
		}
		r.deviations[i].used = true
		res.Meant = append(res.Meant, d)
	}
	res.OK = len(res.Diffs) == 0
	r.results = append(r.results, res)
	for _, d := range res.Diffs {
		fmt.Printf("DIFF %s %s>%s %s %s: %.600s\n", res.Check, res.Writer, res.Reader, res.Kind, res.Object, d)
	}
}

// fail records a request that should have worked.
func (r *report) fail(res result, err error) { r.add(res, "error: "+err.Error()) }

func (r *report) write(path string) (failed int, err error) {
	f, err := os.Create(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	type sum struct{ ok, failed, meant int }
	sums := map[string]*sum{}
	var names []string
	e := json.NewEncoder(f)
	for _, res := range r.results {
		if err := e.Encode(res); err != nil {
			return 0, err
		}
		name := res.Check
		if res.Writer != "" {
			name += " " + res.Writer + ">" + res.Reader
		}
		if sums[name] == nil {
			sums[name] = &sum{}
			names = append(names, name)
		}
		if res.OK {
			sums[name].ok++
		} else {
			sums[name].failed++
			failed++
		}
		sums[name].meant += len(res.Meant)
	}
	for _, n := range names {
		fmt.Printf("%-28s %5d equal %4d different (%d meant)\n", n, sums[n].ok, sums[n].failed, sums[n].meant)
	}
	return failed, f.Sync()
}

// differ lists where b differs from a.
func differ(path string, a, b any) (diffs []string) {
	switch x := a.(type) {
	case object:
		y, ok := b.(object)
		if !ok {
			return []string{fmt.Sprintf("%s: %s, then %s", path, short(a), short(b))}
		}
		var keys []string
		for k := range x {
			keys = append(keys, k)
		}
		for k := range y {
			if _, ok := x[k]; !ok {
				keys = append(keys, k)
			}
		}
		slices.Sort(keys)
		for _, k := range keys {
			v, inA := x[k]
			w, inB := y[k]
			switch {
			case !inB:
				diffs = append(diffs, fmt.Sprintf("%s.%s: %s, then missing", path, k, short(v)))
			case !inA:
				diffs = append(diffs, fmt.Sprintf("%s.%s: missing, then %s", path, k, short(w)))
			default:
				diffs = append(diffs, differ(path+"."+k, v, w)...)
			}
		}
	case []any:
		y, ok := b.([]any)
		if !ok || len(x) != len(y) {
			return []string{fmt.Sprintf("%s: %s, then %s", path, short(a), short(b))}
		}
		for i := range x {
			diffs = append(diffs, differ(fmt.Sprintf("%s[%d]", path, i), x[i], y[i])...)
		}
	default:
		if a != b {
			return []string{fmt.Sprintf("%s: %s, then %s", path, short(a), short(b))}
		}
	}
	return diffs
}

func short(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%.200s", text)
}
