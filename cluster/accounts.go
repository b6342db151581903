package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/google/uuid"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers"
)

// ProcessIdentity tells this process from all others, for leader election.
func ProcessIdentity() (string, error) {
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("find the host's name: %w", err)
	}
	return host + "_" + uuid.NewString(), nil
}

// RemoteClients makes the clients of a configuration over connections of their own.
func RemoteClients(cfg *rest.Config) (controllers.Clients, error) {
	hc, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return controllers.Clients{}, fmt.Errorf("make client: %w", err)
	}
	return clientsFor(cfg, hc)
}

// AccountClients gives each controller clients that act as its ServiceAccount in
// kube-system, with tokens that the API server issues to the base user
// (--use-service-account-credentials).
func AccountClients(base *rest.Config, issuer kubernetes.Interface, log *slog.Logger) func(account string) controllers.Clients {
	return func(account string) controllers.Clients {
		cfg := rest.AnonymousClientConfig(base)
		cfg.QPS, cfg.Burst, cfg.ContentConfig = base.QPS, base.Burst, base.ContentConfig
		cfg.UserAgent = base.UserAgent + "/" + account
		source := &accountTokens{account: account, client: issuer, clock: clock.RealClock{}, log: log}
		cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return withToken{source, next} })
		clients, err := RemoteClients(cfg)
		if err != nil { // the base configuration has worked
			panic(err)
		}
		return clients
	}
}

// withToken adds a ServiceAccount's token to requests.
type withToken struct {
	source *accountTokens
	next   http.RoundTripper
}

func (t withToken) RoundTrip(req *http.Request) (*http.Response, error) {
	token, err := t.source.token(req.Context())
	if err != nil {
		return nil, err
	}
	req = req.Clone(req.Context())
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := t.next.RoundTrip(req)
	if err == nil && resp.StatusCode == http.StatusUnauthorized {
		t.source.forget(token) // the account was made anew
	}
	return resp, err
}

// accountTokens gets tokens of one ServiceAccount and renews them in time.
type accountTokens struct {
	account string
	client  kubernetes.Interface
	clock   clock.PassiveClock
	log     *slog.Logger

	mu      sync.Mutex
	current string
	renew   time.Time
}

const tokenLife = time.Hour

func (s *accountTokens) forget(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == token {
		s.current = ""
	}
}

func (s *accountTokens) token(ctx context.Context) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != "" && s.clock.Now().Before(s.renew) {
		return s.current, nil
	}
	got, err := s.request(ctx)
	if apierrors.IsNotFound(err) {
		sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: s.account}}
		if _, err := s.client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).Create(ctx, sa, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return "", fmt.Errorf("create ServiceAccount %s: %w", s.account, err)
		}
		got, err = s.request(ctx)
	}
	if err != nil {
		if s.current != "" { // it may still be good
			s.log.Warn("renew token", "account", s.account, "err", err)
			return s.current, nil
		}
		return "", fmt.Errorf("request token of ServiceAccount %s: %w", s.account, err)
	}
	s.current = got.Status.Token
	// Four fifths of its life, as kubelets renew theirs.
	s.renew = s.clock.Now().Add(got.Status.ExpirationTimestamp.Sub(s.clock.Now()) * 4 / 5)
	return s.current, nil
}

func (s *accountTokens) request(ctx context.Context) (*authenticationv1.TokenRequest, error) {
	req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To(int64(tokenLife / time.Second))}}
	return s.client.CoreV1().ServiceAccounts(metav1.NamespaceSystem).CreateToken(ctx, s.account, req, metav1.CreateOptions{})
}
