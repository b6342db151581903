package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"

	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/inproc"
	"github.com/skiff-k8s/skiff/cluster/addons"
	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/component/leader"
	"github.com/skiff-k8s/skiff/controllers"
	"github.com/skiff-k8s/skiff/controllers/csr"
	"github.com/skiff-k8s/skiff/scheduler"
)

// inProcess is the client configuration of a user whose requests go straight to the
// handler chain of the API server in this process: authorized and admitted like any other,
// but with neither TLS nor client-side throttling.
func inProcess(server *apiserver.Server, u user.Info) (*rest.Config, *http.Client) {
	cfg := &rest.Config{Host: "http://in-process", QPS: -1, UserAgent: "skiff/" + u.GetName()}
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return cfg, &http.Client{Transport: server.Transport(u)}
}

func systemUser(name string) user.Info {
	return &user.DefaultInfo{Name: name, Groups: []string{user.AllAuthenticated}}
}

func accountUser(namespace, name string) user.Info {
	return &user.DefaultInfo{Name: serviceaccount.MakeUsername(namespace, name),
		Groups: append(serviceaccount.MakeGroupNames(namespace), user.AllAuthenticated)}
}

func clientsOf(server *apiserver.Server, u user.Info) (controllers.Clients, error) {
	cfg, hc := inProcess(server, u)
	client, err := kubernetes.NewForConfigAndClient(cfg, hc)
	if err != nil {
		return controllers.Clients{}, fmt.Errorf("client of %s: %w", u.GetName(), err)
	}
	meta, err := metadata.NewForConfigAndClient(metadata.ConfigFor(cfg), hc)
	if err != nil {
		return controllers.Clients{}, fmt.Errorf("metadata client of %s: %w", u.GetName(), err)
	}
	return controllers.Clients{Kubernetes: client, Metadata: meta}, nil
}

// newManagers composes what watches and writes through the API: scheduler, controllers,
// addons. The first two run while they lead; what they read they share with the API server.
func newManagers(c *Config, creds *Credentials, server *apiserver.Server, caches *cacher.Caches, log *slog.Logger) ([]component.Member, error) {
	sched, err := newScheduler(c, server, caches, log.With("component", "scheduler"))
	if err != nil {
		return nil, err
	}
	mgr, err := newControllers(c, creds, server, caches, log.With("component", "controllers"))
	if err != nil {
		return nil, err
	}
	dns, err := newDNSAddon(c, server, caches, log.With("component", "addons"))
	if err != nil {
		return nil, err
	}
	return []component.Member{
		{Name: "scheduler", Component: sched, Background: true},
		{Name: "controllers", Component: mgr, Background: true},
		{Name: "addons", Component: dns, Background: true},
	}, nil
}

// lead runs f while this process holds the Lease of that name. The identity is the
// cluster's and node's: a control plane that was killed takes its own Lease up again at once.
func lead(c *Config, client kubernetes.Interface, name string, log *slog.Logger, f func(context.Context) error) (component.Component, error) {
	return leader.New(leader.Config{Client: client, Name: name, Identity: c.NodeName + "_" + c.ID, Logger: log, Run: f})
}

func newScheduler(c *Config, server *apiserver.Server, caches *cacher.Caches, log *slog.Logger) (component.Component, error) {
	clients, err := clientsOf(server, systemUser(user.KubeScheduler))
	if err != nil {
		return nil, err
	}
	client := clients.Kubernetes
	return lead(c, client, "kube-scheduler", log, func(ctx context.Context) error {
		shared := inproc.NewInformerFactory(caches, client, 0)
		broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
		if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
			return fmt.Errorf("record scheduler events: %w", err)
		}
		defer broadcaster.Shutdown()
		s, err := scheduler.New(scheduler.Config{
			Client: client, Informers: shared, Logger: log,
			Events: broadcaster.NewRecorder(scheme.Scheme, "default-scheduler"),
		})
		if err != nil {
			return err
		}
		return runWith(ctx, shared, s)
	})
}

func newControllers(c *Config, creds *Credentials, server *apiserver.Server, caches *cacher.Caches, log *slog.Logger) (component.Component, error) {
	base, err := clientsOf(server, systemUser(user.KubeControllerManager))
	if err != nil {
		return nil, err
	}
	as := func(account string) controllers.Clients {
		own, err := clientsOf(server, accountUser("kube-system", account))
		if err != nil { // the same configuration has just worked
			panic(err)
		}
		return own
	}
	var signer csr.CA
	signer.Certificate, signer.Key = creds.CA.Signer()
	return lead(c, base.Kubernetes, "kube-controller-manager", log, func(ctx context.Context) error {
		m, err := controllers.New(controllers.Config{
			Clients: base, As: as, Discovery: base.Kubernetes.Discovery(),
			Informers:    inproc.NewInformerFactory(caches, base.Kubernetes, 0),
			ClusterCIDRs: []netip.Prefix{c.PodCIDR}, RootCA: creds.CA.Cert,
			ClientCA: signer, ServingCA: signer,
			Logger: log,
		})
		if err != nil {
			return err
		}
		return m.Run(ctx)
	})
}

func newDNSAddon(c *Config, server *apiserver.Server, caches *cacher.Caches, log *slog.Logger) (component.Component, error) {
	clients, err := clientsOf(server, &user.DefaultInfo{Name: "system:skiff-addons", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}})
	if err != nil {
		return nil, err
	}
	shared := inproc.NewInformerFactory(caches, clients.Kubernetes, 0)
	dns, err := addons.NewDNS(addons.DNSConfig{Client: clients.Kubernetes, Informers: shared, ServiceIP: c.ServiceIP(dnsServiceIndex), Logger: log})
	if err != nil {
		return nil, err
	}
	return component.Func(func(ctx context.Context) error {
		if err := addons.EnsureAccess(ctx, clients.Kubernetes); err != nil {
			return err
		}
		return runWith(ctx, shared, dns)
	}), nil
}

// runWith runs a component and the informers that it reads.
func runWith(ctx context.Context, shared informers.SharedInformerFactory, c component.Component) error {
	ctx, cancel := context.WithCancel(ctx)
	defer shared.Shutdown()
	defer cancel()
	shared.StartWithContext(ctx)
	return c.Run(ctx)
}
