// Package authn tells who makes a request: client certificates, ServiceAccount tokens,
// bootstrap tokens, static tokens, anonymous; and issues ServiceAccount tokens.
//
// Owns: credentials and the identity that follows from them, impersonation included.
// Must not: decide what the identity may do, or write HTTP errors.
package authn

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

// Config says which credentials count.
type Config struct {
	// ClientCAs verify client certificates; called for each new certificate, so that it may
	// change. nil: no client certificates. Reload tells whether the pool is another one by its pointer.
	ClientCAs func() *x509.CertPool
	// Issuer verifies ServiceAccount tokens; nil: none.
	Issuer *Issuer
	// Caches hold the objects that tokens are bound to.
	Caches lookup.Caches
	// Bootstrap allows bootstrap tokens (Secrets in kube-system).
	Bootstrap bool
	// Tokens are static bearer tokens; for tests.
	Tokens map[string]user.Info
	// FrontProxy may name users in headers; nil: nobody may.
	FrontProxy *FrontProxy
	// Anonymous lets requests without credentials pass as system:anonymous.
	Anonymous bool
	// MarkUsed, if set, is told of each use of a Secret-based ServiceAccount token whose
	// kubernetes.io/legacy-token-last-used label is not today's date. It must not block.
	MarkUsed func(namespace, secret, today string)
	// Clock defaults to the real one.
	Clock clock.PassiveClock
}

// Authenticator is an authenticator.Request; tokens alone (TokenReview) go to Token.
type Authenticator struct {
	certificates *certificates
	frontProxy   *frontProxy
	tokens       []authenticator.Token
	anonymous    bool
	audiences    authenticator.Audiences
}

// New builds an Authenticator.
func New(c Config) (*Authenticator, error) {
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	a := &Authenticator{anonymous: c.Anonymous}
	if c.FrontProxy != nil {
		var err error
		if a.frontProxy, err = newFrontProxy(c.FrontProxy, c.Clock); err != nil {
			return nil, err
		}
	}
	if c.ClientCAs != nil {
		a.certificates = newCertificates(c.ClientCAs, c.Clock)
	}
	if len(c.Tokens) > 0 {
		a.tokens = append(a.tokens, staticTokens(c.Tokens))
	}
	if (c.Issuer != nil || c.Bootstrap) && c.Caches == nil {
		return nil, errors.New("authn: Caches are needed to check tokens against the objects they are bound to")
	}
	if c.Issuer != nil {
		a.audiences = c.Issuer.audiences
		a.tokens = append(a.tokens, &serviceAccountTokens{
			issuer: c.Issuer, caches: c.Caches, clock: c.Clock, markUsed: c.MarkUsed,
			verified: newVerifiedTokens(),
		})
	}
	if c.Bootstrap {
		a.tokens = append(a.tokens, &bootstrapTokens{caches: c.Caches, clock: c.Clock})
	}
	return a, nil
}

// Audiences are those that the API server answers to.
func (a *Authenticator) Audiences() authenticator.Audiences { return a.audiences }

// AuthenticateRequest implements authenticator.Request. A credential that is wrong is an
// error even where anonymous requests are let in.
func (a *Authenticator) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if a.frontProxy != nil {
		if resp, ok := a.frontProxy.AuthenticateRequest(req); ok {
			return resp, true, nil
		}
	}
	if a.certificates != nil {
		resp, ok, err := a.certificates.AuthenticateRequest(req)
		if ok {
			return authenticated(resp), true, nil
		}
		if err != nil {
			if token, _ := bearerToken(req); token == "" {
				return nil, false, err
			}
		}
	}
	token, remove := bearerToken(req)
	if token != "" {
		ctx := req.Context()
		if _, ok := authenticator.AudiencesFrom(ctx); !ok && len(a.audiences) > 0 {
			ctx = authenticator.WithAudiences(ctx, a.audiences)
		}
		resp, ok, err := a.AuthenticateToken(ctx, token)
		if ok {
			remove()
			return resp, true, nil
		}
		if err == nil {
			err = errors.New("invalid bearer token")
		}
		return nil, false, err
	}
	if a.anonymous {
		return &authenticator.Response{
			User:      &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}},
			Audiences: a.audiences,
		}, true, nil
	}
	return nil, false, nil
}

// AuthenticateToken implements authenticator.Token.
func (a *Authenticator) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	var errs []error
	for _, t := range a.tokens {
		resp, ok, err := t.AuthenticateToken(ctx, token)
		if ok {
			return authenticated(resp), true, nil
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return nil, false, errors.Join(errs...)
}

// authenticated adds the group that everyone but the anonymous is in.
func authenticated(r *authenticator.Response) *authenticator.Response {
	if r.User.GetName() == user.Anonymous || slices.Contains(r.User.GetGroups(), user.AllAuthenticated) {
		return r
	}
	u := r.User
	out := *r
	out.User = &user.DefaultInfo{
		Name:   u.GetName(),
		UID:    u.GetUID(),
		Groups: append(slices.Clip(slices.Clone(u.GetGroups())), user.AllAuthenticated),
		Extra:  u.GetExtra(),
	}
	return &out
}

// bearerProtocol is the WebSocket subprotocol that carries a token for clients that
// cannot set headers (browsers).
const bearerProtocol = "base64url.bearer.authorization.k8s.io."

// bearerToken finds the request's token; remove takes it out so that no proxied
// server sees it.
func bearerToken(req *http.Request) (token string, remove func()) {
	if h := strings.TrimSpace(req.Header.Get("Authorization")); h != "" {
		scheme, rest, _ := strings.Cut(h, " ")
		if !strings.EqualFold(scheme, "bearer") {
			return "", nil
		}
		return strings.TrimSpace(rest), func() { req.Header.Del("Authorization") }
	}
	if !strings.EqualFold(req.Header.Get("Upgrade"), "websocket") {
		return "", nil
	}
	var kept []string
	for _, h := range req.Header["Sec-Websocket-Protocol"] {
		for _, p := range strings.Split(h, ",") {
			p = strings.TrimSpace(p)
			if enc, ok := strings.CutPrefix(p, bearerProtocol); ok && token == "" {
				raw, err := decodeSegment(strings.TrimRight(enc, "="))
				if err != nil {
					return "", nil
				}
				token = string(raw)
				continue
			}
			kept = append(kept, p)
		}
	}
	if len(kept) == 0 {
		// A client must offer a protocol that the server can choose besides the token's.
		return "", nil
	}
	return token, func() { req.Header["Sec-Websocket-Protocol"] = []string{strings.Join(kept, ",")} }
}

type staticTokens map[string]user.Info

func (s staticTokens) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	u, ok := s[token]
	if !ok {
		return nil, false, nil
	}
	return &authenticator.Response{User: u}, true, nil
}

var (
	_ authenticator.Request = (*Authenticator)(nil)
	_ authenticator.Token   = (*Authenticator)(nil)
)
