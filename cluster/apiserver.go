package cluster

import (
	"cmp"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/api/builtin"
	"github.com/skiff-k8s/skiff/api/metrics"
	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/admission"
	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/aggregator"
	"github.com/skiff-k8s/skiff/apiserver/allocate"
	"github.com/skiff-k8s/skiff/apiserver/audit"
	"github.com/skiff-k8s/skiff/apiserver/authn"
	"github.com/skiff-k8s/skiff/apiserver/authz"
	"github.com/skiff-k8s/skiff/apiserver/binding"
	"github.com/skiff-k8s/skiff/apiserver/bootstrap"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/crd"
	"github.com/skiff-k8s/skiff/apiserver/eviction"
	"github.com/skiff-k8s/skiff/apiserver/flowcontrol"
	"github.com/skiff-k8s/skiff/apiserver/metricsapi"
	"github.com/skiff-k8s/skiff/apiserver/rest"
	"github.com/skiff-k8s/skiff/apiserver/reviews"
	"github.com/skiff-k8s/skiff/apiserver/seams"
	"github.com/skiff-k8s/skiff/apiserver/webhook"
	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/component/profiling"
	"github.com/skiff-k8s/skiff/host/netlink"
)

// APIServerConfig is an API server with its store: where it keeps things, where it
// listens, whom it trusts.
type APIServerConfig struct {
	Store StoreConfig

	// Bind is where it listens, Advertise the address that clients in the cluster are given.
	Bind      netip.AddrPort
	Advertise netip.Addr
	Serving   *tls.Config

	// ClientCA verifies users' certificates, as PEM; empty: none are accepted.
	ClientCA []byte
	// FrontProxyCA verifies proxies that name users in headers, as PEM; FrontProxy says which
	// headers. Both empty: nobody may.
	FrontProxyCA []byte
	FrontProxy   *authn.FrontProxy
	// Tokens are static bearer tokens.
	Tokens                     map[string]user.Info
	Anonymous, BootstrapTokens bool

	// TokenKey signs ServiceAccount tokens, TokenKeys verify further ones.
	TokenKey  crypto.Signer
	TokenKeys []crypto.PublicKey
	// Issuer is the tokens' issuer; FormerIssuers still verify.
	Issuer        string
	FormerIssuers []string
	Audiences     []string
	JWKSURI       string

	ServiceCIDRs []netip.Prefix
	// Kubelets is how kubelets are connected to, ExtensionServers the certificate that
	// extension API servers are shown.
	Kubelets         *tls.Config
	ExtensionServers tls.Certificate

	// ResourceMetrics serves metrics.k8s.io from kubelets' resource metrics.
	ResourceMetrics bool

	// Policy is what is granted beyond the standard roles.
	Policy bootstrap.Policy

	// MaxInFlight and MaxMutating bound concurrent requests; 0: the server's defaults.
	MaxInFlight, MaxMutating int
	// WithoutFairness bounds requests by these two alone, without priority and fairness.
	WithoutFairness bool

	// Endpoints is how the addresses behind the kubernetes Service are kept, Servers of how many
	// API servers; Peer is where the others reach this one. All may be zero.
	Endpoints bootstrap.Reconciler
	Servers   int
	Peer      netip.AddrPort

	// How the server ends and what it does for balancers, as in apiserver.Config.
	ShutdownDelay, ShutdownGrace, WatchGrace time.Duration
	ShutdownRetryAfter                       bool
	GoawayChance                             float64

	// Profiling serves profiles of the process below profiling.Path.
	Profiling bool

	// Audit records requests; nil: they are not recorded.
	Audit *audit.Auditor

	Logger *slog.Logger
}

// apiServer is an API server with what it needs to run, in the order of its start.
type apiServer struct {
	server  *apiserver.Server
	caches  *cacher.Caches
	members []component.Member
}

// RunAPIServer runs an API server alone until ctx ends.
func RunAPIServer(ctx context.Context, c APIServerConfig) error {
	s, err := newAPIServer(c)
	if err != nil {
		return err
	}
	group := component.NewGroup(c.Logger)
	for _, m := range s.members {
		group.Add(m)
	}
	group.Add(trim())
	return group.Run(ctx)
}

// newAPIServer composes an API server; nothing runs before its members do.
func newAPIServer(c APIServerConfig) (*apiServer, error) {
	log := c.Logger
	db, err := openStore(c.Store, log.With("component", "etcd"))
	if err != nil {
		return nil, err
	}
	scheme, resources := builtin.Scheme(), builtin.Resources()
	if c.ResourceMetrics {
		if err := metrics.AddToScheme(scheme); err != nil {
			return nil, fmt.Errorf("register kinds of metrics: %w", err)
		}
		resources = append(resources, metrics.Resources()...)
	}
	c.Store.expire(resources)
	caches, err := cacher.New(cacher.Config{Store: db, Prefix: c.Store.External.keyPrefix(), Scheme: scheme, Logger: log.With("component", "cacher")})
	if err != nil {
		return nil, err
	}
	if err := apiserver.AddStorage(caches, resources); err != nil {
		return nil, err
	}
	issuer, err := authn.NewIssuer(authn.IssuerConfig{
		Key: c.TokenKey, Keys: c.TokenKeys, URL: c.Issuer, AcceptURLs: c.FormerIssuers, Audiences: c.Audiences,
	})
	if err != nil {
		return nil, err
	}
	var server *apiserver.Server
	uses := authn.NewUseMarker(func() seams.Stores { return server.Registry() }, log.With("component", "authn"))
	authentication := c.authentication(issuer, caches)
	authentication.MarkUsed = uses.Mark
	users, err := authn.New(authentication)
	if err != nil {
		return nil, err
	}
	nodeRules, err := bootstrap.NodeRules()
	if err != nil {
		return nil, err
	}
	rights, err := authz.New(authz.Config{Caches: caches, NodeRules: nodeRules, Log: log.With("component", "authz")})
	if err != nil {
		return nil, err
	}
	allocator, err := allocate.New(allocate.Config{Caches: caches, Store: db, Prefix: c.Store.External.keyPrefix(), Families: allocate.Families(c.ServiceCIDRs), Log: log.With("component", "allocate")})
	if err != nil {
		return nil, err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("find this host's name: %w", err)
	}
	objects, err := bootstrap.New(bootstrap.Config{
		Caches: caches, Store: db, Prefix: c.Store.External.keyPrefix(), ServiceCIDRs: c.ServiceCIDRs, Policy: c.Policy,
		AdvertiseAddress: c.Advertise, Port: int32(c.Bind.Port()),
		Hostname: hostname, Peer: c.Peer, Endpoints: c.Endpoints, Servers: c.Servers,
		Serving:  func(ctx context.Context) error { return server.Serving(ctx) },
		ClientCA: func() []byte { return c.ClientCA }, RequestHeaderCA: func() []byte { return c.FrontProxyCA },
		Log: log.With("component", "bootstrap"),
	})
	if err != nil {
		return nil, err
	}
	caller := webhook.New(caches)
	plugins, err := admission.New(admission.Config{
		Caches: caches, Authorizer: rights, Scheme: scheme, Caller: caller,
		Catalog:           func() match.Catalog { return server.Registry() },
		StorageProtection: true,
		Extra:             []seams.Admission{rights.Escalation()}, Log: log.With("component", "admission"),
	})
	if err != nil {
		return nil, err
	}
	endpoints, err := reviews.Endpoints(reviews.Config{
		Tokens: users, Audiences: users.Audiences(), Authorizer: rights, Rules: rights, Issuer: issuer, Caches: caches,
	})
	if err != nil {
		return nil, err
	}
	endpoints = append(endpoints, binding.Endpoints(caches, clock.RealClock{})...)
	endpoints = append(endpoints, eviction.Endpoint(caches, clock.RealClock{}))
	address := netip.AddrPortFrom(c.Advertise, c.Bind.Port()).String()
	discovery, err := issuer.Discovery(address, c.JWKSURI)
	if err != nil {
		return nil, err
	}
	others, err := aggregator.New(aggregator.Config{Caches: caches, Client: c.ExtensionServers, Log: log.With("component", "aggregator")})
	if err != nil {
		return nil, err
	}
	flow, err := c.flow(caches, log.With("component", "flowcontrol"))
	if err != nil {
		return nil, err
	}
	computed, err := c.computed(caches, log.With("component", "metricsapi"))
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", c.Bind.String())
	if err != nil {
		return nil, fmt.Errorf("listen for the API: %w", err)
	}
	fail := func(err error) (*apiServer, error) { return nil, errors.Join(err, listener.Close()) }
	paths := map[string]http.Handler{authn.OpenIDConfigPath: discovery, authn.JWKSPath: discovery}
	if c.Profiling {
		paths[profiling.Path] = profiling.Handler()
	}
	server, err = apiserver.New(apiserver.Config{
		Caches: caches, Scheme: scheme, Resources: resources, Computed: computed,
		Authenticator: users, Authorizer: rights,
		Admission: plugins, Endpoints: endpoints,
		Hooks:       []seams.Hooks{allocator.Hooks(), crd.Hooks(clock.RealClock{})},
		Paths:       paths,
		Aggregate:   others.Wrap,
		Checks:      []apiserver.Check{{Name: "rbac", Run: rights.WaitReady}},
		Listener:    listener,
		TLS:         c.Serving,
		KubeletTLS:  c.Kubelets,
		Flow:        flow,
		MaxInFlight: c.MaxInFlight, MaxMutating: c.MaxMutating,
		GoawayChance: c.GoawayChance, Leave: objects.Leave, ShutdownDelay: c.ShutdownDelay, WatchGrace: c.WatchGrace,
		ShutdownGrace: c.ShutdownGrace, ShutdownRetryAfter: c.ShutdownRetryAfter,
		ServerAddress: address, Audit: c.Audit,
		Logger: log.With("component", "apiserver"),
	})
	if err != nil {
		return fail(err)
	}
	definitions, err := crd.New(crd.Config{Caches: caches, Registry: server.Registry(), Caller: caller, Log: log.With("component", "crd")})
	if err != nil {
		return fail(err)
	}
	registrar, err := aggregator.NewRegistrar(aggregator.RegistrarConfig{Caches: caches, Served: server.Registry(), Log: log.With("component", "aggregator")})
	if err != nil {
		return fail(err)
	}
	members := []component.Member{
		{Name: "etcd", Component: db, Ready: waitClosed(db.Ready())},
		{Name: "cacher", Component: caches, Ready: waitClosed(caches.Ready())},
		{Name: "bootstrap", Component: objects},
		{Name: "authz", Component: rights},
		{Name: "allocate", Component: allocator},
		{Name: "crd", Component: definitions},
		{Name: "aggregator", Component: others},
		{Name: "apiservices", Component: registrar},
		{Name: "token-uses", Component: uses},
	}
	if flow != nil {
		members = append(members, component.Member{Name: "flowcontrol", Component: flow})
	}
	if c.Audit != nil {
		members = append(members, component.Member{Name: "audit", Component: c.Audit})
	}
	return &apiServer{server: server, caches: caches, members: append(members, component.Member{Name: "apiserver", Component: server})}, nil
}

// flow is priority and fairness; nil where it is not wanted. Its seats are those of reads
// and writes together, as upstream's.
func (c *APIServerConfig) flow(caches *cacher.Caches, log *slog.Logger) (*flowcontrol.Controller, error) {
	if c.WithoutFairness {
		return nil, nil
	}
	return flowcontrol.New(flowcontrol.Config{
		Caches: caches, Seats: cmp.Or(c.MaxInFlight, apiserver.MaxInFlight) + cmp.Or(c.MaxMutating, apiserver.MaxMutating), Log: log,
	})
}

// computed are the resources that are measured when they are asked for.
func (c *APIServerConfig) computed(caches *cacher.Caches, log *slog.Logger) (map[schema.GroupResource]rest.Computed, error) {
	if !c.ResourceMetrics {
		return nil, nil
	}
	source, err := metricsapi.New(metricsapi.Config{Caches: caches, Kubelets: c.Kubelets, Log: log})
	if err != nil {
		return nil, err
	}
	return map[schema.GroupResource]rest.Computed{metrics.Nodes: source.Nodes, metrics.Pods: source.Pods}, nil
}

// authentication is who may ask.
func (c *APIServerConfig) authentication(issuer *authn.Issuer, caches *cacher.Caches) authn.Config {
	a := authn.Config{
		Issuer: issuer, Caches: caches, Tokens: c.Tokens,
		Bootstrap: c.BootstrapTokens, Anonymous: c.Anonymous, FrontProxy: c.FrontProxy,
	}
	if len(c.ClientCA) > 0 {
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(c.ClientCA)
		a.ClientCAs = func() *x509.CertPool { return pool }
	}
	return a
}

// waitClosed makes a readiness channel a Ready function.
func waitClosed(ch <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ch:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// HostAddress is this host's address: the one that packets leave by.
func HostAddress() (netip.Addr, error) {
	a, err := netlink.DefaultAddress()
	if err != nil {
		return a, fmt.Errorf("find this host's address: %w", err)
	}
	return a, nil
}
