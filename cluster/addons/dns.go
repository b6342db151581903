// Package addons are what every cluster has besides its components, as API objects:
// the Service of cluster DNS and its endpoints.
//
// Owns: those objects, kept as they should be while the control plane runs. Must not:
// run the server itself (network/dns does, on every node).
package addons

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

const (
	dnsName      = "kube-dns"
	dnsPort      = 53
	manager      = "skiff-addons"
	retryAfter   = time.Second
	dnsSliceName = "kube-dns"
)

// DNSAnnotation of a Node has the addresses at which its DNS server listens, separated by commas. A
// node of skiff's writes it; one with another's kubelet serves no DNS, and its pods ask the others'.
// NodeRestriction lets each node write its own.
const DNSAnnotation = "skiff.dev/dns"

// DNSConfig configures DNS.
type DNSConfig struct {
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	// ServiceIPs are the cluster IPs, one a family; kubelets give the first to pods as their
	// resolver.
	ServiceIPs []netip.Addr
	Logger     *slog.Logger
}

// DNS keeps the kube-dns Service and EndpointSlices with the servers of all nodes that say they have
// one.
type DNS struct {
	cfg    DNSConfig
	nodes  corelisters.NodeLister
	synced cache.DoneChecker
	kick   chan struct{}
}

// NewDNS builds the addon.
func NewDNS(cfg DNSConfig) (*DNS, error) {
	inf := cfg.Informers.Core().V1().Nodes()
	d := &DNS{cfg: cfg, nodes: inf.Lister(), kick: make(chan struct{}, 1)}
	poke := func() {
		select {
		case d.kick <- struct{}{}:
		default:
		}
	}
	reg, err := inf.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { poke() }, DeleteFunc: func(any) { poke() },
		UpdateFunc: func(old, new any) {
			// Heartbeats change nothing here.
			o, n := old.(*corev1.Node), new.(*corev1.Node)
			if o.Annotations[DNSAnnotation] != n.Annotations[DNSAnnotation] || o.Labels[corev1.LabelTopologyZone] != n.Labels[corev1.LabelTopologyZone] ||
				!slices.Equal(o.Spec.PodCIDRs, n.Spec.PodCIDRs) || silent(o) != silent(n) || (o.DeletionTimestamp == nil) != (n.DeletionTimestamp == nil) {
				poke()
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch nodes: %w", err)
	}
	d.synced = reg.HasSyncedChecker()
	return d, nil
}

// Run keeps the objects until ctx ends.
func (d *DNS) Run(ctx context.Context) error {
	if !cache.WaitFor(ctx, "", d.synced) {
		return nil
	}
	var retry <-chan time.Time
	for {
		retry = nil
		if err := d.sync(ctx); err != nil && ctx.Err() == nil {
			d.cfg.Logger.Warn("keep cluster DNS", "err", err)
			retry = time.After(retryAfter)
		}
		select {
		case <-d.kick:
		case <-retry:
		case <-ctx.Done():
			return nil
		}
		// Many nodes come and go together: their changes are collected.
		if d.many() {
			select {
			case <-time.After(retryAfter):
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// many: all endpoints are no longer in one slice.
func (d *DNS) many() bool {
	nodes, err := d.nodes.List(labels.Everything())
	return err == nil && len(nodes) > sliceSize
}

func (d *DNS) sync(ctx context.Context) error {
	nodes, err := d.nodes.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	svcs := d.cfg.Client.CoreV1().Services(metav1.NamespaceSystem)
	if _, err := svcs.Get(ctx, dnsName, metav1.GetOptions{}); apierrors.IsNotFound(err) {
		if _, err := svcs.Create(ctx, service(d.cfg.ServiceIPs), metav1.CreateOptions{FieldManager: manager}); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create service %s: %w", dnsName, err)
		}
	} else if err != nil {
		return fmt.Errorf("get service %s: %w", dnsName, err)
	}
	client := d.cfg.Client.DiscoveryV1().EndpointSlices(metav1.NamespaceSystem)
	own := labels.Set{discoveryv1.LabelServiceName: dnsName, discoveryv1.LabelManagedBy: manager}
	list, err := client.List(ctx, metav1.ListOptions{LabelSelector: own.String()})
	if err != nil {
		return fmt.Errorf("list endpoint slices of %s: %w", dnsName, err)
	}
	have := map[string]*discoveryv1.EndpointSlice{}
	for i := range list.Items {
		have[list.Items[i].Name] = &list.Items[i]
	}
	for _, want := range endpointSlices(nodes, d.cfg.ServiceIPs) {
		old := have[want.Name]
		delete(have, want.Name)
		switch {
		case old == nil:
			_, err = client.Create(ctx, want, metav1.CreateOptions{FieldManager: manager})
		case !equality.Semantic.DeepEqual(old.Endpoints, want.Endpoints):
			next := old.DeepCopy()
			next.Endpoints, next.Ports = want.Endpoints, want.Ports
			_, err = client.Update(ctx, next, metav1.UpdateOptions{FieldManager: manager})
		}
		if err != nil {
			return fmt.Errorf("write endpoint slice %s: %w", want.Name, err)
		}
	}
	for name := range have {
		if err := client.Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete endpoint slice %s: %w", name, err)
		}
	}
	return nil
}

func service(ips []netip.Addr) *corev1.Service {
	policy := corev1.IPFamilyPolicySingleStack
	if len(ips) > 1 {
		policy = corev1.IPFamilyPolicyRequireDualStack
	}
	var texts []string
	for _, ip := range ips {
		texts = append(texts, ip.String())
	}
	port := func(name string, p corev1.Protocol) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: p, Port: dnsPort, TargetPort: intstr.FromInt32(dnsPort)}
	}
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: dnsName, Labels: map[string]string{
			"k8s-app": "kube-dns", "kubernetes.io/cluster-service": "true", "kubernetes.io/name": "CoreDNS",
		}},
		// No selector: the servers run in node processes, not in pods.
		Spec: corev1.ServiceSpec{
			ClusterIP: texts[0], ClusterIPs: texts, IPFamilyPolicy: &policy, Ports: []corev1.ServicePort{port("dns", corev1.ProtocolUDP), port("dns-tcp", corev1.ProtocolTCP)},
			TrafficDistribution: ptr.To(corev1.ServiceTrafficDistributionPreferSameNode),
		},
	}
}

// sliceSize is upstream's --max-endpoints-per-slice; more than a thousand are not even valid.
const sliceSize = 100

// endpointSlices hold the servers of all nodes, for each family of the Service.
func endpointSlices(nodes []*corev1.Node, service []netip.Addr) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for _, ip := range service {
		if ip.Is6() {
			out = append(out, slicesOf(nodes, dnsSliceName+"-ipv6", discoveryv1.AddressTypeIPv6)...)
		} else {
			out = append(out, slicesOf(nodes, dnsSliceName, discoveryv1.AddressTypeIPv4)...)
		}
	}
	return out
}

// slicesOf are those of one family, in the order of the servers' addresses: as pod CIDRs are
// given out upwards, a new node changes the last slice only. There is always one.
func slicesOf(nodes []*corev1.Node, name string, family discoveryv1.AddressType) []*discoveryv1.EndpointSlice {
	var all []discoveryv1.Endpoint
	var unheard []*bool
	for _, n := range nodes {
		e := endpointOf(n, family)
		if e == nil {
			continue
		}
		all = append(all, *e)
		if silent(n) {
			unheard = append(unheard, e.Conditions.Ready)
		}
	}
	// Where others answer, nobody is to ask a node that may be gone; its own pods, whose proxy hears
	// nothing of this, go on asking it.
	if len(unheard) < len(all) {
		for _, ready := range unheard {
			*ready = false
		}
	}
	slices.SortFunc(all, func(a, b discoveryv1.Endpoint) int {
		return netip.MustParseAddr(a.Addresses[0]).Compare(netip.MustParseAddr(b.Addresses[0]))
	})
	out := []*discoveryv1.EndpointSlice{endpointSlice(name, family, nil)}
	for part := range slices.Chunk(all, sliceSize) {
		if out[0].Endpoints == nil {
			out[0].Endpoints = part
			continue
		}
		out = append(out, endpointSlice(fmt.Sprintf("%s-%d", name, len(out)), family, part))
	}
	return out
}

func endpointSlice(name string, family discoveryv1.AddressType, endpoints []discoveryv1.Endpoint) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: name, Labels: map[string]string{
			discoveryv1.LabelServiceName: dnsName, discoveryv1.LabelManagedBy: manager,
		}},
		AddressType: family,
		Ports: []discoveryv1.EndpointPort{
			{Name: ptr.To("dns"), Protocol: ptr.To(corev1.ProtocolUDP), Port: ptr.To[int32](dnsPort)},
			{Name: ptr.To("dns-tcp"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](dnsPort)},
		},
		Endpoints: endpoints,
	}
}

// silent tells that the control plane has not heard of a node for long.
func silent(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown
	})
}

// endpointOf is a node's DNS server; nil while it says of none in the family. Only addresses of its
// own pod CIDRs count: a node is not believed about others'. A node that is not ready but heard stays
// in. Proxies prefer their own node's by the hints alone (KEP-3015).
func endpointOf(n *corev1.Node, family discoveryv1.AddressType) *discoveryv1.Endpoint {
	for text := range strings.SplitSeq(n.Annotations[DNSAnnotation], ",") {
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Is6() != (family == discoveryv1.AddressTypeIPv6) || !slices.ContainsFunc(n.Spec.PodCIDRs, func(cidr string) bool {
			p, err := netip.ParsePrefix(cidr)
			return err == nil && p.Contains(ip)
		}) {
			continue
		}
		stays := n.DeletionTimestamp == nil
		e := &discoveryv1.Endpoint{
			Addresses: []string{ip.String()}, NodeName: ptr.To(n.Name),
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(stays), Serving: ptr.To(stays), Terminating: ptr.To(!stays)},
			Hints:      &discoveryv1.EndpointHints{ForNodes: []discoveryv1.ForNode{{Name: n.Name}}},
		}
		if zone := n.Labels[corev1.LabelTopologyZone]; zone != "" {
			e.Zone = &zone
			e.Hints.ForZones = []discoveryv1.ForZone{{Name: zone}}
		}
		return e
	}
	return nil
}
