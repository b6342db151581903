// Package aggregator serves APIServices: API groups of other servers, which appear to
// clients as if they were this server's own.
//
// Owns: which group versions are elsewhere, whether they can be reached, and the way
// there. Must not: authenticate or authorize; the chain before it has.
package aggregator

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	discoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/webhook"
)

// Config configures an Aggregator.
type Config struct {
	Caches lookup.Caches
	// Client authenticates this server, as one that may speak for users, to the others.
	Client tls.Certificate
	Log    *slog.Logger
	// Clock defaults to the real one.
	Clock clock.Clock
}

// Aggregator follows APIServices.
type Aggregator struct {
	Config
	services cacher.Resource
	follower *lookup.Follower
	wake     chan struct{} // holds one token

	mu sync.Mutex // held by writers of table
	// table is empty in most clusters; requests look at it first.
	table atomic.Pointer[map[schema.GroupVersion]*remote]
}

// remote is a group version that another server has.
type remote struct {
	service   *apiregistrationv1.APIService
	transport *http.Transport
	key       transportKey
	// discovery is what the server said it has; nil until it did.
	discovery atomic.Pointer[discoveryv2.APIVersionDiscovery]
}

type transportKey struct {
	namespace, name string
	port            int32
	insecure        bool
	ca              [sha256.Size]byte
}

var gr = schema.GroupResource{Group: apiregistrationv1.GroupName, Resource: "apiservices"}

// New returns an Aggregator.
func New(c Config) (*Aggregator, error) {
	if c.Caches == nil {
		return nil, errors.New("aggregator: Caches must be set")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	r, err := lookup.Resource(c.Caches, gr)
	if err != nil {
		return nil, fmt.Errorf("aggregator: %w", err)
	}
	a := &Aggregator{Config: c, services: r, wake: make(chan struct{}, 1)}
	a.table.Store(&map[schema.GroupVersion]*remote{})
	a.follower = lookup.NewFollower(r, a, c.Log)
	return a, nil
}

// Run follows APIServices and checks them until ctx ends.
func (a *Aggregator) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.follower.Run(ctx) })
	g.Go(func() error { a.checkAll(ctx); return nil })
	return g.Wait()
}

// WaitReady returns once the APIServices that were there at the start are known.
func (a *Aggregator) WaitReady(ctx context.Context) error {
	select {
	case <-a.follower.Synced():
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Replace implements lookup.Index.
func (a *Aggregator) Replace(objs []cacher.Object) {
	a.change(func(t map[schema.GroupVersion]*remote) {
		old := maps.Clone(t)
		clear(t)
		for _, o := range objs {
			a.put(t, old, o)
		}
	})
}

// Set implements lookup.Index.
func (a *Aggregator) Set(o cacher.Object) {
	a.change(func(t map[schema.GroupVersion]*remote) { a.put(t, t, o) })
}

// Delete implements lookup.Index.
func (a *Aggregator) Delete(o cacher.Object) {
	a.change(func(t map[schema.GroupVersion]*remote) {
		if s, ok := o.Runtime().(*apiregistrationv1.APIService); ok {
			delete(t, groupVersion(s))
		}
	})
}

func (a *Aggregator) change(f func(map[schema.GroupVersion]*remote)) {
	a.mu.Lock()
	next := maps.Clone(*a.table.Load())
	f(next)
	a.table.Store(&next)
	a.mu.Unlock()
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// put notes an APIService; one without service names what this server has itself.
func (a *Aggregator) put(t, old map[schema.GroupVersion]*remote, o cacher.Object) {
	s, ok := o.Runtime().(*apiregistrationv1.APIService)
	if !ok {
		return
	}
	gv := groupVersion(s)
	if s.Spec.Service == nil {
		delete(t, gv)
		return
	}
	key := keyOf(s)
	next := &remote{service: s, key: key}
	if before := old[gv]; before != nil && before.key == key {
		next.transport = before.transport
		next.discovery.Store(before.discovery.Load())
	} else {
		next.transport = a.newTransport(s, key)
	}
	t[gv] = next
}

func groupVersion(s *apiregistrationv1.APIService) schema.GroupVersion {
	return schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version}
}

func keyOf(s *apiregistrationv1.APIService) transportKey {
	k := transportKey{namespace: s.Spec.Service.Namespace, name: s.Spec.Service.Name, port: 443,
		insecure: s.Spec.InsecureSkipTLSVerify, ca: sha256.Sum256(s.Spec.CABundle)}
	if p := s.Spec.Service.Port; p != nil {
		k.port = *p
	}
	return k
}

func (k *transportKey) host() string { return fmt.Sprintf("%s.%s.svc", k.name, k.namespace) }

func (a *Aggregator) newTransport(s *apiregistrationv1.APIService, key transportKey) *http.Transport {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: key.host(), InsecureSkipVerify: key.insecure}
	if len(a.Client.Certificate) > 0 {
		config.Certificates = []tls.Certificate{a.Client}
	}
	if len(s.Spec.CABundle) > 0 {
		config.RootCAs = x509.NewCertPool()
		config.RootCAs.AppendCertsFromPEM(s.Spec.CABundle)
	}
	dialer := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		TLSClientConfig: config, ForceAttemptHTTP2: true, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 25, IdleConnTimeout: 90 * time.Second,
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			addr, err := webhook.Resolve(ctx, a.Caches, key.namespace, key.name, key.port)
			if err != nil {
				return nil, err
			}
			return dialer.DialContext(ctx, network, addr)
		},
	}
}

// available says what the last check found.
func available(s *apiregistrationv1.APIService) bool {
	for _, c := range s.Status.Conditions {
		if c.Type == apiregistrationv1.Available {
			return c.Status == apiregistrationv1.ConditionTrue
		}
	}
	return false
}
