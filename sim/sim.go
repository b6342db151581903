// Package sim is a whole control plane without a kernel: the real API server with its
// authorization and admission over the in-memory store, the real scheduler and
// controllers, and hollow nodes that start and stop pods in no time.
//
// It runs in real time or in a testing/synctest bubble. Must not: be imported by anything
// but tests.
package sim

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/api/builtin"
	"github.com/skiff-k8s/skiff/api/metrics"
	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/admission"
	"github.com/skiff-k8s/skiff/apiserver/allocate"
	"github.com/skiff-k8s/skiff/apiserver/authn"
	"github.com/skiff-k8s/skiff/apiserver/authz"
	"github.com/skiff-k8s/skiff/apiserver/binding"
	"github.com/skiff-k8s/skiff/apiserver/bootstrap"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/crd"
	"github.com/skiff-k8s/skiff/apiserver/eviction"
	"github.com/skiff-k8s/skiff/apiserver/inproc"
	apirest "github.com/skiff-k8s/skiff/apiserver/rest"
	"github.com/skiff-k8s/skiff/apiserver/reviews"
	"github.com/skiff-k8s/skiff/apiserver/seams"
	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/controllers"
	"github.com/skiff-k8s/skiff/scheduler"
	"github.com/skiff-k8s/skiff/store/mem"
)

// Cluster is a control plane and its hollow nodes.
type Cluster struct {
	Server *apiserver.Server
	Caches *cacher.Caches
	Admin  kubernetes.Interface
	group  *component.Group
	nodes  map[string]*hollow
	load   *load
	log    *slog.Logger
}

// PowerOff takes a node's machine away; it does not come back.
func (c *Cluster) PowerOff(node string) { close(c.nodes[node].off) }

// New composes a cluster of n hollow nodes; nothing runs before Run.
func New(nodes int, log *slog.Logger) (*Cluster, error) {
	store := mem.New(mem.Config{})
	objects := builtin.Scheme()
	if err := metrics.AddToScheme(objects); err != nil {
		return nil, err
	}
	resources := append(builtin.Resources(), metrics.Resources()...)
	caches, err := cacher.New(cacher.Config{Store: store, Scheme: objects, Logger: log})
	if err != nil {
		return nil, err
	}
	if err := apiserver.AddStorage(caches, resources); err != nil {
		return nil, err
	}
	nodeRules, err := bootstrap.NodeRules()
	if err != nil {
		return nil, err
	}
	rights, err := authz.New(authz.Config{Caches: caches, NodeRules: nodeRules, Log: log})
	if err != nil {
		return nil, err
	}
	cidr := netip.MustParsePrefix("10.96.0.0/16")
	allocator, err := allocate.New(allocate.Config{Caches: caches, Store: store, Log: log})
	if err != nil {
		return nil, err
	}
	first, err := bootstrap.New(bootstrap.Config{
		Caches: caches, Store: store, ServiceCIDRs: []netip.Prefix{cidr},
		AdvertiseAddress: netip.MustParseAddr("192.0.2.1"), Port: 6443, Log: log,
	})
	if err != nil {
		return nil, err
	}
	plugins, err := admission.New(admission.Config{Caches: caches, Authorizer: rights, Extra: []seams.Admission{rights.Escalation()}, Log: log})
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	issuer, err := authn.NewIssuer(authn.IssuerConfig{Key: key, URL: "https://kubernetes.default.svc.cluster.local"})
	if err != nil {
		return nil, err
	}
	users, err := authn.New(authn.Config{Issuer: issuer, Caches: caches, Anonymous: true})
	if err != nil {
		return nil, err
	}
	endpoints, err := reviews.Endpoints(reviews.Config{Tokens: users, Audiences: users.Audiences(), Authorizer: rights, Rules: rights, Issuer: issuer, Caches: caches})
	if err != nil {
		return nil, err
	}
	endpoints = append(endpoints, binding.Endpoints(caches, clock.RealClock{})...)
	endpoints = append(endpoints, eviction.Endpoint(caches, clock.RealClock{}))
	used := &load{caches: caches}
	server, err := apiserver.New(apiserver.Config{
		Caches: caches, Scheme: objects, Resources: resources, Authorizer: rights, Admission: plugins, Endpoints: endpoints,
		Computed: map[schema.GroupResource]apirest.Computed{metrics.Nodes: used.nodes, metrics.Pods: used.pods},
		Hooks:    []seams.Hooks{allocator.Hooks(), crd.Hooks(clock.RealClock{})}, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	definitions, err := crd.New(crd.Config{Caches: caches, Registry: server.Registry(), Log: log})
	if err != nil {
		return nil, err
	}
	c := &Cluster{load: used, Server: server, Caches: caches, group: component.NewGroup(log), nodes: map[string]*hollow{}, log: log}
	admin, err := c.clients(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}})
	if err != nil {
		return nil, err
	}
	c.Admin = admin.Kubernetes
	members := []component.Member{
		{Name: "cacher", Component: caches, Ready: closed(caches.Ready())},
		{Name: "bootstrap", Component: first},
		{Name: "authz", Component: rights},
		{Name: "allocate", Component: allocator},
		{Name: "crd", Component: definitions},
		{Name: "scheduler", Component: component.Func(c.schedule)},
		{Name: "controllers", Component: component.Func(c.control)},
	}
	for i := range nodes {
		n := newHollow(fmt.Sprintf("node-%d", i), c.Admin, inproc.NewInformerFactory(caches, c.Admin, 0))
		c.nodes[n.name] = n
		members = append(members, component.Member{Name: n.name, Component: n})
	}
	for _, m := range members {
		c.group.Add(m)
	}
	return c, nil
}

// Run runs the cluster until ctx ends.
func (c *Cluster) Run(ctx context.Context) error { return c.group.Run(ctx) }

// WaitReady returns when everything has been started.
func (c *Cluster) WaitReady(ctx context.Context) error { return c.group.WaitReady(ctx) }

func closed(ch <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ch:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// clients of a user call the server's handler chain directly.
func (c *Cluster) clients(u user.Info) (controllers.Clients, error) {
	cfg := &rest.Config{Host: "http://in-process", QPS: -1, UserAgent: "sim/" + u.GetName()}
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	hc := &http.Client{Transport: c.Server.Transport(u)}
	k, err := kubernetes.NewForConfigAndClient(cfg, hc)
	if err != nil {
		return controllers.Clients{}, fmt.Errorf("client of %s: %w", u.GetName(), err)
	}
	m, err := metadata.NewForConfigAndClient(metadata.ConfigFor(cfg), hc)
	if err != nil {
		return controllers.Clients{}, fmt.Errorf("metadata client of %s: %w", u.GetName(), err)
	}
	return controllers.Clients{Kubernetes: k, Metadata: m}, nil
}

func (c *Cluster) schedule(ctx context.Context) error {
	clients, err := c.clients(&user.DefaultInfo{Name: user.KubeScheduler, Groups: []string{user.AllAuthenticated}})
	if err != nil {
		return err
	}
	shared := inproc.NewInformerFactory(c.Caches, clients.Kubernetes, 0)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: clients.Kubernetes.EventsV1()})
	defer broadcaster.Shutdown()
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("recording events: %w", err)
	}
	s, err := scheduler.New(scheduler.Config{
		Client: clients.Kubernetes, Informers: shared, Logger: c.log, Seed: 1,
		Events: broadcaster.NewRecorder(scheme.Scheme, "default-scheduler"),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer shared.Shutdown()
	defer cancel()
	shared.StartWithContext(ctx)
	return s.Run(ctx)
}

func (c *Cluster) control(ctx context.Context) error {
	base, err := c.clients(&user.DefaultInfo{Name: user.KubeControllerManager, Groups: []string{user.AllAuthenticated}})
	if err != nil {
		return err
	}
	as := func(account string) controllers.Clients {
		own, err := c.clients(&user.DefaultInfo{Name: serviceaccount.MakeUsername("kube-system", account),
			Groups: append(serviceaccount.MakeGroupNames("kube-system"), user.AllAuthenticated)})
		if err != nil { // the same configuration has just worked
			panic(err)
		}
		return own
	}
	m, err := controllers.New(controllers.Config{
		Clients: base, As: as, Discovery: base.Kubernetes.Discovery(),
		Informers:    inproc.NewInformerFactory(c.Caches, base.Kubernetes, 0),
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/9")}, RootCA: []byte("a CA"),
		Logger: c.log,
	})
	if err != nil {
		return err
	}
	return m.Run(ctx)
}

// heartbeat is how often a hollow node renews its lease.
const heartbeat = 10 * time.Second
