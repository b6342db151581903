package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime/debug"
	"slices"
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
)

// ProxyConfig is a proxy and, where it runs alone, how it reaches the API.
type ProxyConfig struct {
	NodeName string
	Client   kubernetes.Interface
	// Mode is what it programs Services by.
	Mode ProxyMode
	// Former are modes whose rules are taken away once this one's are there; Forget, if set, is called then.
	Former []ProxyMode
	Forget func() error
	// Table is the name of its nftables tables.
	Table string
	// ServiceCIDRs of the cluster; RunProxy asks the API server if there are none.
	ServiceCIDRs, PodCIDRs []netip.Prefix
	// NodePorts are the CIDRs and keywords (all, primary, localhost) of addresses at which node
	// ports are open; none: all.
	NodePorts []string
	// NodeIPs are the node's own; none: the API tells them.
	NodeIPs []netip.Addr
	// MasqueradeAll has all traffic to cluster IPs come from the node; MasqueradeBit is the
	// bit of the packet mark for what is to be masqueraded, 0 the default.
	MasqueradeAll bool
	MasqueradeBit uint8
	// LocalhostNodePorts opens node ports at loopback, in the mode iptables.
	LocalhostNodePorts bool
	// SyncPeriod is how often rules are looked after that others may have flushed; MinSyncPeriod the
	// least time between two changes of them. 0, nil: the mode's defaults.
	SyncPeriod    time.Duration
	MinSyncPeriod *time.Duration
	IPVS          IPVSConfig
	// Healthz and Metrics are addresses to serve these at, over plain HTTP as upstream
	// does; empty: nowhere.
	Healthz, Metrics string
	// Profiling serves profiles of the process beside its metrics, to whoever reaches these.
	Profiling bool
	Logger    *slog.Logger
}

// nodeProxy is a proxy with the rules that it programs.
type nodeProxy struct {
	*proxy.Proxy
	cfg   ProxyConfig
	rules proxyRules
	ips   []netip.Addr
}

func newProxy(c ProxyConfig, shared informers.SharedInformerFactory) (*nodeProxy, error) {
	rules, err := c.rules()
	if err != nil {
		return nil, err
	}
	pause := minSyncPeriod(c.Mode)
	if c.MinSyncPeriod != nil {
		pause = *c.MinSyncPeriod
	}
	p, err := proxy.New(proxy.Config{NodeName: c.NodeName, Informers: shared, Backend: rules, Families: rules.Families(),
		MinSyncPeriod: pause, Logger: c.Logger})
	if err != nil {
		return nil, err
	}
	return &nodeProxy{Proxy: p, cfg: c, rules: rules, ips: c.NodeIPs}, nil
}

// Run runs the proxy until ctx ends. What another mode left goes once this one's rules are there:
// Services work all the time,
// unless the modes have chains of the same names.
func (p *nodeProxy) Run(ctx context.Context) error {
	shared, others := p.cfg.Mode.sharing(p.cfg.Former)
	if err := removeModes(shared, p.cfg.Table); err != nil {
		p.cfg.Logger.Warn("take away the rules of other modes", "err", err)
	}
	group := component.NewGroup(p.cfg.Logger)
	group.Add(component.Member{Name: "services", Component: p.Proxy, Background: true})
	group.Add(component.Member{Name: "other modes", Background: true, Component: component.Func(func(ctx context.Context) error {
		if p.WaitReady(ctx) != nil {
			return nil // ctx has ended
		}
		err := removeModes(others, p.cfg.Table)
		if err == nil && p.cfg.Forget != nil {
			err = p.cfg.Forget()
		}
		if err != nil {
			p.cfg.Logger.Warn("take away the rules of other modes", "err", err)
		}
		<-ctx.Done()
		return nil
	})})
	if w, ok := p.rules.(watcher); ok {
		group.Add(component.Member{Name: "rules", Background: true, Component: component.Func(func(ctx context.Context) error {
			return w.Watch(ctx, p.Refresh)
		})})
	}
	return group.Run(ctx)
}

// proxyHealthPort and proxyMetricsPort are kube-proxy's.
const proxyHealthPort, proxyMetricsPort = 10256, 10249

// proxyMembers are the proxy of a node and what goes with it. Load balancers ask its health
// port at the node's address; of several clusters on a host only one can have it.
func (n *NodeConfig) proxyMembers(p Paths, client kubernetes.Interface, shared informers.SharedInformerFactory, log *slog.Logger) (*nodeProxy, []component.Member, error) {
	c := ProxyConfig{NodeName: n.NodeName, Client: client, Table: n.servicesTable(), ServiceCIDRs: n.ServiceCIDRs, PodCIDRs: n.PodCIDRs, NodeIPs: n.NodeIPs,
		Mode: n.PodNetwork.proxyMode(), LocalhostNodePorts: true, Logger: log}
	var err error
	if c.Former, c.Forget, err = p.changeProxyMode(c.Mode); err != nil {
		return nil, nil, err
	}
	px, err := newProxy(c, shared)
	if err != nil {
		return nil, nil, err
	}
	own, err := c.followNode(px.setNode)
	if err != nil {
		return nil, nil, err
	}
	members := []component.Member{{Name: "proxy", Component: px}, {Name: "proxy's node", Component: own}}
	for _, ip := range n.NodeIPs {
		members = append(members, component.Member{Name: "proxy's health",
			Component: plainServer(netip.AddrPortFrom(ip, proxyHealthPort).String(), px.Health(), log)})
	}
	return px, append(members, component.Member{Name: "proxy's metrics",
		Component: plainServer(netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), proxyMetricsPort).String(), proxyMetrics(px, false), log)}), nil
}

// setNode tells what the API has of the node; nil: nothing any more.
func (p *nodeProxy) setNode(n *corev1.Node) {
	p.SetNode(n)
	if n == nil {
		return
	}
	if ips := primaryIPs(n); !slices.Equal(ips, p.ips) {
		p.ips = ips
		p.rules.SetPrimary(ips)
		p.Refresh()
	}
}

// primaryIPs are the node's first internal address of each family.
func primaryIPs(n *corev1.Node) (out []netip.Addr) {
	for _, a := range n.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if err != nil || a.Type != corev1.NodeInternalIP {
			continue
		}
		ip = ip.Unmap()
		if !slices.ContainsFunc(out, func(o netip.Addr) bool { return o.Is6() == ip.Is6() }) {
			out = append(out, ip)
		}
	}
	return out
}

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
	node, err := c.followNode(px.setNode)
	if err != nil {
		return err
	}
	group := component.NewGroup(c.Logger)
	group.Add(component.Member{Name: "healthz", Component: plainServer(c.Healthz, px.Health(), c.Logger), Background: true})
	group.Add(component.Member{Name: "metrics", Component: plainServer(c.Metrics, proxyMetrics(px, c.Profiling), c.Logger), Background: true})
	group.Add(component.Member{Name: "node", Component: node, Background: true})
	group.Add(component.Member{Name: "proxy", Component: component.Func(func(ctx context.Context) error { return runWith(ctx, shared, px) }), Background: true})
	group.Add(component.Member{Name: "first load", Background: true, Component: component.Func(func(ctx context.Context) error {
		return loadAtOnce(ctx, px.WaitReady)
	})})
	group.Add(trim())
	return group.Run(ctx)
}

// loadingGC lets the heap grow to four times what lives while a proxy reads all Services of a
// cluster: hardly anything that it decodes is garbage by then, and to look for it took a quarter of
// the time. What is garbage goes when the process becomes calm (trim).
const loadingGC = 300

// loadAtOnce has the collector rest until what is loaded is ready.
func loadAtOnce(ctx context.Context, ready func(context.Context) error) error {
	before := debug.SetGCPercent(loadingGC)
	_ = ready(ctx) // or ctx has ended
	debug.SetGCPercent(before)
	<-ctx.Done()
	return nil
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

// followNode tells what the API has of the proxy's node, nil for nothing.
func (c *ProxyConfig) followNode(tell func(*corev1.Node)) (component.Component, error) {
	own := informers.NewSharedInformerFactoryWithOptions(c.Client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", c.NodeName).String()
	}))
	latest := func(o any) {
		if n, ok := o.(*corev1.Node); ok {
			tell(n)
		}
	}
	_, err := own.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: latest, UpdateFunc: func(_, o any) { latest(o) }, DeleteFunc: func(any) { tell(nil) },
	})
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

func proxyMetrics(px *nodeProxy, profiles bool) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, px.cfg.Mode) })
	process := processMetrics()
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
		process.ServeHTTP(w, r)
		_ = px.WriteMetrics(w) // the client has gone
	})
	if profiles {
		mux.Handle(profiling.Path, profiling.Handler())
	}
	return mux
}
