// Package openapi serves /openapi/v3 and /openapi/v2.
//
// Owns: assembling documents from the schemas of kinds and the table of resources,
// lazily: nothing is built before somebody asks. Must not: know schemas' content, which
// api/openapi and CustomResourceDefinitions bring.
package openapi

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sort"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// Definitions gives the schemas of built-in kinds by OpenAPI name
// ("io.k8s.api.apps.v1.Deployment"), as OpenAPI v3 JSON whose references are
// "#/components/schemas/<name>". It may be called more than once.
type Definitions func() (map[string]json.RawMessage, error)

// Source is the table of what is served.
type Source interface {
	All() []*seams.Served
	EndpointsOf(gvr schema.GroupVersionResource) []*seams.Endpoint
	Changed() <-chan struct{}
}

// Config is what a Handler serves from.
type Config struct {
	Source Source
	// Definitions nil: documents have paths but no built-in schemas.
	Definitions Definitions
	// Version is that of the API in the documents.
	Version string
	Logger  *slog.Logger
}

// Handler serves the documents. Bytes are kept only of the small index and of version 2,
// which clients ask for whole.
type Handler struct {
	Config

	mu      sync.Mutex
	changed <-chan struct{}
	groups  map[string]*group // by path: "api/v1", "apis/apps/v1"
	index   []byte
	v2      *v2Document
}

// group is the resources of one group version.
type group struct {
	gv     schema.GroupVersion
	served []*seams.Served
	hash   string
}

// New returns a handler.
func New(c Config) *Handler {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return &Handler{Config: c}
}

func pathOf(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "api/" + gv.Version
	}
	return "apis/" + gv.Group + "/" + gv.Version
}

// refresh brings the table up to date; the lock is held.
func (h *Handler) refresh() error {
	if h.groups != nil {
		select {
		case <-h.changed:
		default:
			return nil
		}
	}
	h.changed = h.Source.Changed()
	groups := map[string]*group{}
	for _, s := range h.Source.All() {
		gv := schema.GroupVersion{Group: s.Group, Version: s.Version}
		g := groups[pathOf(gv)]
		if g == nil {
			g = &group{gv: gv}
			groups[pathOf(gv)] = g
		}
		g.served = append(g.served, s)
	}
	type entry struct {
		URL string `json:"serverRelativeURL"`
	}
	paths := map[string]entry{}
	for p, g := range groups {
		hash, err := h.fingerprint(g)
		if err != nil {
			return err
		}
		g.hash = hash
		paths[p] = entry{"/openapi/v3/" + p + "?hash=" + hash}
	}
	index, err := json.Marshal(map[string]any{"paths": paths})
	if err != nil {
		return fmt.Errorf("encoding the OpenAPI index: %w", err)
	}
	h.groups, h.index, h.v2 = groups, index, nil
	return nil
}

// form is raised when documents change although neither resources nor schemas do:
// clients keep documents for ever under their hash.
const form = 4

// fingerprint changes whenever the document does, without building it: built-in
// schemas change with the version only.
func (h *Handler) fingerprint(g *group) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, form, h.Version, g.gv)
	for _, s := range g.served {
		fmt.Fprintln(sum, s.Plural, s.Kind, s.Namespaced, s.Verbs, s.Scale != nil)
		for _, sub := range s.Subresources {
			fmt.Fprintln(sum, sub.Name, sub.Verbs)
		}
		for _, e := range h.Source.EndpointsOf(s.GVR()) {
			fmt.Fprintln(sum, e.Subresource, e.Kind)
		}
		if s.OpenAPI != nil {
			b, err := json.Marshal(s.OpenAPI())
			if err != nil {
				return "", fmt.Errorf("encoding the schema of %s: %w", s.GVK(), err)
			}
			sum.Write(b)
		}
	}
	return strings.ToUpper(hex.EncodeToString(sum.Sum(nil))), nil
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if req.Method != http.MethodGet && req.Method != http.MethodHead {
		http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
		return
	}
	path := strings.Trim(strings.TrimPrefix(req.URL.Path, "/openapi"), "/")
	switch {
	case path == "v2":
		h.serveV2(w, req)
	case path == "v3":
		h.serveIndex(w, req)
	case strings.HasPrefix(path, "v3/"):
		h.serveGroup(w, req, strings.TrimPrefix(path, "v3/"))
	default:
		http.NotFound(w, req)
	}
}

func (h *Handler) serveIndex(w http.ResponseWriter, _ *http.Request) {
	h.mu.Lock()
	err := h.refresh()
	index := h.index
	h.mu.Unlock()
	if err != nil {
		h.broken(w, err)
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8") // so upstream's says
	if _, err := w.Write(index); err != nil {
		h.Logger.Debug("client went away", "err", err)
	}
}

func (h *Handler) broken(w http.ResponseWriter, err error) {
	h.Logger.Error("building an OpenAPI document", "err", err)
	http.Error(w, err.Error(), http.StatusInternalServerError)
}

// serveGroup serves one document. A URL that carries its hash never changes.
func (h *Handler) serveGroup(w http.ResponseWriter, req *http.Request, path string) {
	h.mu.Lock()
	err := h.refresh()
	g := h.groups[path]
	h.mu.Unlock()
	switch {
	case err != nil:
		h.broken(w, err)
		return
	case g == nil:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if accept := req.Header.Get("Accept"); accept != "" && !acceptsJSON(accept) {
		http.Error(w, "only the following media types are accepted: application/json", http.StatusNotAcceptable)
		return
	}
	head := w.Header()
	if hash := req.URL.Query().Get("hash"); hash != "" {
		if hash != g.hash {
			u := url.URL{Path: req.URL.Path, RawQuery: "hash=" + g.hash}
			http.Redirect(w, req, u.String(), http.StatusMovedPermanently)
			return
		}
		head.Set("Cache-Control", "public, immutable")
		head.Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	head.Set("Etag", `"`+g.hash+`"`)
	head.Set("Vary", "Accept")
	if req.Header.Get("If-None-Match") == `"`+g.hash+`"` {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	b, err := h.document(g)
	if err != nil {
		h.broken(w, err)
		return
	}
	head.Set("Content-Type", "application/json")
	if _, err := w.Write(b); err != nil {
		h.Logger.Debug("client went away", "err", err)
	}
}

func acceptsJSON(accept string) bool {
	return strings.Contains(accept, "application/json") || strings.Contains(accept, "*/*") || strings.Contains(accept, "application/*")
}

// info is the head of a document; upstream makes those of custom resources elsewhere.
func (h *Handler) info(g *group) map[string]any {
	if g.served[0].Custom() {
		return map[string]any{"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}
	}
	return map[string]any{"title": "Kubernetes", "version": h.Version}
}

// document builds the OpenAPI v3 document of one group version.
func (h *Handler) document(g *group) ([]byte, error) {
	s, err := h.schemas(g.served)
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"openapi": "3.0.0",
		"info":    h.info(g),
		"paths":   paths(g.served, h.Source, s, v3{}),
		"components": map[string]any{
			"schemas": s.used,
			"securitySchemes": map[string]any{"BearerToken": map[string]any{
				"type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header"}},
		},
	})
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
