package apiserver

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/skiff-k8s/skiff/apiserver/flowcontrol"
)

// queueTime is how long a request waits for its turn before it is refused.
const queueTime = 15 * time.Second

// queueLimit is how long a request without a deadline waits for its turn at most.
const queueLimit = requestTimeout / 4

// fair lets requests go by priority and fairness. Long-running requests but watches are
// none of its business; a watch only until it has sent what there is.
func (s *Server) fair(next http.Handler) http.Handler {
	flow := s.c.Flow
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		info, _ := request.RequestInfoFrom(ctx)
		u, _ := request.UserFrom(ctx)
		if info == nil || u == nil || info.Verb != "watch" && longRunning(req, info) {
			next.ServeHTTP(w, req)
			return
		}
		class := flow.Classify(u, info)
		h := w.Header()
		h[flowSchemaHeader], h[priorityLevelHeader] = class.SchemaUID, class.LevelUID
		width := flowcontrol.Width(info, req.URL.RawQuery, func() int {
			r, ok := s.c.Caches.Resource(info.APIGroup + "/" + info.Resource)
			if !ok { // another server's
				return 0
			}
			return r.Len()
		})
		turn, refused := flow.Enter(ctx, class, width, waitLimit(ctx))
		if refused != nil {
			s.metrics.dropped.Add(1)
			h.Set("Retry-After", strconv.FormatInt(refused.RetryAfter, 10))
			http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests)
			return
		}
		defer turn.Done()
		if info.Verb == "watch" {
			req = req.WithContext(flowcontrol.WithStart(ctx, turn.Done))
		}
		next.ServeHTTP(w, req)
	})
}

// The headers that say how a request was classified, in the form in which answers keep them.
const (
	flowSchemaHeader    = "X-Kubernetes-Pf-Flowschema-Uid"
	priorityLevelHeader = "X-Kubernetes-Pf-Prioritylevel-Uid"
)

// waitLimit is a quarter of the time that a request has.
func waitLimit(ctx context.Context) time.Duration {
	if end, ok := ctx.Deadline(); ok {
		return min(time.Until(end)/4, time.Minute)
	}
	return queueLimit
}

// limit is what there is without priority and fairness. It bounds the requests in work,
// reads and writes apart. Beyond the bound they queue for a while, then answer 429.
// Long-running requests and system:masters, who must be able to mend an overloaded server,
// are exempt.
func (s *Server) limit(next http.Handler) http.Handler {
	if s.c.Flow != nil {
		return s.fair(next)
	}
	reads, writes := make(chan struct{}, s.c.MaxInFlight), make(chan struct{}, s.c.MaxMutating)
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		ctx := req.Context()
		info, _ := request.RequestInfoFrom(ctx)
		u, _ := request.UserFrom(ctx)
		if info == nil || longRunning(req, info) || (u != nil && slices.Contains(u.GetGroups(), user.SystemPrivilegedGroup)) {
			next.ServeHTTP(w, req)
			return
		}
		slots := writes
		switch info.Verb {
		case "get", "list", "head":
			slots = reads
		}
		select {
		case slots <- struct{}{}:
		default:
			if !wait(req, slots) {
				s.metrics.dropped.Add(1)
				s.fail(w, req, apierrors.NewTooManyRequests("too many requests, please try again later", 1))
				return
			}
		}
		defer func() { <-slots }()
		next.ServeHTTP(w, req)
	})
}

func wait(req *http.Request, slots chan<- struct{}) bool {
	t := time.NewTimer(queueTime)
	defer t.Stop()
	select {
	case slots <- struct{}{}:
		return true
	case <-t.C:
	case <-req.Context().Done():
	}
	return false
}
