package main

import (
	"flag"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/skiff-k8s/skiff/test/bench/record"
)

func reportCommand(args []string) error {
	fs := flag.NewFlagSet("report", flag.ContinueOnError)
	results := fs.String("results", "test/bench/results", "folder of the JSON lines")
	page := fs.String("page", "docs/benchmarks.md", "the page to write")
	if err := fs.Parse(args); err != nil {
		return err
	}
	lines, err := record.ReadDir(*results)
	if err != nil {
		return err
	}
	if len(lines) == 0 {
		return fmt.Errorf("--results %s: no results there; make bench makes some", *results)
	}
	return os.WriteFile(*page, []byte(report(lines)), 0o644)
}

// report is the page.
func report(lines []record.Line) string {
	r := &reporter{lines: lines}
	var out strings.Builder
	out.WriteString(introduction)
	out.WriteString(r.runs())
	for _, t := range tables() {
		out.WriteString(r.table(t))
	}
	out.WriteString(r.notRun())
	out.WriteString(r.costs())
	out.WriteString(microbenchmarks)
	return out.String()
}

const introduction = `# Benchmarks

Computed by ` + "`go run ./test/bench report`" + ` from the JSON lines in test/bench/results; do not edit. ` + "`make bench`" + ` measures anew,
` + "`make bench CASE=regex`" + ` only the cases that the expression names (names stand in the tables). It needs root and the binaries of
` + "`make twins`" + `, and takes under 40 minutes (ROUNDS=n, 2 unless given; proxies have one round).

What is compared is **CPU of the server's processes per operation**, from /proc: on a machine where load generator and servers
share the cores, it holds where wall times do not. skiff is its control-plane process (etcd, API server, scheduler and controllers in
one); upstream is etcd, kube-apiserver, kube-controller-manager and kube-scheduler of 1.37.2 together, on plain HTTP between API server and etcd. Both
sides run by turns in one run, begin with an empty store, write an audit log at Metadata level, and serve the same load generator
(test/bench/apibench), an ordinary user with an RBAC role. Sizes and order are fixed. Each figure is the median of the rounds; the
spread behind ± is half of what lies between the lowest and the highest. The ratio is upstream's by skiff's: above 1, skiff needs less. Memory is PSS.

`

// reporter finds what the tables need.
type reporter struct{ lines []record.Line }

// measured are the comparable lines of a case on a side.
func (r *reporter) measured(name, side string) []record.Line {
	var out []record.Line
	for _, l := range r.lines {
		if l.Case == name && l.Side == side && l.Round > 0 && l.NotRun == "" {
			out = append(out, l)
		}
	}
	return out
}

func (r *reporter) stats(name, side string, f func(*record.Line) float64) record.Stats {
	var values []float64
	for _, l := range r.measured(name, side) {
		if v := f(&l); !math.IsNaN(v) {
			values = append(values, v)
		}
	}
	return record.Summarize(values)
}

// runs says when, on what and how quietly it was measured.
func (r *reporter) runs() string {
	type run struct {
		record.Run
		cases  map[string]bool
		others []float64
		errors int
	}
	var runs []*run
	for _, l := range r.lines {
		i := slices.IndexFunc(runs, func(have *run) bool { return have.Started.Equal(l.Run.Started) })
		if i < 0 {
			i = len(runs)
			runs = append(runs, &run{Run: l.Run, cases: map[string]bool{}})
		}
		runs[i].cases[l.Case] = true
		runs[i].errors += l.Errors
		if l.Round > 0 && l.Wall > 0 && l.Load > 0 {
			runs[i].others = append(runs[i].others, 100*l.OthersCPU/l.Wall)
		}
	}
	slices.SortFunc(runs, func(a, b *run) int { return a.Started.Compare(b.Started) })
	var out strings.Builder
	out.WriteString("| measured (UTC) | commit | machine | cases | load before | CPU of others meanwhile, % of a core | failed operations |\n|---|---|---|---|---|---|---|\n")
	for _, x := range runs {
		noise := record.Summarize(x.others)
		fmt.Fprintf(&out, "| %s | %s | %s | %d | %.1f | %s | %d |\n", x.Started.Format("2006-01-02 15:04"), x.Commit, x.Machine, len(x.cases), x.Load,
			noiseText(noise), x.errors)
	}
	out.WriteString("\nThe last column but one is median and highest over the cases: the closer to nothing, the quieter the machine was.\n")
	return out.String()
}

func noiseText(s record.Stats) string {
	if s.N == 0 {
		return "–"
	}
	return fmt.Sprintf("%.0f, %.0f", s.Median, s.High)
}

// notRun lists what has no figures, with the causes.
func (r *reporter) notRun() string {
	var out strings.Builder
	seen := map[string]bool{}
	for _, l := range r.lines {
		row := fmt.Sprintf("| `%s` | %s | %s |\n", l.Case, l.Side, strings.ReplaceAll(l.NotRun, "|", "\\|"))
		if l.NotRun == "" || seen[row] {
			continue
		}
		if len(seen) == 0 {
			out.WriteString("\n## Not run\n\n| case | side | cause |\n|---|---|---|\n")
		}
		seen[row] = true
		out.WriteString(row)
	}
	return out.String()
}

// costs are the largest parts of the profiles.
func (r *reporter) costs() string {
	var out strings.Builder
	out.WriteString("\n## What it costs\n\nThe three largest parts of the CPU profile of each case: of skiff's control plane, and of kube-apiserver (etcd and the managers are not in it); of the proxies where it is about Services; of skiff's node process (kubelet and runtime) and of upstream's kubelet (containerd is not in it) where it is about pods. Memory that an encoder allocates counts as encoding; what the kernel does for a process counts as system calls.\n\n| case | skiff | upstream |\n|---|---|---|\n")
	for _, s := range stages() {
		for _, c := range s.cases {
			sides := map[string]string{}
			for _, l := range r.lines {
				if l.Case == c.name && l.Round == 0 && len(l.Costs) > 0 {
					sides[l.Side] = costText(l.Costs)
				}
			}
			if len(sides) > 0 {
				fmt.Fprintf(&out, "| `%s` | %s | %s |\n", c.name, orDash(sides[record.Skiff]), orDash(sides[record.Upstream]))
			}
		}
	}
	return out.String()
}

func costText(costs []record.Cost) string {
	var parts []string
	for _, c := range costs[:min(3, len(costs))] {
		parts = append(parts, fmt.Sprintf("%s %.0f %%", c.What, 100*c.Share))
	}
	return strings.Join(parts, ", ")
}

func orDash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

const microbenchmarks = `
## Hot paths

` + "`make bench-micro`" + ` runs Go benchmarks of the hot paths (cacher, store, scheduler, API handlers, encoding, proxy, pod start) six times each and has
benchstat compare them with test/bench/results/baseline.txt; ` + "`make bench-micro-baseline`" + ` makes the present figures the baseline, to be committed with the
change that explains them. ` + "`MICRO=regex`" + ` chooses some. benchstat's last column is what counts: a delta with p below 0.05. Timings of the baseline
hold on the machine that made it only; allocations hold everywhere.
`
