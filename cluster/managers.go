package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/inproc"
	"github.com/skiff-k8s/skiff/cluster/addons"
	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/controllers"
	"github.com/skiff-k8s/skiff/controllers/csr"
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
	return clientsFor(cfg, hc)
}

// clientsFor makes the clients of a configuration over one HTTP client.
func clientsFor(cfg *rest.Config, hc *http.Client) (controllers.Clients, error) {
	client, err := kubernetes.NewForConfigAndClient(cfg, hc)
	if err != nil {
		return controllers.Clients{}, fmt.Errorf("make client (%s): %w", cfg.UserAgent, err)
	}
	meta, err := metadata.NewForConfigAndClient(metadata.ConfigFor(cfg), hc)
	if err != nil {
		return controllers.Clients{}, fmt.Errorf("make metadata client (%s): %w", cfg.UserAgent, err)
	}
	return controllers.Clients{Kubernetes: client, Metadata: meta}, nil
}

// newManagers composes what watches and writes through the API: scheduler, controllers,
// addons. The first two run while they lead; what they read they share with the API server.
func newManagers(c *Config, creds *Credentials, s *apiServer, log *slog.Logger) ([]component.Member, error) {
	var out []component.Member
	for _, m := range []struct {
		name, component string
		make            func(*Config, *Credentials, *apiServer, *slog.Logger) (component.Component, error)
	}{
		{"scheduler", Scheduler, newOwnScheduler},
		{"controllers", ControllerManager, newOwnControllers},
		{"addons", "", newOwnAddons},
		{"local-path", "", newOwnProvisioner},
	} {
		if c.lacks(m.component) {
			continue
		}
		made, err := m.make(c, creds, s, log.With("component", m.name))
		if err != nil {
			return nil, err
		}
		out = append(out, component.Member{Name: m.name, Component: made, Background: true})
	}
	balancers, err := newOwnBalancers(c, s, log.With("component", "load balancers"))
	if err != nil {
		return nil, err
	}
	if balancers != nil {
		out = append(out, component.Member{Name: "load balancers", Component: balancers, Background: true})
	}
	return out, nil
}

func newOwnScheduler(c *Config, _ *Credentials, s *apiServer, log *slog.Logger) (component.Component, error) {
	clients, err := clientsOf(s.server, systemUser(user.KubeScheduler))
	if err != nil {
		return nil, err
	}
	return newScheduler(SchedulerConfig{
		Client: clients.Kubernetes, Election: c.election(Scheduler), Logger: log,
		Informers: func() informers.SharedInformerFactory {
			return inproc.NewInformerFactory(s.caches, clients.Kubernetes, 0)
		},
	})
}

func newOwnControllers(c *Config, creds *Credentials, s *apiServer, log *slog.Logger) (component.Component, error) {
	base, err := clientsOf(s.server, systemUser(user.KubeControllerManager))
	if err != nil {
		return nil, err
	}
	as := func(account string) controllers.Clients {
		own, err := clientsOf(s.server, accountUser("kube-system", account))
		if err != nil { // the same configuration has just worked
			panic(err)
		}
		return own
	}
	var signer csr.CA
	signer.Certificate, signer.Key = creds.CA.Signer()
	return newControllers(ControllersConfig{
		Config: controllers.Config{
			Clients: base, As: as, Discovery: base.Kubernetes.Discovery(),
			ClusterCIDRs: c.PodCIDRs, RootCA: creds.CA.Cert,
			ClientCA: signer, ServingCA: signer, SigningDuration: c.SigningDuration.Duration,
			Logger: log,
		},
		Election: c.election(ControllerManager),
		NewInformers: func() informers.SharedInformerFactory {
			return inproc.NewInformerFactory(s.caches, base.Kubernetes, 0)
		},
	})
}

func newOwnAddons(c *Config, creds *Credentials, s *apiServer, log *slog.Logger) (component.Component, error) {
	clients, err := clientsOf(s.server, &user.DefaultInfo{Name: "system:skiff-addons", Groups: []string{user.SystemPrivilegedGroup, user.AllAuthenticated}})
	if err != nil {
		return nil, err
	}
	return newAddons(c, creds, clients.Kubernetes, inproc.NewInformerFactory(s.caches, clients.Kubernetes, 0), log)
}

func newOwnProvisioner(_ *Config, _ *Credentials, s *apiServer, log *slog.Logger) (component.Component, error) {
	clients, err := clientsOf(s.server, accountUser("kube-system", addons.LocalPathAccount))
	if err != nil {
		return nil, err
	}
	return newProvisioner(clients.Kubernetes, func() informers.SharedInformerFactory {
		return inproc.NewInformerFactory(s.caches, clients.Kubernetes, 0)
	}, log), nil
}

// newRemoteAddons is all that is left of a control plane whose API server others run.
func newRemoteAddons(c *Config, p Paths, creds *Credentials, log *slog.Logger) (*component.Group, error) {
	client, err := newClient(c.Server(), rest.TLSClientConfig{CAData: creds.CA.Cert, CertData: creds.Admin.Cert, KeyData: creds.Admin.Key}, nil)
	if err != nil {
		return nil, err
	}
	made, err := newAddons(c, creds, client, informers.NewSharedInformerFactory(client, 0), log.With("component", "addons"))
	if err != nil {
		return nil, err
	}
	files, err := newRemoteManifests(c, p, creds, log.With("component", "manifests"))
	if err != nil {
		return nil, err
	}
	group := component.NewGroup(log)
	group.Add(component.Member{Name: "manifests", Background: true, Component: files})
	group.Add(component.Member{Name: "addons", Component: made})
	group.Add(component.Member{Name: "local-path", Background: true, Component: newProvisioner(client, func() informers.SharedInformerFactory {
		return informers.NewSharedInformerFactory(client, 0)
	}, log.With("component", "local-path"))})
	group.Add(trim())
	return group, nil
}

func newAddons(c *Config, creds *Credentials, client kubernetes.Interface, shared informers.SharedInformerFactory, log *slog.Logger) (component.Component, error) {
	dns, err := addons.NewDNS(addons.DNSConfig{Client: client, Informers: shared, ServiceIPs: c.serviceIPs(dnsServiceIndex), Logger: log})
	if err != nil {
		return nil, err
	}
	return component.Func(func(ctx context.Context) error {
		// An API server that others run may come later.
		err := poll(ctx, time.Second, func(ctx context.Context) error {
			err := errors.Join(addons.EnsureAccess(ctx, client), addons.EnsureJoin(ctx, client, c.join(creds)), addons.EnsureStorageClass(ctx, client))
			if err != nil && ctx.Err() == nil {
				log.Debug("make addons", "err", err)
			}
			return err
		})
		if err != nil {
			return nil // ctx has ended
		}
		return runWith(ctx, shared, dns)
	}), nil
}
