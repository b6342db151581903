package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"

	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/api/builtin"
	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/admission"
	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/aggregator"
	"github.com/skiff-k8s/skiff/apiserver/allocate"
	"github.com/skiff-k8s/skiff/apiserver/authn"
	"github.com/skiff-k8s/skiff/apiserver/authz"
	"github.com/skiff-k8s/skiff/apiserver/binding"
	"github.com/skiff-k8s/skiff/apiserver/bootstrap"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/crd"
	"github.com/skiff-k8s/skiff/apiserver/eviction"
	"github.com/skiff-k8s/skiff/apiserver/reviews"
	"github.com/skiff-k8s/skiff/apiserver/seams"
	"github.com/skiff-k8s/skiff/apiserver/webhook"
	"github.com/skiff-k8s/skiff/cluster/process"
	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/store/etcd"
)

// RunControlPlane runs etcd, the API server, the scheduler and the controllers of the
// cluster in dir until ctx ends.
func RunControlPlane(ctx context.Context, dir string) error {
	c, err := Load(dir)
	if err != nil {
		return err
	}
	p := Paths{dir}
	lock, err := process.Lock(p.Lock(ControlPlane))
	if err != nil {
		return err
	}
	defer lock.Close()
	creds, err := EnsureCredentials(dir, c)
	if err != nil {
		return err
	}
	log := newLogger()
	cp, err := newControlPlane(c, p, creds, log)
	if err != nil {
		return err
	}
	return cp.Run(ctx)
}

// newControlPlane composes the control plane; nothing runs before the group does.
func newControlPlane(c *Config, p Paths, creds *Credentials, log *slog.Logger) (*component.Group, error) {
	db, err := etcd.New(etcd.Config{DataDir: p.Etcd(), Name: c.NodeName, Logger: log.With("component", "etcd")})
	if err != nil {
		return nil, err
	}
	scheme, resources := builtin.Scheme(), builtin.Resources()
	caches, err := cacher.New(cacher.Config{Store: db, Scheme: scheme, Logger: log.With("component", "cacher")})
	if err != nil {
		return nil, err
	}
	if err := apiserver.AddStorage(caches, resources); err != nil {
		return nil, err
	}
	issuer, err := authn.NewIssuer(authn.IssuerConfig{Key: creds.TokenKey, URL: "https://kubernetes.default.svc." + c.Domain})
	if err != nil {
		return nil, err
	}
	clientCAs := x509.NewCertPool()
	clientCAs.AppendCertsFromPEM(creds.CA.Cert)
	users, err := authn.New(authn.Config{
		ClientCAs: func() *x509.CertPool { return clientCAs },
		Issuer:    issuer, Caches: caches, Bootstrap: true, Anonymous: true,
	})
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
	allocator, err := allocate.New(allocate.Config{Caches: caches, Store: db, Log: log.With("component", "allocate")})
	if err != nil {
		return nil, err
	}
	objects, err := bootstrap.New(bootstrap.Config{
		Caches: caches, Store: db, ServiceCIDRs: []netip.Prefix{c.ServiceCIDR},
		AdvertiseAddress: c.NodeIP, Port: int32(c.APIPort),
		ClientCA: func() []byte { return creds.CA.Cert }, RequestHeaderCA: func() []byte { return creds.FrontProxyCA.Cert },
		Log: log.With("component", "bootstrap"),
	})
	if err != nil {
		return nil, err
	}
	var server *apiserver.Server
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
	discovery, err := issuer.Discovery(netip.AddrPortFrom(c.NodeIP, c.APIPort).String(), "")
	if err != nil {
		return nil, err
	}
	serving, err := certificate(creds.APIServer)
	if err != nil {
		return nil, err
	}
	kubeletClient, err := certificate(creds.KubeletClient)
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", netip.AddrPortFrom(netip.IPv6Unspecified(), c.APIPort).String())
	if err != nil {
		return nil, fmt.Errorf("listen for the API: %w", err)
	}
	frontProxy, err := certificate(creds.FrontProxyClient)
	if err != nil {
		return nil, err
	}
	others, err := aggregator.New(aggregator.Config{Caches: caches, Client: frontProxy, Log: log.With("component", "aggregator")})
	if err != nil {
		return nil, err
	}
	server, err = apiserver.New(apiserver.Config{
		Caches: caches, Scheme: scheme, Resources: resources,
		Authenticator: users, Authorizer: rights,
		Admission: plugins, Endpoints: endpoints,
		Hooks:         []seams.Hooks{allocator.Hooks(), crd.Hooks(clock.RealClock{})},
		Paths:         map[string]http.Handler{authn.OpenIDConfigPath: discovery, authn.JWKSPath: discovery},
		Aggregate:     others.Wrap,
		Checks:        []apiserver.Check{{Name: "rbac", Run: rights.WaitReady}},
		Listener:      listener,
		TLS:           &tls.Config{Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12},
		ServerAddress: netip.AddrPortFrom(c.NodeIP, c.APIPort).String(),
		KubeletTLS:    &tls.Config{Certificates: []tls.Certificate{kubeletClient}, RootCAs: clientCAs, MinVersion: tls.VersionTLS12},
		Logger:        log.With("component", "apiserver"),
	})
	if err != nil {
		return nil, err
	}
	definitions, err := crd.New(crd.Config{Caches: caches, Registry: server.Registry(), Caller: caller, Log: log.With("component", "crd")})
	if err != nil {
		return nil, err
	}
	managers, err := newManagers(c, creds, server, caches, log)
	if err != nil {
		return nil, err
	}
	group := component.NewGroup(log)
	group.Add(component.Member{Name: "etcd", Component: db, Ready: waitClosed(db.Ready())})
	group.Add(component.Member{Name: "cacher", Component: caches, Ready: waitClosed(caches.Ready())})
	group.Add(component.Member{Name: "bootstrap", Component: objects})
	group.Add(component.Member{Name: "authz", Component: rights})
	group.Add(component.Member{Name: "allocate", Component: allocator})
	group.Add(component.Member{Name: "crd", Component: definitions})
	group.Add(component.Member{Name: "aggregator", Component: others})
	group.Add(component.Member{Name: "apiserver", Component: server})
	for _, m := range managers {
		group.Add(m)
	}
	group.Add(trim())
	return group, nil
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
