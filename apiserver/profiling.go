package apiserver

import (
	"net/http"
	"net/http/pprof"
	"strings"
)

// ProfilingPath is where Profiling is served, as by upstream's --profiling: behind authorization,
// which by default lets only administrators pass.
const ProfilingPath = "/debug/pprof/"

// Profiling serves profiles of this process: CPU, heap, goroutines, execution traces.
func Profiling() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch strings.TrimPrefix(req.URL.Path, ProfilingPath) {
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
