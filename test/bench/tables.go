package main

import (
	"fmt"
	"math"
	"strings"

	"github.com/skiff-k8s/skiff/test/bench/record"
)

// table is a part of the page: the rows of some cases, with the same columns.
type table struct {
	title   string
	text    string
	cases   []string
	columns []column
}

// column is one figure of a case, shown for both sides and as ratio.
type column struct {
	title  string
	value  func(*record.Line) float64 // NaN: there is none
	format string
	// ratio: upstream's by skiff's is shown.
	ratio bool
	// more: bigger is better, so that the ratio is skiff's by upstream's.
	more bool
}

func tables() []table {
	cpuOp := column{title: "CPU per operation, ms", value: cpuPerOp, format: "%.3g", ratio: true}
	rate := column{title: "per second", value: perSecond, format: "%.0f"}
	p50 := column{title: "p50, ms", value: func(l *record.Line) float64 { return orNaN(l.P50ms) }, format: "%.3g"}
	p99 := column{title: "p99, ms", value: func(l *record.Line) float64 { return orNaN(l.P99ms) }, format: "%.3g"}
	cpu := column{title: "CPU, s", value: func(l *record.Line) float64 { return l.CPU() }, format: "%.3g", ratio: true}
	wall := column{title: "wall, s", value: func(l *record.Line) float64 { return l.Seconds }, format: "%.3g", ratio: true}
	pss := column{title: "PSS, MB", value: func(l *record.Line) float64 { return orNaN(l.PSS()) }, format: "%.0f", ratio: true}
	percent := column{title: "CPU, % of a core", value: func(l *record.Line) float64 { return 100 * l.CPU() / l.Wall }, format: "%.2g", ratio: true}
	podsPerCPU := column{title: "pods per CPU second", value: func(l *record.Line) float64 { return orNaN(float64(l.Ops) / l.CPU()) }, format: "%.0f", ratio: true, more: true}
	return []table{
		{title: "Start", text: "From the first exec until /readyz says ok. skiff's process holds scheduler and controllers too; of upstream only etcd and kube-apiserver have started by then.",
			cases: []string{"boot"}, columns: []column{wall, cpu}},
		{title: "At rest", text: "The control plane without nodes, 20 s after its start; then with 5,000 nodes and 10,000 pods that only exist as objects.",
			cases: []string{"idle", "memory-5000"}, columns: []column{pss, percent}},
		{title: "Requests", text: "Pods of 3 KB, 5,000 in the namespace; protobuf but where JSON is said. Operations of the watch cases are events delivered. The time of deletecollection is until the list is empty.",
			cases: names("api", "boot", "idle"), columns: []column{cpuOp, rate, p50, p99}},
		{title: "Scheduling", text: "Pods are created by 16 clients at once while the scheduler binds; CPU is of all processes, creation included. Nodes are made before, and their Leases renewed.",
			cases: []string{"bind-1000", "bind-5000"}, columns: []column{podsPerCPU, cpuOp, rate}},
		{title: "Deployment", text: "A Deployment of 3 replicas, created on a warm control plane with 1,000 nodes, until all three pods have a node.",
			cases: []string{"deploy"}, columns: []column{{title: "ms", value: func(l *record.Line) float64 { return 1000 * l.Seconds }, format: "%.0f", ratio: true}}},
		{title: "Services", text: "The proxy alone, against its own side's API server: upstream is kube-proxy in nftables mode with the nft that it runs. Wall time is from the proxy's exec until the first, a middle and the last Service connect, CPU until it rests.",
			cases: []string{"services-load"}, columns: []column{wall, cpu, {title: "peak PSS, MB", value: peak, format: "%.0f", ratio: true}, pss}},
		{title: "Change of an endpoint", text: "One of 30,000 endpoints, its Service's only one, becomes not ready or ready again. The time is from the request to the API server until connections show it; CPU is of the proxy, without what it uses in the same time at rest.",
			cases: []string{"services-change"}, columns: []column{cpuOp, p50, {title: "longest, ms", value: func(l *record.Line) float64 { return orNaN(l.MaxMs) }, format: "%.3g", ratio: true}}},
		{title: "One node", text: "`skiff up` as users run it, without an audit log: control plane and node process together.",
			cases: []string{"up", "first-pod"}, columns: []column{wall, cpu, pss}},
		{title: "", cases: []string{"node-idle"}, columns: []column{pss, percent}},
		{title: "Pod start", text: "From create through the API to Running, with the image at hand; CPU is of control plane and node process with the programs that they ran. To be compared with kubelet and containerd.",
			cases: []string{"pod-start", "pods-50"}, columns: []column{wall, cpuOp, p50, {title: "longest, ms", value: func(l *record.Line) float64 { return orNaN(l.MaxMs) }, format: "%.0f"}}},
		{title: "Memory of pods", text: "A full node of 110 pods with a container each: the PSS of the processes that the runtime keeps for a container (skiff's monitor, containerd's shim), and what the processes that run pods (kubelet and runtime; skiff's proxy and DNS are in the same) have grown, both by pod. The containers' own memory, and upstream's pause, are not counted.",
			cases: []string{"pods-110"}, columns: []column{extraKB("kept per pod, kB", "keepers_mb"), extraKB("growth per pod, kB", "growth_mb")}},
	}
}

// extraKB is what only some cases have, in kB.
func extraKB(title, key string) column {
	return column{title: title, format: "%.0f", ratio: true, value: func(l *record.Line) float64 { return orNaN(1024 * l.Extra[key]) }}
}

// names are the cases of a stage but some.
func names(stageName string, but ...string) []string {
	var out []string
	for _, s := range stages() {
		for _, c := range s.cases {
			if s.name == stageName && !strings.Contains(" "+strings.Join(but, " ")+" ", " "+c.name+" ") {
				out = append(out, c.name)
			}
		}
	}
	return out
}

func titleOf(name string) string {
	for _, s := range stages() {
		for _, c := range s.cases {
			if c.name == name {
				return c.title
			}
		}
	}
	return name
}

func orNaN(v float64) float64 {
	if v == 0 || math.IsInf(v, 0) {
		return math.NaN()
	}
	return v
}

func cpuPerOp(l *record.Line) float64  { return orNaN(1000 * l.CPU() / float64(l.Ops)) }
func perSecond(l *record.Line) float64 { return orNaN(float64(l.Ops) / l.Seconds) }

func peak(l *record.Line) float64 {
	sum := 0.0
	for _, u := range l.Servers {
		sum += u.Peak
	}
	return orNaN(sum)
}

// table writes one; rows without figures of either side are left out.
func (r *reporter) table(t table) string {
	var rows strings.Builder
	for _, name := range t.cases {
		var row strings.Builder
		any := false
		for _, c := range t.columns {
			own, theirs := r.stats(name, record.Skiff, c.value), r.stats(name, record.Upstream, c.value)
			any = any || own.N > 0 || theirs.N > 0
			fmt.Fprintf(&row, " %s | %s |", c.text(own), c.text(theirs))
			if c.ratio {
				fmt.Fprintf(&row, " %s |", c.times(own, theirs))
			}
		}
		if any {
			fmt.Fprintf(&rows, "| %s | `%s` |%s\n", titleOf(name), name, row.String())
		}
	}
	if rows.Len() == 0 {
		return ""
	}
	var out strings.Builder
	if t.title != "" {
		fmt.Fprintf(&out, "\n## %s\n\n%s\n", t.title, t.text)
	}
	out.WriteString("\n| | case |")
	rule := "|---|---|"
	for _, c := range t.columns {
		fmt.Fprintf(&out, " %s: skiff | upstream |", c.title)
		rule += "---|---|"
		if c.ratio {
			out.WriteString(" ratio |")
			rule += "---|"
		}
	}
	return out.String() + "\n" + rule + "\n" + rows.String()
}

func (c column) text(s record.Stats) string {
	if s.N == 0 {
		return "–"
	}
	text := fmt.Sprintf(c.format, s.Median)
	if spread := (s.High - s.Low) / 2; s.N > 1 && spread > 0 {
		text += fmt.Sprintf(" ± %.2g", spread)
	}
	return text
}

func (c column) times(own, theirs record.Stats) string {
	if own.N == 0 || theirs.N == 0 {
		return "–"
	}
	ratio := theirs.Median / own.Median
	if c.more {
		ratio = 1 / ratio
	}
	if math.IsNaN(ratio) || math.IsInf(ratio, 0) {
		return "–"
	}
	return fmt.Sprintf("**%.3g**", ratio)
}
