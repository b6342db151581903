// Package webhook calls what users run behind URLs and Services on the API server's
// behalf: admission and conversion webhooks.
//
// Owns: finding, trusting and keeping connections to them. Must not: know what is asked.
package webhook

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

const (
	// maxClients bounds how many sets of connections are kept.
	maxClients = 64
	// maxAnswer bounds what a webhook may answer.
	maxAnswer = 10 << 20
)

// Target says where a webhook is: behind a URL or a Service.
type Target struct {
	URL     string
	Service *Service
	// CABundle is the PEM of who signed its certificate; empty: the system's roots.
	CABundle []byte
}

// Service names a port of a Service and a path.
type Service struct {
	Namespace, Name, Path string
	// Port is 443 if 0.
	Port int32
}

// Caller calls webhooks. Its methods may be called concurrently.
type Caller struct {
	caches lookup.Caches

	mu      sync.Mutex
	clients map[clientKey]*http.Client
}

type clientKey struct {
	host    string
	service bool
	ca      [sha256.Size]byte
}

// New returns a Caller that finds Services in caches.
func New(caches lookup.Caches) *Caller {
	return &Caller{caches: caches, clients: map[clientKey]*http.Client{}}
}

// address is the URL of a target, by the name that its certificate must have.
func (t *Target) address() (*url.URL, error) {
	if t.Service == nil {
		u, err := url.Parse(t.URL)
		if err != nil {
			return nil, fmt.Errorf("parse webhook URL: %w", err)
		}
		return u, nil
	}
	port := t.Service.Port
	if port == 0 {
		port = 443
	}
	return &url.URL{Scheme: "https", Host: fmt.Sprintf("%s.%s.svc:%d", t.Service.Name, t.Service.Namespace, port),
		Path: "/" + strings.TrimPrefix(t.Service.Path, "/")}, nil
}

// Post sends a JSON value and decodes the answer into out. An answer that is no success is the
// StatusError it carries, or one made of its code. The deadline of ctx is told to the webhook.
func (c *Caller) Post(ctx context.Context, t *Target, in, out any) error {
	u, err := t.address()
	if err != nil {
		return err
	}
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		seconds := (left + time.Second - 1) / time.Second
		query := u.Query()
		query.Set("timeout", fmt.Sprintf("%ds", max(int64(seconds), 1)))
		u.RawQuery = query.Encode()
	}
	client, err := c.client(t, u.Host)
	if err != nil {
		return err
	}
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, */*")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if len(answer) > maxAnswer {
		return fmt.Errorf("answer is longer than %d bytes", maxAnswer)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return refused(resp.StatusCode, answer)
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("couldn't get version/kind; json parse error: %w", err)
	}
	return nil
}

// refused is the error an answer carries.
func refused(code int, body []byte) error {
	var status metav1.Status
	if json.Unmarshal(body, &status) == nil && status.Kind == "Status" && status.Status == metav1.StatusFailure {
		return &apierrors.StatusError{ErrStatus: status}
	}
	return apierrors.NewGenericServerResponse(code, http.MethodPost, schema.GroupResource{}, "", strings.TrimSpace(string(body)), 0, true)
}

// client is the one for a host and what it must be signed by.
func (c *Caller) client(t *Target, host string) (*http.Client, error) {
	key := clientKey{host, t.Service != nil, sha256.Sum256(t.CABundle)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if client, ok := c.clients[key]; ok {
		return client, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if len(t.CABundle) > 0 {
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(t.CABundle) {
			return nil, errors.New("unable to load root certificates: unable to parse bytes as PEM block")
		}
	}
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	transport := &http.Transport{TLSClientConfig: config, DialContext: dialer.DialContext, ForceAttemptHTTP2: true,
		TLSHandshakeTimeout: 10 * time.Second, MaxIdleConnsPerHost: 25, IdleConnTimeout: 90 * time.Second,
		// A connection to a Pod that vanished must not be found dead by every request in turn.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second}}
	if s := t.Service; s != nil {
		port := s.Port
		if port == 0 {
			port = 443
		}
		namespace, name := s.Namespace, s.Name
		transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
			addr, err := Resolve(ctx, c.caches, namespace, name, port)
			if err != nil {
				return nil, err
			}
			return dialer.DialContext(ctx, network, addr)
		}
	} else {
		transport.Proxy = http.ProxyFromEnvironment
	}
	if len(c.clients) >= maxClients {
		for _, old := range c.clients {
			old.CloseIdleConnections()
		}
		clear(c.clients)
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	c.clients[key] = client
	return client, nil
}
