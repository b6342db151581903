// Package record is the machine-readable form of what was measured: one JSON line for each case,
// side and round. Every figure of docs/benchmarks.md is computed from such lines.
//
// Owns: the format, files of lines, medians. Must not: measure.
package record

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Sides of a comparison.
const (
	Skiff    = "skiff"
	Upstream = "upstream"
)

// Line is one measurement, or the reason why there is none.
type Line struct {
	Run   Run    `json:"run"`
	Side  string `json:"side"`
	Round int    `json:"round"`
	Stage string `json:"stage"`
	// Audit: the server kept an audit log at Metadata level.
	Audit bool `json:"audit"`
	// NotRun is why the case was not run; then there is no result.
	NotRun string `json:"not_run,omitempty"`
	Result
	// Costs are the largest parts of the server's CPU profile, in lines of round 0, whose other
	// figures are not comparable.
	Costs []Cost `json:"costs,omitempty"`
}

// Run is what all lines of one run share.
type Run struct {
	Started time.Time `json:"started"`
	Commit  string    `json:"commit"`
	Machine string    `json:"machine"`
	Load    float64   `json:"load"` // of the minute before
}

// Result is what a case measured.
type Result struct {
	Case       string  `json:"case"`
	Spec       string  `json:"spec,omitempty"`
	Ops        int     `json:"ops,omitempty"`
	Errors     int     `json:"errors,omitempty"`
	FirstError string  `json:"first_error,omitempty"`
	Seconds    float64 `json:"seconds,omitempty"` // of the operations
	Wall       float64 `json:"wall,omitempty"`    // of all that CPU is counted over
	P50ms      float64 `json:"p50_ms,omitempty"`
	P99ms      float64 `json:"p99_ms,omitempty"`
	MaxMs      float64 `json:"max_ms,omitempty"`
	Bytes      int64   `json:"bytes,omitempty"` // of bodies read
	// Extra has what only some cases have.
	Extra     map[string]float64 `json:"extra,omitempty"`
	ClientCPU float64            `json:"client_cpu_s,omitempty"`
	// OthersCPU is what neither servers nor client used: how disturbed the case was.
	OthersCPU float64          `json:"others_cpu_s"`
	Load      float64          `json:"load"`
	Servers   map[string]Usage `json:"servers,omitempty"`
}

// Usage is what one process used.
type Usage struct {
	CPU  float64 `json:"cpu_s"`
	PSS  float64 `json:"pss_mb"`      // at the end
	Peak float64 `json:"peak_rss_mb"` // during the case
}

// Cost is a part of a CPU profile.
type Cost struct {
	What  string  `json:"what"`
	Share float64 `json:"share"` // 0–1
}

// CPU of all servers together, in seconds.
func (r *Result) CPU() float64 {
	sum := 0.0
	for _, u := range r.Servers {
		sum += u.CPU
	}
	return sum
}

// PSS of all servers together, in MB.
func (r *Result) PSS() float64 {
	sum := 0.0
	for _, u := range r.Servers {
		sum += u.PSS
	}
	return sum
}

// Read reads a file of lines; one that does not exist has none.
func Read(path string) ([]Line, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read results: %w", err)
	}
	defer f.Close()
	var lines []Line
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for n := 1; in.Scan(); n++ {
		if strings.TrimSpace(in.Text()) == "" {
			continue
		}
		var l Line
		if err := json.Unmarshal(in.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", path, n, err)
		}
		lines = append(lines, l)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return lines, nil
}

// ReadDir reads all files of lines of a folder, in the order of their names.
func ReadDir(dir string) ([]Line, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	if err != nil {
		return nil, fmt.Errorf("list results: %w", err)
	}
	var all []Line
	for _, p := range paths {
		lines, err := Read(p)
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	return all, nil
}

// Write replaces the files of a folder by the lines, one file for each stage.
func Write(dir string, lines []Line) error {
	byStage := map[string][]Line{}
	for _, l := range lines {
		byStage[l.Stage] = append(byStage[l.Stage], l)
	}
	for stage, some := range byStage {
		var out strings.Builder
		for _, l := range some {
			text, err := json.Marshal(l)
			if err != nil {
				return fmt.Errorf("encode result of %s: %w", l.Case, err)
			}
			out.Write(append(text, '\n'))
		}
		path := filepath.Join(dir, stage+".jsonl")
		if err := os.WriteFile(path+".new", []byte(out.String()), 0o644); err != nil {
			return fmt.Errorf("write results: %w", err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			return fmt.Errorf("write results: %w", err)
		}
	}
	return nil
}

// Merge puts a new run in the place of what older ones said about its cases. Rounds and
// profiles are replaced apart, so that a run without profiles keeps the old ones.
func Merge(old, fresh []Line) []Line {
	type key struct {
		name    string
		profile bool
	}
	replaced := map[key]bool{}
	for _, l := range fresh {
		replaced[key{l.Case, l.Round == 0}] = true
	}
	var all []Line
	for _, l := range old {
		if !replaced[key{l.Case, l.Round == 0}] {
			all = append(all, l)
		}
	}
	return append(all, fresh...)
}

// Stats are the median of some values and their spread.
type Stats struct {
	Median, Low, High float64
	N                 int
}

// Summarize computes Stats; none of no values.
func Summarize(values []float64) Stats {
	if len(values) == 0 {
		return Stats{Median: math.NaN()}
	}
	v := slices.Clone(values)
	slices.Sort(v)
	mid := v[len(v)/2]
	if len(v)%2 == 0 {
		mid = (v[len(v)/2-1] + v[len(v)/2]) / 2
	}
	return Stats{Median: mid, Low: v[0], High: v[len(v)-1], N: len(v)}
}
