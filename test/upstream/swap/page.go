package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// writePage computes docs/interop.md from the results; a row without a result says so.
func writePage(results, out string) error {
	if results == "" || out == "" {
		return fmt.Errorf("-results and -out are required")
	}
	var b, notes bytes.Buffer
	fmt.Fprint(&b, pageHead)
	for _, r := range matrix() {
		text, err := os.ReadFile(filepath.Join(results, fmt.Sprintf("swap-%s.json", r.id())))
		if os.IsNotExist(err) {
			fmt.Fprintf(&b, "| %s | %s | %s | not run | | | |\n", r.id(), r.title, r.node)
			fmt.Fprintf(&notes, "\nRow %s, %s:\n- It has not been run.\n", r.id(), r.title)
			continue
		}
		if err != nil {
			return err
		}
		var res result
		if err := json.Unmarshal(text, &res); err != nil {
			return fmt.Errorf("swap-%s.json: %w", r.id(), err)
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", r.id(), res.Title, res.Node, verdict(res), steps(res), tests(res), res.Commit)
		if !res.Green {
			explain(&notes, res)
		}
	}
	if notes.Len() > 0 {
		fmt.Fprintf(&b, "\n## What is not green, and why\n%s", notes.String())
	}
	return os.WriteFile(out, b.Bytes(), 0o644)
}

const pageHead = `# Interoperability

Each row is a cluster in which some components are upstream's (Kubernetes v1.37.2, etcd v3.7.3, unmodified) and the
others skiff's. A row is green when the deployment flow (apply, rollout, the Service by cluster IP and name, scale, set
image, undo, delete leaves nothing) and each Conformance test of its list passed; the lists are
` + "`test/upstream/swap/rowN.txt`" + `. Which flags the components take is in [components.md](components.md). This page is computed by ` + "`make swap`" + ` from ` + "`test/upstream/results/swap-N.json`" + `.

| row | cluster | pods run on | | flow | Conformance | commit |
|---|---|---|---|---|---|---|
`

func verdict(r result) string {
	if r.Green {
		return "**green**"
	}
	return "red"
}

func steps(r result) string {
	passed := 0
	for _, s := range r.Flow {
		if s.Error == "" {
			passed++
		}
	}
	return fmt.Sprintf("%d of %d", passed, len(r.Flow))
}

func tests(r result) string {
	if len(r.Tests) == 0 {
		return "–"
	}
	passed := 0
	for _, t := range r.Tests {
		if t.Status == "passed" {
			passed++
		}
	}
	return fmt.Sprintf("%d of %d", passed, len(r.Tests))
}

func explain(b *bytes.Buffer, r result) {
	fmt.Fprintf(b, "\nRow %d%s, %s:\n", r.Row, r.Part, r.Title)
	said := false
	for _, s := range r.Flow {
		if s.Error != "" {
			fmt.Fprintf(b, "- flow, %s: %s\n", s.Name, oneLine(s.Error))
			said = true
		}
	}
	for _, t := range r.Tests {
		if t.Status != "passed" {
			fmt.Fprintf(b, "- %s: %s %s\n", t.Name, t.Status, oneLine(t.Reason))
			said = true
		}
	}
	if !said {
		fmt.Fprintf(b, "- %s\n", oneLine(r.Error))
	}
}

// oneLine shortens a message so that a table or list holds it.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	const most = 300
	if len(s) > most {
		s = s[:most] + "…"
	}
	return s
}
