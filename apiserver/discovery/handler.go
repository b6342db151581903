package discovery

import (
	"crypto/sha512"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/munnerz/goautoneg"
	discoveryv2 "k8s.io/api/apidiscovery/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/apiserver/negotiate"
)

// Config is what a Handler serves from.
type Config struct {
	Source Source
	Codecs *negotiate.Codecs
	// Address is advertised at /api; may be empty.
	Address string
	// Fail writes an error.
	Fail func(w http.ResponseWriter, req *http.Request, err error)
}

// Handler serves /api, /apis and below. Documents are made at the first request after
// a change of the table.
type Handler struct {
	Config

	mu      sync.Mutex
	changed <-chan struct{}
	docs    *documents
}

// New returns a handler.
func New(c Config) *Handler { return &Handler{Config: c} }

func (h *Handler) documents() *documents {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.docs != nil {
		select {
		case <-h.changed:
		default:
			return h.docs
		}
	}
	h.changed = h.Source.Changed()
	h.docs = build(h.Source)
	return h.docs
}

// Paths are the discovery paths, for the index at /.
func (h *Handler) Paths() []string {
	out := []string{"/api", "/apis"}
	for _, g := range h.documents().groups {
		base := "/apis/" + g.Name
		if g.Name == "" {
			base = "/api"
		} else {
			out = append(out, base)
		}
		for _, v := range g.Versions {
			out = append(out, base+"/"+v.Version)
		}
	}
	return out
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	if isGroup := parts[0] == "apis" && len(parts) == 2; !isGroup && req.Method != http.MethodGet {
		// Upstream asks for the method everywhere but at a group.
		h.Fail(w, req, apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "405: Method Not Allowed", 0, false))
		return
	}
	d := h.documents()
	switch {
	case len(parts) == 1:
		h.root(w, req, d, parts[0] == "api")
	case parts[0] == "api" && len(parts) == 2:
		h.resources(w, req, d, schema.GroupVersion{Version: parts[1]})
	case parts[0] == "apis" && len(parts) == 2:
		h.group(w, req, d, parts[1])
	case parts[0] == "apis" && len(parts) == 3:
		h.resources(w, req, d, schema.GroupVersion{Group: parts[1], Version: parts[2]})
	default:
		http.NotFound(w, req)
	}
}

// root serves /api or /apis, aggregated if the client wants that first.
func (h *Handler) root(w http.ResponseWriter, req *http.Request, d *documents, legacy bool) {
	if out, as, ok := aggregatedForm(req.Header.Get("Accept")); ok {
		list := d.named
		if legacy {
			list = d.legacy
		}
		h.aggregated(w, req, list, out, as)
		return
	}
	if legacy {
		v := &metav1.APIVersions{TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"}}
		v.ServerAddressByClientCIDRs = []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: h.Address}}
		h.write(w, req, v)
		return
	}
	l := &metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
	for _, g := range d.groups {
		if g.Name != "" {
			l.Groups = append(l.Groups, g)
		}
	}
	h.write(w, req, l)
}

func (h *Handler) group(w http.ResponseWriter, req *http.Request, d *documents, name string) {
	for _, g := range d.groups {
		if g.Name == name && name != "" {
			g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
			h.write(w, req, &g)
			return
		}
	}
	http.NotFound(w, req)
}

func (h *Handler) resources(w http.ResponseWriter, req *http.Request, d *documents, gv schema.GroupVersion) {
	l := d.resources[gv]
	if l == nil {
		if slices.ContainsFunc(d.groups, func(g metav1.APIGroup) bool { return g.Name == gv.Group }) {
			h.Fail(w, req, apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "404: Page Not Found", 0, false))
			return
		}
		http.NotFound(w, req)
		return
	}
	h.write(w, req, l)
}

func (h *Handler) write(w http.ResponseWriter, req *http.Request, obj runtime.Object) {
	out, err := negotiate.Accept(req, negotiate.Allow{})
	if err != nil {
		h.Fail(w, req, err)
		return
	}
	h.send(w, req, obj, out, out.Media.Type())
}

func (h *Handler) send(w http.ResponseWriter, req *http.Request, obj runtime.Object, out negotiate.Output, contentType string) {
	b, err := h.Codecs.Encode(obj, out)
	if err != nil {
		h.Fail(w, req, apierrors.NewInternalError(err))
		return
	}
	head := w.Header()
	head.Set("Content-Type", contentType)
	if etag := head.Get("Etag"); etag != "" {
		if req.Header.Get("If-None-Match") == etag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	head.Set("Content-Length", strconv.Itoa(len(b)))
	if _, err := w.Write(b); err != nil {
		return // the client went away
	}
}

const aggregatedGroup, aggregatedKind = "apidiscovery.k8s.io", "APIGroupDiscoveryList"

// aggregatedForm tells whether the best acceptable form is an aggregated one.
func aggregatedForm(accept string) (negotiate.Output, schema.GroupVersionKind, bool) {
	for _, c := range goautoneg.ParseAccept(accept) {
		var out negotiate.Output
		switch c.Type + "/" + c.SubType {
		case "application/json":
		case "application/yaml":
			out.Media = negotiate.YAML
		case "application/vnd.kubernetes.protobuf":
			out.Media = negotiate.Protobuf
		default:
			return out, schema.GroupVersionKind{}, false
		}
		as := schema.GroupVersionKind{Group: c.Params["g"], Version: c.Params["v"], Kind: c.Params["as"]}
		if as.Empty() {
			return out, as, false
		}
		if as.Group == aggregatedGroup && as.Kind == aggregatedKind && as.Version == "v2" {
			return out, as, true
		}
	}
	return negotiate.Output{}, schema.GroupVersionKind{}, false
}

func (h *Handler) aggregated(w http.ResponseWriter, req *http.Request, list *discoveryv2.APIGroupDiscoveryList, out negotiate.Output, as schema.GroupVersionKind) {
	tag, err := list.Marshal()
	if err != nil {
		h.Fail(w, req, apierrors.NewInternalError(err))
		return
	}
	head := w.Header()
	head.Set("Etag", fmt.Sprintf(`"%X"`, sha512.Sum512(tag)))
	head.Set("Cache-Control", "public")
	head.Set("Vary", "Accept")
	h.send(w, req, list, out, fmt.Sprintf("%s;g=%s;v=%s;as=%s", out.Media.Type(), as.Group, as.Version, as.Kind))
}
