// Package profiling serves profiles of the process that it is linked into.
//
// Owns: the paths below /debug/pprof/, those of upstream's --profiling. Must not: decide who
// may read them. Whoever mounts the handler guards it: a profile costs CPU and tells secrets.
package profiling

import (
	"net/http"
	"net/http/pprof"
	"strings"
)

// Path is what Handler is served below.
const Path = "/debug/pprof/"

// Handler serves profiles of this process: CPU, heap, goroutines, execution traces.
func Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch strings.TrimPrefix(req.URL.Path, Path) {
		case "cmdline":
			pprof.Cmdline(w, req)
		case "profile":
			pprof.Profile(w, req)
		case "symbol":
			pprof.Symbol(w, req)
		case "trace":
			pprof.Trace(w, req)
		default:
			pprof.Index(w, req) // and the named profiles below it
		}
	})
}
