package component

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type recorder struct {
	mu     sync.Mutex
	events []string
}

func (r *recorder) add(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, s)
}

func (r *recorder) got() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(slices.Clone(r.events), " ")
}

type fake struct {
	name    string
	r       *recorder
	readyIn time.Duration
	failIn  time.Duration
	stopIn  time.Duration
}

func (f fake) Run(ctx context.Context) error {
	f.r.add("+" + f.name)
	var fail <-chan time.Time
	if f.failIn > 0 {
		fail = time.After(f.failIn)
	}
	select {
	case <-ctx.Done():
		time.Sleep(f.stopIn)
		f.r.add("-" + f.name)
		return nil
	case <-fail:
		f.r.add("!" + f.name)
		return errors.New("boom " + f.name)
	}
}

func (f fake) WaitReady(ctx context.Context) error {
	select {
	case <-time.After(max(f.readyIn, time.Millisecond)):
		f.r.add("=" + f.name)
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestGroup(t *testing.T) {
	tests := []struct {
		name    string
		members []fake
		stopAt  time.Duration
		want    string
		err     string
	}{
		{"order and reverse", []fake{{name: "a", readyIn: time.Second}, {name: "b", readyIn: time.Second}, {name: "c"}}, 10 * time.Second,
			"+a =a +b =b +c =c -c -b -a", ""},
		{"slow stop holds the order", []fake{{name: "a"}, {name: "b", stopIn: time.Minute}}, 10 * time.Second,
			"+a =a +b =b -b -a", ""},
		{"failure stops the rest", []fake{{name: "a"}, {name: "b", failIn: 5 * time.Second}, {name: "c"}}, time.Hour,
			"+a =a +b =b +c =c !b -c -a", "running b: boom b"},
		{"failure before ready", []fake{{name: "a", readyIn: time.Hour, failIn: time.Second}, {name: "b"}}, time.Hour,
			"+a !a", "running a: boom a"},
		{"stop while starting", []fake{{name: "a"}, {name: "b", readyIn: time.Hour}, {name: "c"}}, time.Second,
			"+a =a +b -b -a", ""},
		{"first error wins", []fake{{name: "a", failIn: 2 * time.Second}, {name: "b", failIn: time.Second, stopIn: time.Second}}, time.Hour,
			"+a =a +b =b !b -a", "running b: boom b"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &recorder{}
				g := NewGroup(slog.New(slog.DiscardHandler))
				for _, m := range tt.members {
					m.r = r
					g.Add(Member{Name: m.name, Component: m})
				}
				ctx, cancel := context.WithTimeout(t.Context(), tt.stopAt)
				defer cancel()
				err := g.Run(ctx)
				if got := r.got(); got != tt.want {
					t.Errorf("events %q, want %q", got, tt.want)
				}
				if (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
					t.Errorf("error %v, want %q", err, tt.err)
				}
			})
		})
	}
}
