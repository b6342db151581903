package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/skiff-k8s/skiff/component"
	"github.com/skiff-k8s/skiff/component/profiling"
	"github.com/skiff-k8s/skiff/proxy"
	"github.com/skiff-k8s/skiff/proxy/nftables"
)

// ProxyConfig is a proxy and, where it runs alone, how it reaches the API.
type ProxyConfig struct {
	NodeName string
	Client   kubernetes.Interface
	// Table is the name of its nftables tables.
	Table string
	// ServiceCIDRs of the cluster; RunProxy asks the API server if there are none.
	ServiceCIDRs, PodCIDRs []netip.Prefix
	// Healthz and Metrics are addresses to serve these at, over plain HTTP as upstream
	// does; empty: nowhere.
	Healthz, Metrics string
	// Profiling serves profiles of the process beside its metrics, to whoever reaches these.
	Profiling bool
	Logger    *slog.Logger
}

func newProxy(c ProxyConfig, shared informers.SharedInformerFactory) (*proxy.Proxy, error) {
	rules, err := nftables.New(nftables.Config{Table: c.Table, ServiceCIDRs: c.ServiceCIDRs, PodCIDRs: c.PodCIDRs, Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	return proxy.New(proxy.Config{NodeName: c.NodeName, Informers: shared, Backend: rules, Logger: c.Logger})
}

// RemoveProxyRules takes away what a proxy that ran alone left in the kernel.
func RemoveProxyRules(table string) error { return nftables.Remove(table) }

// RunProxy runs a proxy alone until ctx ends. Its rules stay.
func RunProxy(ctx context.Context, c ProxyConfig) error {
	if len(c.ServiceCIDRs) == 0 {
		err := poll(ctx, time.Second, func(ctx context.Context) (err error) {
			if c.ServiceCIDRs, err = serviceCIDRs(ctx, c.Client); err != nil {
				c.Logger.Warn("find the service CIDR", "err", err)
			}
			return err
		})
		if err != nil {
			return nil // ctx has ended
		}
	}
	shared := serviceInformers(c.Client)
	px, err := newProxy(c, shared)
	if err != nil {
		return err
	}
	node, err := c.followNode(px.SetZone)
	if err != nil {
		return err
	}
	var applied atomic.Bool
	group := component.NewGroup(c.Logger)
	group.Add(component.Member{Name: "healthz", Component: plainServer(c.Healthz, proxyHealth(&applied), c.Logger), Background: true})
	group.Add(component.Member{Name: "metrics", Component: plainServer(c.Metrics, proxyMetrics(c.Profiling), c.Logger), Background: true})
	group.Add(component.Member{Name: "node", Component: node, Background: true})
	group.Add(component.Member{Name: "proxy", Component: component.Func(func(ctx context.Context) error { return runWith(ctx, shared, px) }), Background: true})
	group.Add(component.Member{Name: "applied", Component: component.Func(func(ctx context.Context) error {
		if px.WaitReady(ctx) == nil {
			applied.Store(true)
		}
		<-ctx.Done()
		return nil
	}), Background: true})
	group.Add(trim())
	return group.Run(ctx)
}

// serviceInformers share what proxy and DNS read over the network: all Services and endpoints of the
// cluster, without what says who wrote which field, a third of an endpoint slice.
func serviceInformers(client kubernetes.Interface) informers.SharedInformerFactory {
	return informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(withoutManagedFields))
}

// withoutManagedFields changes its argument, which nobody else has yet.
func withoutManagedFields(o any) (any, error) {
	if m, ok := o.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return o, nil
}

// serviceCIDRs are the ranges of cluster IPs as the API has them.
func serviceCIDRs(ctx context.Context, client kubernetes.Interface) ([]netip.Prefix, error) {
	list, err := client.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list service CIDRs: %w", err)
	}
	for _, s := range list.Items {
		if s.Name == "kubernetes" {
			return parsePrefixes(s.Spec.CIDRs)
		}
	}
	return nil, errors.New("the API server has not said which service CIDR it uses")
}

// followNode tells the zone of the proxy's node.
func (c *ProxyConfig) followNode(zone func(string)) (component.Component, error) {
	own := informers.NewSharedInformerFactoryWithOptions(c.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", c.NodeName).String()
	}))
	latest := func(o any) {
		if n, ok := o.(*corev1.Node); ok {
			zone(n.Labels[corev1.LabelTopologyZone])
		}
	}
	_, err := own.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: latest, UpdateFunc: func(_, o any) { latest(o) }})
	if err != nil {
		return nil, fmt.Errorf("watch node %s: %w", c.NodeName, err)
	}
	return component.Func(func(ctx context.Context) error {
		own.StartWithContext(ctx)
		<-ctx.Done()
		own.Shutdown()
		return nil
	}), nil
}

// proxyHealth answers as upstream's: healthy once the rules stand.
func proxyHealth(applied *atomic.Bool) http.Handler {
	mux := http.NewServeMux()
	answer := func(w http.ResponseWriter, _ *http.Request) {
		now := time.Now().UTC()
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		if !applied.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"lastUpdated": now, "currentTime": now, "nodeEligible": true}) // the client has gone
	}
	mux.HandleFunc("/healthz", answer)
	mux.HandleFunc("/livez", answer)
	return mux
}

func proxyMetrics(profiles bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "nftables") })
	mux.Handle("/metrics", processMetrics())
	if profiles {
		mux.Handle(profiling.Path, profiling.Handler())
	}
	return mux
}
