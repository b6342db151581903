package flowcontrol

import (
	"context"
	"math"
	"net/url"
	"strconv"
	"sync"

	"k8s.io/apiserver/pkg/endpoints/request"
)

// What a request weighs, as upstream reckons.
const (
	objectsPerSeat = 100
	widest         = 10
	// A request takes no more than this part of its level.
	widestPart = 0.15
)

// maxSeats is how many seats one request of a level may take.
func maxSeats(nominal int) int {
	return max(1, min(widest, int(math.Ceil(float64(nominal)*widestPart))))
}

// Width is how many seats a request takes; count is how many objects its resource has.
func Width(info *request.RequestInfo, query string, count func() int) int {
	if info.Verb != "list" && info.Verb != "watch" || info.Name != "" {
		return 1
	}
	q, err := url.ParseQuery(query)
	if err != nil {
		return widest // it will be refused
	}
	if info.Verb == "watch" {
		if v := q.Get("resourceVersion"); q.Get("sendInitialEvents") != "true" && v != "" && v != "0" {
			return 1
		}
	}
	n := count()
	// With selectors, more objects are looked at than are sent.
	if limit, err := strconv.Atoi(q.Get("limit")); err == nil && limit > 0 && q.Get("labelSelector") == "" && q.Get("fieldSelector") == "" {
		n = min(n, limit)
	}
	return max(1, min(widest, (n+objectsPerSeat-1)/objectsPerSeat))
}

type startedKey struct{}

// WithStart returns a context whose Started calls f, once.
func WithStart(ctx context.Context, f func()) context.Context {
	return context.WithValue(ctx, startedKey{}, sync.OnceFunc(f))
}

// Started says that a watch has sent what it begins with: from here it costs little, and
// its seats are free for others.
func Started(ctx context.Context) {
	if f, ok := ctx.Value(startedKey{}).(func()); ok {
		f()
	}
}
