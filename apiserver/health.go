package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Check is one part of the server's health. Run is called for each probe and must be
// quick; it honours its context.
type Check struct {
	Name string
	Run  func(ctx context.Context) error
	// Live: it counts for /livez too, where failing means that only a restart helps.
	Live bool
}

// checkTimeout bounds one probe.
const checkTimeout = 5 * time.Second

// health serves /healthz, /livez and /readyz with ?verbose, ?exclude= and a path for each check.
type health struct {
	checks []Check
	log    *slog.Logger
}

// storeCheck asks the store through the caches that tell: it answers, and they follow it.
// Names, and that the first counts for /livez, are upstream's.
func storeCheck(caches any) []Check {
	c, ok := caches.(interface {
		Ready() <-chan struct{}
		Lag(ctx context.Context) (int64, error)
		Follows(ctx context.Context) error
	})
	if !ok {
		return nil
	}
	answers := func(ctx context.Context) error {
		_, err := c.Lag(ctx)
		return err
	}
	follows := func(ctx context.Context) error {
		select {
		case <-c.Ready():
		default:
			return errors.New("the watch cache has not started yet")
		}
		return c.Follows(ctx)
	}
	return []Check{{Name: "etcd", Live: true, Run: answers}, {Name: "etcd-readiness", Run: follows}}
}

func newHealth(checks []Check, stopping <-chan struct{}, log *slog.Logger) *health {
	h := &health{log: log}
	h.checks = append(h.checks, Check{Name: "ping", Live: true, Run: func(context.Context) error { return nil }})
	h.checks = append(h.checks, checks...)
	h.checks = append(h.checks, Check{Name: "shutdown", Run: func(context.Context) error {
		select {
		case <-stopping:
			return fmt.Errorf("process is shutting down")
		default:
			return nil
		}
	}})
	return h
}

// ready says whether /readyz would succeed.
func (h *health) ready(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	for _, c := range h.checks {
		if c.Run(ctx) != nil {
			return false
		}
	}
	return true
}

func (h *health) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	path := strings.Trim(req.URL.Path, "/")
	kind, one, _ := strings.Cut(path, "/")
	ctx, cancel := context.WithTimeout(req.Context(), checkTimeout)
	defer cancel()
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if one == "" {
		w.Header().Set("X-Content-Type-Options", "nosniff")
	}
	exclude := req.URL.Query()["exclude"]
	var out strings.Builder
	failed, found := false, false
	for _, c := range h.checks {
		if kind == "livez" && !c.Live || one != "" && c.Name != one {
			continue
		}
		found = true
		if slices.Contains(exclude, c.Name) {
			fmt.Fprintf(&out, "[+]%s excluded: ok\n", c.Name)
			continue
		}
		if err := c.Run(ctx); err != nil {
			failed = true
			if one != "" {
				http.Error(w, fmt.Sprintf("internal server error: %v", err), http.StatusInternalServerError)
				return
			}
			// Anybody may ask: the reason is for the log and for the check's own path.
			h.log.Warn("health check failed", "check", c.Name, "err", err)
			fmt.Fprintf(&out, "[-]%s failed: reason withheld\n", c.Name)
			continue
		}
		fmt.Fprintf(&out, "[+]%s ok\n", c.Name)
	}
	_, verbose := req.URL.Query()["verbose"]
	switch {
	case one != "" && !found:
		http.NotFound(w, req)
	case failed:
		http.Error(w, out.String()+kind+" check failed", http.StatusInternalServerError)
	case one != "" || !verbose:
		fmt.Fprint(w, "ok")
	default:
		fmt.Fprintf(w, "%s%s check passed\n", out.String(), kind)
	}
}
