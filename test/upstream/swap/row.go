package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

// row is one combination of components.
type row struct {
	n int
	// part tells rows of one number apart: "-kine".
	part  string
	title string
	// upstream and skiff are whose components run; node is whose runs the pods.
	upstream, skiff, node string
	// start brings the cluster up; it returns when pods can run.
	start func(context.Context, *lab) error
	// check is run instead of the flow and the tests where the row is about something else.
	check func(context.Context, *lab) ([]stepResult, error)
}

// id is the number with the part: what -row takes, and what names the files of results.
func (r *row) id() string { return strconv.Itoa(r.n) + r.part }

// result is what results/swap-N.json holds.
type result struct {
	Row      int          `json:"row"`
	Part     string       `json:"part,omitempty"`
	Title    string       `json:"title"`
	Upstream string       `json:"upstream"`
	Skiff    string       `json:"skiff"`
	Node     string       `json:"node"`
	Commit   string       `json:"commit"`
	Date     string       `json:"date"`
	Green    bool         `json:"green"`
	Error    string       `json:"error,omitempty"`
	Flow     []stepResult `json:"flow"`
	Tests    []testResult `json:"tests,omitempty"`
}

// runInside runs a row in the namespaces that runRows has made.
func runInside(ctx context.Context, o options, id string) error {
	var r row
	for _, candidate := range matrix() {
		if candidate.id() == id {
			r = candidate
		}
	}
	if r.start == nil {
		return fmt.Errorf("there is no row %s", id)
	}
	if err := prepareNamespace(); err != nil {
		return err
	}
	// Sockets below it must fit into 107 bytes.
	work, err := os.MkdirTemp(o.scratch, "sw"+id+"-")
	if err != nil {
		return err
	}
	unmount, err := inMemoryIfFull(work)
	if err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	l := &lab{options: o, dir: filepath.Join(work, "d"), work: filepath.Join(work, "w"), fail: fail}
	if err := os.MkdirAll(l.work, 0o755); err != nil {
		return err
	}
	fmt.Printf("row %s: %s\n", r.id(), r.title)
	res := result{Row: r.n, Part: r.part, Title: r.title, Upstream: r.upstream, Skiff: r.skiff, Node: r.node, Commit: o.commit, Date: time.Now().UTC().Format("2006-01-02 15:04")}
	err = l.measure(ctx, r, &res)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(err, cause) {
		err = errors.Join(err, cause)
	}
	res.Green = err == nil
	if err != nil {
		res.Error = err.Error()
	}
	if cerr := l.close(err != nil); cerr != nil {
		err = errors.Join(err, fmt.Errorf("clean up: %w", cerr))
	}
	err = errors.Join(err, unmount(), os.RemoveAll(work))
	if o.flowOnly {
		return err
	}
	return errors.Join(err, res.save(o.results))
}

func (l *lab) measure(ctx context.Context, r row, res *result) error {
	if err := r.start(ctx, l); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	var err error
	if r.check != nil {
		res.Flow, err = r.check(ctx, l)
		return err
	}
	var flowErr, testErr error
	res.Flow, flowErr = l.flow(ctx)
	if !l.flowOnly {
		res.Tests, testErr = l.suite(ctx, filepath.Join(l.lists, "row"+strconv.Itoa(r.n)+".txt"))
	}
	return errors.Join(flowErr, testErr)
}

func (r *result) save(dir string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, fmt.Sprintf("swap-%d%s.json", r.Row, r.Part)), append(text, '\n'), 0o644)
}
