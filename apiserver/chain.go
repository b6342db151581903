package apiserver

import (
	"context"
	"errors"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	annotations "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/skiff-k8s/skiff/apiserver/audit"
	"github.com/skiff-k8s/skiff/apiserver/authn"
	"github.com/skiff-k8s/skiff/apiserver/authz"
)

// requestTimeout bounds what is not long-running.
const requestTimeout = 60 * time.Second

// chain composes the filters; a request passes them from the bottom of this function up.
func (s *Server) chain() http.Handler {
	h := http.Handler(http.HandlerFunc(s.route))
	if s.c.Aggregate != nil {
		h = s.c.Aggregate(h, s.fail)
	}
	h = s.authorize(h)
	h = s.limit(h)
	h = s.impersonate(h)
	if s.c.Audit != nil {
		h = s.c.Audit.Wrap(h, streaming, func(w http.ResponseWriter, req *http.Request, err error) {
			s.fail(w, req, apierrors.NewInternalError(err))
		})
	}
	h = s.authenticate(h)
	h = s.enter(h)
	h = s.balance(h)
	return s.recover(h)
}

// recover turns a panic into a 500 and a log line.
func (s *Server) recover(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		defer func() {
			p := recover()
			if p == nil {
				return
			}
			if p == http.ErrAbortHandler { // a proxy's way to break off
				panic(p)
			}
			s.log.Error("panic while serving", "method", req.Method, "path", req.URL.Path, "panic", p, "stack", string(debug.Stack()))
			http.Error(w, "This request caused apiserver to panic. Look in the logs for details.", http.StatusInternalServerError)
		}()
		next.ServeHTTP(w, req)
	})
}

// enter finds out what the request is about and sets what every answer has.
func (s *Server) enter(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, err := s.resolver.NewRequestInfo(req)
		if err != nil {
			s.fail(w, req, apierrors.NewBadRequest(err.Error()))
			return
		}
		h, id := w.Header(), auditID(req)
		h.Set("Audit-Id", id)
		h.Set("Cache-Control", "no-cache, private")
		ctx := request.WithRequestInfo(req.Context(), info)
		if s.c.Audit != nil {
			ctx = s.c.Audit.Begin(ctx, id)
		}
		ctx = warning.WithWarningRecorder(ctx, &warnings{header: h})
		if !longRunning(req, info) {
			d, err := timeout(req)
			if err != nil {
				req = req.WithContext(ctx)
				s.fail(audit.Failed(w, req), req, err)
				return
			}
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, d)
			defer cancel()
		}
		m := s.metrics.begin(w, info)
		defer m.end()
		next.ServeHTTP(m, req.WithContext(ctx))
	})
}

// timeout is the client's ?timeout=, at most requestTimeout.
func timeout(req *http.Request) (time.Duration, error) {
	if !strings.Contains(req.URL.RawQuery, "timeout=") {
		return requestTimeout, nil
	}
	v := req.URL.Query().Get("timeout")
	if v == "" {
		return requestTimeout, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		return 0, apierrors.NewBadRequest("invalid timeout specified in the request URL - time: " + strings.TrimPrefix(err.Error(), "time: "))
	}
	if d <= 0 || d > requestTimeout {
		d = requestTimeout
	}
	return d, nil
}

func auditID(req *http.Request) string {
	if id := req.Header.Get("Audit-Id"); id != "" {
		return id
	}
	return uuid.NewString()
}

// streaming requests are audited when their answer begins, too.
func streaming(req *http.Request, info *request.RequestInfo) bool {
	return info.Verb != "deletecollection" && longRunning(req, info)
}

// longRunning requests have no timeout and no place in the limits.
func longRunning(req *http.Request, info *request.RequestInfo) bool {
	if info.Verb == "watch" || info.Verb == "proxy" || info.Verb == "deletecollection" {
		return true
	}
	if info.IsResourceRequest {
		switch info.Subresource {
		case "proxy", "attach", "exec", "log", "portforward":
			return true
		}
		return false
	}
	return strings.HasPrefix(info.Path, "/debug/pprof/")
}

// inProcess is the context key of the user of an in-process request.
type inProcess struct{}

func (s *Server) authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		u, ok := req.Context().Value(inProcess{}).(user.Info)
		switch {
		case ok:
		case s.c.Authenticator == nil:
			u = &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}
		default:
			resp, ok, err := s.c.Authenticator.AuthenticateRequest(req)
			if err != nil || !ok {
				if err != nil {
					s.log.Debug("authentication failed", "path", req.URL.Path, "err", err)
				}
				s.fail(audit.Failed(w, req), req, apierrors.NewUnauthorized("Unauthorized"))
				return
			}
			u = resp.User
		}
		next.ServeHTTP(w, req.WithContext(request.WithUser(req.Context(), u)))
	})
}

// impersonate lets a user who may do so act as another, by the Impersonate-* headers.
func (s *Server) impersonate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if !impersonating(req.Header) {
			next.ServeHTTP(w, req)
			return
		}
		req = req.Clone(req.Context())
		ctx := req.Context()
		as, constraint, err := authn.Impersonate(ctx, req.Header, Attributes(ctx), s.c.Authorizer)
		if err != nil {
			w.Header().Set("X-Content-Type-Options", "nosniff")
			s.fail(w, req, err)
			return
		}
		if as != nil {
			audit.Impersonated(ctx, as, constraint)
			req = req.WithContext(request.WithUser(ctx, as))
		}
		next.ServeHTTP(w, req)
	})
}

func impersonating(h http.Header) bool {
	for k := range h {
		if strings.HasPrefix(k, "Impersonate-") {
			return true
		}
	}
	return false
}

// Audit annotations of every request that is authorized or refused.
const (
	decisionKey = "authorization.k8s.io/decision"
	reasonKey   = "authorization.k8s.io/reason"
)

func (s *Server) authorize(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		a := Attributes(req.Context())
		decision, reason, err := s.c.Authorizer.Authorize(req.Context(), a)
		if decision == authorizer.DecisionAllow {
			annotations.AddAuditAnnotations(req.Context(), decisionKey, "allow", reasonKey, reason)
			next.ServeHTTP(w, req)
			return
		}
		if err != nil {
			annotations.AddAuditAnnotation(req.Context(), reasonKey, "internal error")
			s.fail(w, req, apierrors.NewInternalError(err))
			return
		}
		annotations.AddAuditAnnotations(req.Context(), decisionKey, "forbid", reasonKey, reason)
		w.Header().Set("X-Content-Type-Options", "nosniff")
		s.fail(w, req, authz.Forbidden(a, reason))
	})
}

// Attributes are what an authorizer is asked about, from request info and user.
func Attributes(ctx context.Context) authorizer.Attributes {
	a := authorizer.AttributesRecord{}
	if u, ok := request.UserFrom(ctx); ok {
		a.User = u
	}
	info, ok := request.RequestInfoFrom(ctx)
	if !ok {
		return a
	}
	a.ResourceRequest, a.Path, a.Verb = info.IsResourceRequest, info.Path, info.Verb
	a.APIGroup, a.APIVersion, a.Resource, a.Subresource = info.APIGroup, info.APIVersion, info.Resource, info.Subresource
	a.Namespace, a.Name = info.Namespace, info.Name
	if info.FieldSelector != "" {
		sel, err := fields.ParseSelector(info.FieldSelector)
		if err != nil {
			a.FieldSelectorParsingErr = err
		} else {
			a.FieldSelectorRequirements = sel.Requirements()
		}
	}
	if info.LabelSelector != "" {
		sel, err := labels.Parse(info.LabelSelector)
		if err != nil {
			a.LabelSelectorParsingErr = err
		} else {
			a.LabelSelectorRequirements, _ = sel.Requirements()
		}
	}
	return a
}

// fail answers with an error as metav1.Status.
func (s *Server) fail(w http.ResponseWriter, req *http.Request, err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		err = apierrors.NewTimeoutError("request did not complete within the allotted timeout", 0)
	}
	s.registry.WriteError(w, req, err)
}

// route is the end of the chain.
func (s *Server) route(w http.ResponseWriter, req *http.Request) {
	if info, ok := request.RequestInfoFrom(req.Context()); ok && info.IsResourceRequest {
		s.registry.ServeHTTP(w, req)
		return
	}
	path := req.URL.Path
	if h := s.pathHandler(path); h != nil {
		h.ServeHTTP(w, req)
		return
	}
	http.NotFound(w, req)
}

func (s *Server) pathHandler(path string) http.Handler {
	if h := s.c.Paths[path]; h != nil {
		return h
	}
	for i := len(path) - 1; i >= 0; i-- {
		if path[i] == '/' {
			if h := s.c.Paths[path[:i+1]]; h != nil && i > 0 {
				return h
			}
		}
	}
	switch trimmed := strings.TrimSuffix(path, "/"); {
	case trimmed == "":
		return http.HandlerFunc(s.servePaths)
	case trimmed == "/version":
		return http.HandlerFunc(s.serveVersion)
	case trimmed == "/metrics":
		return s.metrics
	case under(trimmed, "/healthz"), under(trimmed, "/livez"), under(trimmed, "/readyz"):
		return s.health
	case under(trimmed, "/openapi"):
		return s.openapi
	case under(trimmed, "/api"), under(trimmed, "/apis"):
		return s.discovery
	}
	return nil
}

func under(path, base string) bool { return path == base || strings.HasPrefix(path, base+"/") }
