package server

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// How long answers of the API server hold, as upstream's defaults.
const (
	tokenTTL   = 2 * time.Minute
	allowedTTL = 5 * time.Minute
	deniedTTL  = 30 * time.Second
	cacheSize  = 1024
)

// user is who asks.
type user struct {
	name, uid string
	groups    []string
	extra     map[string][]string
}

type auth struct {
	client kubernetes.Interface
	node   string
	log    *slog.Logger

	mu     sync.Mutex
	tokens map[string]cached[*user] // by hash
	access map[string]cached[bool]
}

type cached[T any] struct {
	value T
	until time.Time
}

func newAuth(cfg Config) *auth {
	return &auth{client: cfg.Client, node: cfg.NodeName, log: cfg.Logger, tokens: map[string]cached[*user]{}, access: map[string]cached[bool]{}}
}

// allow answers the request itself when it is refused.
func (a *auth) allow(w http.ResponseWriter, r *http.Request) bool {
	u, err := a.authenticate(r)
	if err != nil {
		a.log.Warn("authenticate request to the kubelet", "error", err)
	}
	if u == nil {
		http.Error(w, "Unauthorized", http.StatusUnauthorized)
		return false
	}
	verb, subs := attributes(r)
	for _, sub := range subs {
		ok, err := a.authorize(r.Context(), u, verb, sub)
		if err != nil {
			a.log.Warn("authorize request to the kubelet", "user", u.name, "error", err)
			http.Error(w, fmt.Sprintf("Authorization error (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", u.name, verb, subs), http.StatusInternalServerError)
			return false
		}
		if ok {
			return true
		}
	}
	http.Error(w, fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", u.name, verb, subs), http.StatusForbidden)
	return false
}

func (a *auth) authenticate(r *http.Request) (*user, error) {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		c := r.TLS.VerifiedChains[0][0]
		return &user{name: c.Subject.CommonName, groups: append(append([]string(nil), c.Subject.Organization...), "system:authenticated")}, nil
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if token = strings.TrimSpace(token); !ok || token == "" || a.client == nil {
		return nil, nil
	}
	sum := sha256.Sum256([]byte(token))
	key := hex.EncodeToString(sum[:])
	a.mu.Lock()
	c, hit := a.tokens[key]
	a.mu.Unlock()
	if hit && time.Now().Before(c.until) {
		return c.value, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
	defer cancel()
	resp, err := a.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("review token: %w", err)
	}
	var u *user
	if resp.Status.Authenticated {
		u = &user{name: resp.Status.User.Username, uid: resp.Status.User.UID, groups: resp.Status.User.Groups, extra: map[string][]string{}}
		for k, v := range resp.Status.User.Extra {
			u.extra[k] = v
		}
	}
	put(&a.mu, a.tokens, key, u, tokenTTL)
	return u, nil
}

func (a *auth) authorize(ctx context.Context, u *user, verb, sub string) (bool, error) {
	for _, g := range u.groups {
		if g == "system:masters" {
			return true, nil
		}
	}
	if a.client == nil {
		return true, nil
	}
	key := strings.Join(append([]string{u.name, u.uid, verb, sub}, u.groups...), "\x00") + fmt.Sprint(u.extra)
	a.mu.Lock()
	c, hit := a.access[key]
	a.mu.Unlock()
	if hit && time.Now().Before(c.until) {
		return c.value, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	spec := authorizationv1.SubjectAccessReviewSpec{
		User: u.name, UID: u.uid, Groups: u.groups,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: "nodes", Subresource: sub, Name: a.node},
	}
	for k, v := range u.extra {
		if spec.Extra == nil {
			spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		spec.Extra[k] = v
	}
	resp, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("review access: %w", err)
	}
	ttl := deniedTTL
	if resp.Status.Allowed {
		ttl = allowedTTL
	}
	put(&a.mu, a.access, key, resp.Status.Allowed, ttl)
	return resp.Status.Allowed, nil
}

func put[T any](mu *sync.Mutex, m map[string]cached[T], key string, v T, ttl time.Duration) {
	mu.Lock()
	defer mu.Unlock()
	if len(m) >= cacheSize {
		now := time.Now()
		for k, c := range m {
			if now.After(c.until) || len(m) >= cacheSize {
				delete(m, k)
			}
		}
	}
	m[key] = cached[T]{v, time.Now().Add(ttl)}
}

// attributes are what a request asks for: a verb on subresources of the node, any
// of which will do.
func attributes(r *http.Request) (verb string, subs []string) {
	switch r.Method {
	case http.MethodPost:
		verb = "create"
	case http.MethodGet:
		verb = "get"
	case http.MethodPut:
		verb = "update"
	case http.MethodPatch:
		verb = "patch"
	case http.MethodDelete:
		verb = "delete"
	}
	top, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch top {
	case "stats", "metrics", "checkpoint", "statusz":
		return verb, []string{top}
	case "logs":
		return verb, []string{"log"}
	case "flagz":
		return verb, []string{"configz"}
	case "pods", "runningpods":
		return verb, []string{"pods", "proxy"}
	case "healthz", "configz":
		return verb, []string{top, "proxy"}
	}
	return verb, []string{"proxy"}
}
