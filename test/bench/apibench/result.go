package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/skiff-k8s/skiff/test/bench/procfs"
	"github.com/skiff-k8s/skiff/test/bench/record"
)

// result is one output line.
type result struct{ record.Result }

func (r *result) print(w io.Writer) error {
	out, err := json.Marshal(r.Result)
	if err != nil {
		return fmt.Errorf("encode result: %w", err)
	}
	_, err = fmt.Fprintln(w, string(out))
	return err
}

func (r *result) fail(err error) {
	r.Errors++
	if r.FirstError == "" {
		r.FirstError = err.Error()
	}
}

func (r *result) extra(key string, v float64) {
	if r.Extra == nil {
		r.Extra = map[string]float64{}
	}
	r.Extra[key] = round(v)
}

// setLatencies fills the quantiles from lat, which it sorts.
func (r *result) setLatencies(lat []time.Duration) {
	if len(lat) == 0 {
		return
	}
	slices.Sort(lat)
	at := func(q float64) float64 {
		return round(float64(lat[min(len(lat)-1, int(q*float64(len(lat))))]) / 1e6)
	}
	r.P50ms, r.P99ms, r.MaxMs = at(0.50), at(0.99), at(1)
}

func round(f float64) float64 { return math.Round(f*1000) / 1000 }

// proc is a server process to account.
type proc struct {
	name string
	pid  int
}

func parsePids(s string) ([]proc, error) {
	if s == "" {
		return nil, nil
	}
	var out []proc
	for _, part := range strings.Split(s, ",") {
		name, num, ok := strings.Cut(part, "=")
		if !ok {
			name, num = "server", part
		}
		pid, err := strconv.Atoi(num)
		if err != nil {
			return nil, fmt.Errorf("--pid %s: %w", part, err)
		}
		out = append(out, proc{name, pid})
	}
	return out, nil
}

// measure runs one case and accounts it. A case that sets Seconds itself keeps its own time;
// otherwise it is the wall clock of the call.
func (m *machine) measure(ctx context.Context, b *bench, c *caseSpec) (*result, error) {
	r := &result{record.Result{Case: c.id, Spec: c.spec}}
	load, err := procfs.Load()
	if err != nil {
		return nil, err
	}
	r.Load = load
	before := map[string]float64{}
	for _, p := range m.procs {
		if err := procfs.ResetPeak(p.pid); err != nil {
			return nil, err
		}
		if before[p.name], err = procfs.CPU(p.pid); err != nil {
			return nil, err
		}
	}
	self, err := procfs.CPU(os.Getpid())
	if err != nil {
		return nil, err
	}
	machine, err := procfs.Busy()
	if err != nil {
		return nil, err
	}
	renewals := m.nodes.renewals()
	start := time.Now()
	c.do(ctx, b, c.params, r)
	wall := time.Since(start).Seconds()
	if r.Seconds == 0 {
		r.Seconds = wall
	}
	r.Seconds, r.Wall = round(r.Seconds), round(wall)
	if swept := m.nodes.renewals() - renewals; swept > 0 {
		r.extra("renewals", float64(swept))
	}
	return r, m.account(r, before, self, machine)
}

// account fills in what the processes used since the samples given.
func (m *machine) account(r *result, before map[string]float64, self, machine float64) error {
	busy, err := procfs.Busy()
	if err != nil {
		return err
	}
	mine, err := procfs.CPU(os.Getpid())
	if err != nil {
		return err
	}
	r.ClientCPU = round(mine - self)
	others := busy - machine - r.ClientCPU
	r.Servers = map[string]record.Usage{}
	for _, p := range m.procs {
		cpu, err := procfs.CPU(p.pid)
		if err != nil {
			return fmt.Errorf("%s ended during the case: %w", p.name, err)
		}
		u := record.Usage{CPU: round(cpu - before[p.name])}
		if u.PSS, err = procfs.PSS(p.pid); err != nil {
			return err
		}
		if u.Peak, err = procfs.Peak(p.pid); err != nil {
			return err
		}
		u.PSS, u.Peak = round(u.PSS), round(u.Peak)
		r.Servers[p.name] = u
		others -= u.CPU
	}
	r.OthersCPU = round(max(0, others))
	return nil
}

// run calls op n times from c workers and fills r. Failed calls are counted as errors and are
// in neither Ops nor the latencies.
func run(r *result, n, c int, op func(worker, i int) (bytes int64, err error)) {
	var next, bytes atomic.Int64
	var mu sync.Mutex
	var wg sync.WaitGroup
	lat := make([]time.Duration, 0, n)
	start := time.Now()
	for w := range c {
		wg.Go(func() {
			mine := make([]time.Duration, 0, n/c+1)
			for {
				i := int(next.Add(1)) - 1
				if i >= n {
					break
				}
				t := time.Now()
				size, err := op(w, i)
				if err != nil {
					mu.Lock()
					r.fail(err)
					mu.Unlock()
					continue
				}
				mine = append(mine, time.Since(t))
				bytes.Add(size)
			}
			mu.Lock()
			lat = append(lat, mine...)
			mu.Unlock()
		})
	}
	wg.Wait()
	r.Seconds = time.Since(start).Seconds()
	r.Ops = len(lat)
	r.Bytes = bytes.Load()
	r.setLatencies(lat)
}
