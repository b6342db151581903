package servertest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"net/http"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/admission"
	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/aggregator"
	"github.com/skiff-k8s/skiff/apiserver/allocate"
	"github.com/skiff-k8s/skiff/apiserver/authn"
	"github.com/skiff-k8s/skiff/apiserver/authz"
	"github.com/skiff-k8s/skiff/apiserver/binding"
	"github.com/skiff-k8s/skiff/apiserver/bootstrap"
	"github.com/skiff-k8s/skiff/apiserver/crd"
	"github.com/skiff-k8s/skiff/apiserver/eviction"
	"github.com/skiff-k8s/skiff/apiserver/flowcontrol"
	"github.com/skiff-k8s/skiff/apiserver/reviews"
	"github.com/skiff-k8s/skiff/apiserver/seams"
	"github.com/skiff-k8s/skiff/apiserver/webhook"
	"github.com/skiff-k8s/skiff/store"
)

// AdminToken is the bearer token of a user in system:masters on a Full server, UserToken
// that of one without any rights.
const (
	AdminToken = "admin"
	UserToken  = "nobody"
)

// Admin is the configuration of a client with AdminToken.
func (s *Server) Admin() *rest.Config {
	c := s.Config()
	c.BearerToken = AdminToken
	return c
}

// Full starts a server as clusters have it: authentication, RBAC, admission, allocation,
// the standard objects, custom resources. It returns once the standard objects are there.
func Full(t testing.TB, change ...func(*apiserver.Config)) *Server {
	t.Helper()
	return FullOn(t, nil, change...)
}

// FullOn is Full with these ranges of cluster IPs; none: 10.96.0.0/16.
func FullOn(t testing.TB, serviceCIDRs []netip.Prefix, change ...func(*apiserver.Config)) *Server {
	t.Helper()
	return FullWith(t, Options{ServiceCIDRs: serviceCIDRs}, change...)
}

// Options are what the servers of one cluster have in common, and in what they differ.
type Options struct {
	// Store nil: a new one in memory.
	Store store.Store
	// Key signs and verifies ServiceAccount tokens; nil: one of the server's own.
	Key *ecdsa.PrivateKey
	// ServiceCIDRs none: 10.96.0.0/16.
	ServiceCIDRs []netip.Prefix
	// Address is what the server advertises; none: 192.0.2.1.
	Address netip.Addr
	// Hostname gives the server an identity in the cluster; empty: it has none.
	Hostname string
}

// FullWith is Full with options.
func FullWith(t testing.TB, o Options, change ...func(*apiserver.Config)) *Server {
	t.Helper()
	if len(o.ServiceCIDRs) == 0 {
		o.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	}
	if !o.Address.IsValid() {
		o.Address = netip.MustParseAddr("192.0.2.1")
	}
	serviceCIDRs, address := o.ServiceCIDRs, netip.AddrPortFrom(o.Address, 6443).String()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	b := newBase(t, o.Store)
	var err error
	if o.Key == nil {
		o.Key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		must(err)
	}
	issuer, err := authn.NewIssuer(authn.IssuerConfig{Key: o.Key, URL: "https://kubernetes.default.svc.cluster.local"})
	must(err)
	users, err := authn.New(authn.Config{Issuer: issuer, Caches: b.caches, Bootstrap: true, Anonymous: true, Tokens: map[string]user.Info{
		AdminToken: &user.DefaultInfo{Name: "kubernetes-admin", Groups: []string{user.SystemPrivilegedGroup}},
		UserToken:  &user.DefaultInfo{Name: "nobody"},
	}})
	must(err)
	nodeRules, err := bootstrap.NodeRules()
	must(err)
	rights, err := authz.New(authz.Config{Caches: b.caches, NodeRules: nodeRules})
	must(err)
	allocator, err := allocate.New(allocate.Config{Caches: b.caches, Store: b.store, Families: allocate.Families(serviceCIDRs)})
	must(err)
	objects, err := bootstrap.New(bootstrap.Config{Caches: b.caches, Store: b.store,
		ServiceCIDRs:     serviceCIDRs,
		AdvertiseAddress: o.Address, Port: 6443, Hostname: o.Hostname})
	must(err)
	var s *Server
	caller := webhook.New(b.caches)
	plugins, err := admission.New(admission.Config{
		Caches: b.caches, Authorizer: rights, Scheme: b.scheme, Caller: caller,
		Catalog:           func() match.Catalog { return s.Registry() },
		StorageProtection: true,
		Extra:             []seams.Admission{rights.Escalation()},
	})
	must(err)
	endpoints, err := reviews.Endpoints(reviews.Config{Tokens: users, Audiences: users.Audiences(), Authorizer: rights, Rules: rights, Issuer: issuer, Caches: b.caches})
	must(err)
	endpoints = append(endpoints, binding.Endpoints(b.caches, clock.RealClock{})...)
	endpoints = append(endpoints, eviction.Endpoint(b.caches, clock.RealClock{}))
	discovery, err := issuer.Discovery(address, "")
	must(err)
	others, err := aggregator.New(aggregator.Config{Caches: b.caches})
	must(err)
	flow, err := flowcontrol.New(flowcontrol.Config{Caches: b.caches, Seats: apiserver.MaxInFlight + apiserver.MaxMutating})
	must(err)
	s = b.serve(t, append([]func(*apiserver.Config){func(c *apiserver.Config) {
		c.Authenticator, c.Authorizer, c.Admission, c.Endpoints = users, rights, plugins, endpoints
		c.Paths = map[string]http.Handler{authn.OpenIDConfigPath: discovery, authn.JWKSPath: discovery}
		c.Aggregate, c.ServerAddress = others.Wrap, address
		c.Flow = flow
		c.Checks = []apiserver.Check{{Name: "rbac", Run: rights.WaitReady}}
		c.Hooks = []seams.Hooks{allocator.Hooks(), crd.Hooks(clock.RealClock{})}
	}}, change...)...)
	definitions, err := crd.New(crd.Config{Caches: b.caches, Registry: s.Registry(), Caller: caller})
	must(err)
	registrar, err := aggregator.NewRegistrar(aggregator.RegistrarConfig{Caches: b.caches, Served: s.Registry()})
	must(err)
	b.run(t, rights, allocator, definitions, others, flow)
	b.run(t, objects, registrar)
	k, err := kubernetes.NewForConfig(s.Admin())
	must(err)
	must(objects.WaitReady(t.Context()))
	must(registrar.WaitReady(t.Context()))
	err = wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		if _, err := k.CoreV1().Services(corev1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{}); err != nil {
			return false, nil
		}
		return knowsStandardRoles(ctx, rights), nil
	})
	must(err)
	return s
}

// knowsStandardRoles says whether the authorizer has heard of every role that any user is
// bound to: roles and bindings reach it one by one.
func knowsStandardRoles(ctx context.Context, rights *authz.Authorizer) bool {
	anyone := &user.DefaultInfo{Name: "anyone", Groups: []string{user.AllAuthenticated}}
	may, _, err := rights.Authorize(ctx, authorizer.AttributesRecord{User: anyone, Verb: "get", Path: "/api"})
	if may != authorizer.DecisionAllow || err != nil {
		return false
	}
	_, missing, err := rights.Authorize(ctx, authorizer.AttributesRecord{User: anyone, Verb: "list", Resource: "pods", ResourceRequest: true})
	return missing == "" && err == nil
}
