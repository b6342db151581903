package apiserver

import (
	"encoding/json"
	"net/http"
	goruntime "runtime"
	"sort"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// KubernetesVersion is the version whose API is served.
const KubernetesVersion = "v1.37.2"

// Version is what /version answers. Clients compare it with their own by major and minor.
func Version() version.Info {
	return version.Info{
		Major: "1", Minor: "37", EmulationMajor: "1", EmulationMinor: "37", MinCompatibilityMajor: "1", MinCompatibilityMinor: "36",
		GitVersion: KubernetesVersion + "+skiff", GitTreeState: "clean",
		GoVersion: goruntime.Version(), Compiler: goruntime.Compiler, Platform: goruntime.GOOS + "/" + goruntime.GOARCH,
	}
}

func (s *Server) serveVersion(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet {
		s.fail(w, req, apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "405: Method Not Allowed", 0, false))
		return
	}
	if accept := req.Header.Get("Accept"); accept != "" && !strings.Contains(accept, "application/json") && !strings.Contains(accept, "*/*") {
		s.fail(w, req, apierrors.NewGenericServerResponse(http.StatusNotAcceptable, "", schema.GroupResource{}, "",
			"406: Not Acceptable\n\nAvailable representations: application/json", 0, false))
		return
	}
	s.writeJSON(w, Version())
}

// servePaths lists the non-resource paths, at /.
func (s *Server) servePaths(w http.ResponseWriter, _ *http.Request) {
	paths := []string{"/healthz", "/healthz/ping", "/livez", "/livez/ping", "/metrics", "/openapi/v2", "/openapi/v3", "/openapi/v3/", "/readyz", "/readyz/ping", "/version"}
	paths = append(paths, s.discovery.Paths()...)
	for p := range s.c.Paths {
		paths = append(paths, p)
	}
	sort.Strings(paths)
	s.writeJSON(w, struct {
		Paths []string `json:"paths"`
	}{paths})
}

func (s *Server) writeJSON(w http.ResponseWriter, v any) {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(b); err != nil {
		s.log.Debug("client went away", "err", err)
	}
}
