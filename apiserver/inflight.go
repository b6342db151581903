package apiserver

import (
	"net/http"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// queueTime is how long a request waits for its turn before it is refused.
const queueTime = 15 * time.Second

// limit bounds the requests in work, reads and writes apart. Beyond the bound they
// queue for a while, then answer 429. Long-running requests and system:masters, who
// must be able to mend an overloaded server, are exempt.
func (s *Server) limit(next http.Handler) http.Handler {
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
