// Package apiserver is the API server: the HTTP server, its chain of filters, and what
// it serves besides resources (health, version, metrics, discovery, OpenAPI).
//
// Owns: composing the parts that live in its sub-packages. Must not: hold their logic.
package apiserver

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/api"
	apischema "github.com/skiff-k8s/skiff/api/openapi"
	"github.com/skiff-k8s/skiff/apiserver/apply"
	"github.com/skiff-k8s/skiff/apiserver/audit"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/discovery"
	"github.com/skiff-k8s/skiff/apiserver/flowcontrol"
	"github.com/skiff-k8s/skiff/apiserver/openapi"
	"github.com/skiff-k8s/skiff/apiserver/rest"
	"github.com/skiff-k8s/skiff/apiserver/seams"
	"github.com/skiff-k8s/skiff/apiserver/streams"
)

// How many reads and writes are in work at most, as upstream's defaults.
const (
	MaxInFlight = 400
	MaxMutating = 200
)

// Config is all that an API server is made of.
type Config struct {
	Caches    cacher.Set
	Scheme    *runtime.Scheme
	Resources []*api.Resource
	// Computed are the resources among them that are not stored but made when they are asked for.
	Computed map[schema.GroupResource]rest.Computed
	// Served are further resources, for those that need more than their declaration.
	Served []*seams.Served

	// Authenticator nil: everyone is system:anonymous. Authorizer nil: all is allowed.
	// Admission nil: all is admitted. Only tests leave them out.
	Authenticator authenticator.Request
	Authorizer    authorizer.Authorizer
	Admission     seams.Admission
	// Audit records requests; may be nil. Who makes it runs it.
	Audit *audit.Auditor

	Endpoints []seams.Endpoint
	Hooks     []seams.Hooks
	// Paths are handlers of non-resource paths (/openid/v1/jwks …), behind
	// authorization; one that ends in a slash has everything below it.
	Paths map[string]http.Handler
	// Aggregate wraps what answers requests, behind authorization: API groups of other servers.
	// fail answers with an error as Status. May be nil.
	Aggregate func(next http.Handler, fail func(http.ResponseWriter, *http.Request, error)) http.Handler
	// Checks join /readyz, and /livez where they say so.
	Checks []Check

	// Listener accepts connections; Run closes it. nil: ServeHTTP and Transport only.
	Listener net.Listener
	// TLS serves HTTPS; nil: plain HTTP, for tests.
	TLS *tls.Config
	// ServerAddress is what /api advertises ("192.0.2.1:6443"); may be empty.
	ServerAddress string
	// KubeletTLS authenticates the server to kubelets; nil: plain defaults.
	KubeletTLS *tls.Config

	// Flow is priority and fairness; who makes it runs it. nil: MaxInFlight and MaxMutating
	// bound concurrent reads and writes; 0: the constants of that name.
	Flow                     *flowcontrol.Controller
	MaxInFlight, MaxMutating int
	// GoawayChance is of how many HTTP/2 requests, from 0 to 1, one ends its connection once all
	// that is in work on it is through, so that balancers may spread clients anew.
	GoawayChance float64

	// What follows the end of Run's context. At first /readyz fails, and Leave takes the server
	// out of where clients find it; may be nil.
	Leave func(context.Context)
	// ShutdownDelay is how long all is served as before meanwhile: balancers need time to notice.
	ShutdownDelay time.Duration
	// Then watches end: at once, or each at some time within WatchGrace.
	WatchGrace time.Duration
	// ShutdownGrace is how long what is in work may go on then; 0: 10 s.
	ShutdownGrace time.Duration
	// ShutdownRetryAfter refuses new requests with 429 until requests in work are through,
	// instead of new connections.
	ShutdownRetryAfter bool

	Logger *slog.Logger
	Clock  clock.PassiveClock
}

// Server is an API server.
type Server struct {
	c         Config
	log       *slog.Logger
	registry  *rest.Registry
	resolver  *request.RequestInfoFactory
	discovery *discovery.Handler
	openapi   *openapi.Handler
	metrics   *metrics
	health    *health
	handler   http.Handler
	http      *http.Server
	work      work
	serving   chan struct{} // closed once Run serves
	unready   chan struct{} // closed when the server is about to end
	stopping  chan struct{} // closed when watches must end
	started   atomic.Bool
}

// New builds a server; nothing runs yet but ServeHTTP and Transport work.
func New(c Config) (*Server, error) {
	if c.Caches == nil || c.Scheme == nil {
		return nil, errors.New("apiserver: Config.Caches and Config.Scheme are required")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	if c.Authorizer == nil {
		c.Authorizer = authorizer.AuthorizerFunc(func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionAllow, "", nil
		})
	}
	c.MaxInFlight = cmp.Or(c.MaxInFlight, MaxInFlight)
	c.MaxMutating = cmp.Or(c.MaxMutating, MaxMutating)
	if c.ShutdownGrace == 0 {
		c.ShutdownGrace = 10 * time.Second
	}
	s := &Server{c: c, log: c.Logger, metrics: newMetrics(c.Clock),
		serving: make(chan struct{}), unready: make(chan struct{}), stopping: make(chan struct{})}
	s.resolver = &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	kubelets := streams.New(streams.Config{TLS: c.KubeletTLS, Caches: c.Caches, Authorizer: c.Authorizer, Logger: c.Logger})
	s.registry = rest.NewRegistry(rest.Config{
		Caches: c.Caches, Scheme: c.Scheme, Admission: c.Admission, Authorizer: c.Authorizer,
		Endpoints: append(kubelets.Endpoints(), c.Endpoints...), Hooks: c.Hooks, Types: s.types,
		Computed: s.computed(),
		Clock:    c.Clock, Logger: c.Logger, Stopping: s.stopping, StoppingGrace: c.WatchGrace,
	})
	served := serve(c.Scheme, c.Resources)
	if err := s.registry.Add(append(served, c.Served...)...); err != nil {
		return nil, fmt.Errorf("apiserver: %w", err)
	}
	s.discovery = discovery.New(discovery.Config{Source: s.registry, Codecs: s.registry.Codecs(), Address: c.ServerAddress, Fail: s.registry.WriteError})
	s.openapi = openapi.New(openapi.Config{Source: s.registry, Definitions: apischema.Raw, Version: Version().GitVersion, Logger: c.Logger})
	s.health = newHealth(append(storeCheck(c.Caches), c.Checks...), s.unready, c.Logger)
	if c.Flow != nil {
		s.metrics.more = append(s.metrics.more, c.Flow.WriteMetrics)
	}
	s.handler = s.chain()
	s.http = newHTTPServer(s.handler, c)
	return s, nil
}

// computed are the resources that are made when they are asked for.
func (s *Server) computed() map[schema.GroupResource]rest.Computed {
	all := map[schema.GroupResource]rest.Computed{componentStatuses: s.componentStatus}
	maps.Copy(all, s.c.Computed)
	return all
}

// types is how the fields of built-in kinds merge.
func (s *Server) types() (managedfields.TypeConverter, error) {
	parser, err := apischema.Parser()
	if err != nil {
		return nil, err
	}
	return apply.NewTypes(s.c.Scheme, parser), nil
}

// newHTTPServer sizes HTTP/2 for API traffic: many small streams, request bodies of up
// to 3 MiB, and dead connections found by pings.
func newHTTPServer(h http.Handler, c Config) *http.Server {
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 32 * time.Second, // just shy of requestTimeoutUpperBound
		IdleTimeout:       90 * time.Second,
		MaxHeaderBytes:    1 << 20,
		ErrorLog:          log.New(debugWriter{c.Logger}, "", 0),
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams:          250,
			MaxReadFrameSize:              64 << 10,
			MaxReceiveBufferPerConnection: 1 << 20,
			MaxReceiveBufferPerStream:     256 << 10,
			SendPingTimeout:               30 * time.Second,
			PingTimeout:                   15 * time.Second,
		},
	}
}

// debugWriter takes net/http's complaints about clients (failed handshakes …).
type debugWriter struct{ log *slog.Logger }

func (w debugWriter) Write(p []byte) (int, error) {
	w.log.Debug("http server", "text", string(p))
	return len(p), nil
}

// Registry adds and removes resources at run time.
func (s *Server) Registry() *rest.Registry { return s.registry }

// ServeHTTP is the whole chain, for tests and listeners of others.
func (s *Server) ServeHTTP(w http.ResponseWriter, req *http.Request) { s.handler.ServeHTTP(w, req) }

// Run serves the listener until ctx ends; then it shuts down as the configuration says. It
// may be called once.
func (s *Server) Run(ctx context.Context) error {
	if s.started.Swap(true) {
		return errors.New("apiserver: Run was called before")
	}
	if s.c.Listener == nil {
		close(s.serving)
		<-ctx.Done()
		close(s.unready)
		close(s.stopping)
		return nil
	}
	ln := s.c.Listener
	if s.c.TLS != nil {
		conf := s.c.TLS.Clone()
		conf.MinVersion = max(conf.MinVersion, tls.VersionTLS12)
		conf.NextProtos = []string{"h2", "http/1.1"}
		ln = tls.NewListener(ln, conf)
	}
	// What outlives the grace (streams, slow handlers) sees its context end with Run.
	base, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	s.http.BaseContext = func(net.Listener) context.Context { return base }
	served := make(chan error, 1)
	go func() { served <- s.http.Serve(ln) }()
	close(s.serving)
	select {
	case err := <-served:
		close(s.unready)
		close(s.stopping)
		return fmt.Errorf("serving %s: %w", s.c.Listener.Addr(), err)
	case <-ctx.Done():
	}
	return s.shutdown(ctx, served)
}
