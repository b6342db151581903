package aggregator

import (
	"errors"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Wrap sends requests for other servers' group versions there, and adds those to what next
// says the API groups are. It belongs behind authentication and authorization.
func (a *Aggregator) Wrap(next http.Handler, fail func(http.ResponseWriter, *http.Request, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		table := *a.table.Load()
		if len(table) == 0 || !strings.HasPrefix(req.URL.Path, "/apis") && !strings.HasPrefix(req.URL.Path, "/openapi/v3") {
			next.ServeHTTP(w, req)
			return
		}
		path := strings.TrimPrefix(req.URL.Path, "/openapi/v3")
		parts := strings.Split(strings.Trim(path, "/"), "/")
		switch {
		case len(parts) >= 3 && parts[0] == "apis":
			if r := table[schema.GroupVersion{Group: parts[1], Version: parts[2]}]; r != nil {
				r.proxy(w, req, fail)
				return
			}
			next.ServeHTTP(w, req)
		case req.Method == http.MethodGet:
			merge(w, req, next, table, parts)
		default:
			next.ServeHTTP(w, req)
		}
	})
}

// proxy sends a request on as its user.
func (r *remote) proxy(w http.ResponseWriter, req *http.Request, fail func(http.ResponseWriter, *http.Request, error)) {
	u, ok := request.UserFrom(req.Context())
	if !ok {
		fail(w, req, apierrors.NewInternalError(errors.New("missing user")))
		return
	}
	if !available(r.service) {
		http.Error(w, "service unavailable", http.StatusServiceUnavailable)
		return
	}
	host := r.key.host() + ":" + strconv.Itoa(int(r.key.port))
	p := &httputil.ReverseProxy{
		Transport: r.transport,
		// Watches send what there is at once.
		FlushInterval: -1,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL = &url.URL{Scheme: "https", Host: host, Path: p.In.URL.Path, RawPath: p.In.URL.RawPath, RawQuery: p.In.URL.RawQuery}
			p.Out.Host = host
			speakFor(p.Out.Header, u)
			p.Out.Header.Set("Audit-Id", w.Header().Get("Audit-Id")) // one request, one id
			p.SetXForwarded()
		},
		ModifyResponse: func(resp *http.Response) error {
			resp.Header.Del("Audit-Id") // the answer has it
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, req *http.Request, err error) {
			fail(w, req, apierrors.NewServiceUnavailable("error trying to reach service: "+err.Error()))
		},
		// The client's going away is nothing to log.
		ErrorLog: log.New(discard{}, "", 0),
	}
	p.ServeHTTP(w, req)
}

type discard struct{}

func (discard) Write(b []byte) (int, error) { return len(b), nil }

// speakFor names the user to a server that trusts this one's client certificate, and takes
// out whatever the client said of itself.
func speakFor(h http.Header, u user.Info) {
	for k := range h {
		if strings.HasPrefix(k, "X-Remote-") {
			h.Del(k)
		}
	}
	h.Del("Authorization")
	h.Set("X-Remote-User", u.GetName())
	if uid := u.GetUID(); uid != "" {
		h.Set("X-Remote-Uid", uid)
	}
	for _, g := range u.GetGroups() {
		h.Add("X-Remote-Group", g)
	}
	for k, vs := range u.GetExtra() {
		for _, v := range vs {
			h.Add("X-Remote-Extra-"+escapeHeader(k), v)
		}
	}
}

// escapeHeader percent-encodes what may not be in a header's name.
func escapeHeader(key string) string {
	const legal = "!#$&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	var b strings.Builder
	for i := 0; i < len(key); i++ {
		if strings.IndexByte(legal, key[i]) >= 0 {
			b.WriteByte(key[i])
		} else {
			const hex = "0123456789ABCDEF"
			b.Write([]byte{'%', hex[key[i]>>4], hex[key[i]&15]})
		}
	}
	return b.String()
}
