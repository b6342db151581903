package endpointslice

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/endpointslice/trafficdist"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/ownership"
	"github.com/skiff-k8s/skiff/controllers/services"
)

// ManagedBy is upstream's name of this controller in endpointslice.kubernetes.io/managed-by.
const ManagedBy = "endpointslice-controller.k8s.io"

// maxEndpoints bounds one slice, as upstream's --max-endpoints-per-slice.
const maxEndpoints = 100

// state is what one pass looks at; all objects are shared.
type state struct {
	service *corev1.Service
	pods    []*corev1.Pod
	slices  []*discoveryv1.EndpointSlice
	node    func(name string) *corev1.Node // nil when unknown
}

// plan is what one pass does; its objects are private copies.
type plan struct {
	create, update []*discoveryv1.EndpointSlice
	remove         []*discoveryv1.EndpointSlice
	// orphaned pods were left out: their node is unknown (yet).
	orphaned bool
}

// decide compares the slices of a Service with its pods, one IP family at a time.
func decide(s state) plan {
	var p plan
	families := families(s.service)
	for _, slice := range s.slices {
		if !slices.Contains(families, slice.AddressType) {
			p.remove = append(p.remove, slice)
		}
	}
	for _, family := range families {
		p.add(s.family(family))
	}
	return p
}

func (p *plan) add(q plan) {
	p.create = append(p.create, q.create...)
	p.update = append(p.update, q.update...)
	p.remove = append(p.remove, q.remove...)
	p.orphaned = p.orphaned || q.orphaned
}

func families(s *corev1.Service) []discoveryv1.AddressType {
	var out []discoveryv1.AddressType
	for _, f := range s.Spec.IPFamilies {
		switch f {
		case corev1.IPv4Protocol:
			out = append(out, discoveryv1.AddressTypeIPv4)
		case corev1.IPv6Protocol:
			out = append(out, discoveryv1.AddressTypeIPv6)
		}
	}
	if len(out) > 0 {
		return out
	}
	if ip, err := netip.ParseAddr(s.Spec.ClusterIP); err == nil {
		if ip.Is6() {
			return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv6}
		}
		return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4}
	}
	return []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6}
}

// group is the endpoints that share one set of ports, as a slice has one.
type group struct {
	ports     []discoveryv1.EndpointPort
	endpoints map[endpointKey]discoveryv1.Endpoint
	order     []endpointKey
}

// endpointKey tells endpoints apart.
type endpointKey struct {
	address string
	uid     types.UID
}

func keyOf(e *discoveryv1.Endpoint) endpointKey {
	k := endpointKey{address: strings.Join(e.Addresses, ",")}
	if e.TargetRef != nil {
		k.uid = e.TargetRef.UID
	}
	return k
}

func portsKey(ports []discoveryv1.EndpointPort) string {
	parts := make([]string, len(ports))
	for i, p := range ports {
		parts[i] = fmt.Sprintf("%s/%d/%s/%s", ptr.Deref(p.Name, ""), ptr.Deref(p.Port, 0), ptr.Deref(p.Protocol, ""), ptr.Deref(p.AppProtocol, ""))
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

func (s state) family(family discoveryv1.AddressType) plan {
	var p plan
	groups, orphaned := s.groups(family)
	p.orphaned = orphaned

	existing := map[string][]*discoveryv1.EndpointSlice{}
	var kept []*discoveryv1.EndpointSlice // unchanged
	total := 0
	for _, slice := range s.slices {
		if slice.AddressType != family || slice.DeletionTimestamp != nil {
			continue
		}
		total++
		key := portsKey(slice.Ports)
		if _, wanted := groups[key]; !wanted || !owned(slice, s.service) {
			p.remove = append(p.remove, slice)
			continue
		}
		existing[key] = append(existing[key], slice)
	}
	for _, key := range slices.Sorted(maps.Keys(groups)) {
		kept = append(kept, s.fill(&p, family, groups[key], existing[key])...)
	}

	if len(p.remove) == total && len(p.create) == 0 {
		// One empty slice says that the Service is known and has no endpoints.
		empty := s.newSlice(family, nil)
		if len(p.remove) == 1 && owned(p.remove[0], s.service) && placeholder(p.remove[0]) && maps.Equal(p.remove[0].Labels, empty.Labels) {
			p.remove = nil
		} else {
			p.create = append(p.create, empty)
		}
	}
	if s.service.DeletionTimestamp != nil {
		p.create = nil // the collector is deleting its slices
	}
	if d := s.service.Spec.TrafficDistribution; d != nil {
		p.create, p.update, _ = trafficdist.ReconcileHints(d, p.create, p.update, kept)
	}
	p.reuse(s.service)
	return p
}

func placeholder(slice *discoveryv1.EndpointSlice) bool {
	return len(slice.Endpoints) == 0 && len(slice.Ports) == 0
}

func owned(slice *discoveryv1.EndpointSlice, s *corev1.Service) bool {
	return slices.ContainsFunc(slice.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.UID == s.UID && r.Kind == "Service" && r.APIVersion == "v1"
	})
}

// groups makes endpoints of the pods.
func (s state) groups(family discoveryv1.AddressType) (groups map[string]*group, orphaned bool) {
	groups = map[string]*group{}
	for _, pod := range s.pods {
		if !services.Endpoint(pod, true) {
			continue
		}
		var node *corev1.Node
		if pod.Spec.NodeName != "" {
			node = s.node(pod.Spec.NodeName)
		}
		if node == nil && !s.service.Spec.PublishNotReadyAddresses {
			orphaned = true
			continue
		}
		ports := s.ports(pod)
		key := portsKey(ports)
		g := groups[key]
		if g == nil {
			g = &group{ports: ports, endpoints: map[endpointKey]discoveryv1.Endpoint{}}
			groups[key] = g
		}
		e, ok := s.endpoint(pod, node, family)
		if !ok {
			continue
		}
		k := keyOf(&e)
		g.endpoints[k] = e
		g.order = append(g.order, k)
	}
	for _, g := range groups {
		slices.SortFunc(g.order, func(a, b endpointKey) int {
			return cmp.Or(cmp.Compare(a.address, b.address), cmp.Compare(a.uid, b.uid))
		})
	}
	return groups, orphaned
}

func (s state) ports(pod *corev1.Pod) []discoveryv1.EndpointPort {
	ports := []discoveryv1.EndpointPort{}
	for i := range s.service.Spec.Ports {
		sp := &s.service.Spec.Ports[i]
		if n, ok := services.Port(pod, sp); ok {
			ports = append(ports, discoveryv1.EndpointPort{Name: ptr.To(sp.Name), Port: ptr.To(n), Protocol: ptr.To(sp.Protocol), AppProtocol: sp.AppProtocol})
		}
	}
	return ports
}

func (s state) endpoint(pod *corev1.Pod, node *corev1.Node, family discoveryv1.AddressType) (discoveryv1.Endpoint, bool) {
	var addresses []string
	for _, ip := range pod.Status.PodIPs {
		a, err := netip.ParseAddr(ip.IP)
		if err == nil && a.Is6() == (family == discoveryv1.AddressTypeIPv6) {
			addresses = append(addresses, a.String())
		}
	}
	if len(addresses) == 0 {
		return discoveryv1.Endpoint{}, false
	}
	serving := ownership.Ready(pod)
	terminating := pod.DeletionTimestamp != nil
	e := discoveryv1.Endpoint{
		Addresses: addresses,
		Conditions: discoveryv1.EndpointConditions{
			Ready:       ptr.To(s.service.Spec.PublishNotReadyAddresses || serving && !terminating),
			Serving:     ptr.To(serving),
			Terminating: ptr.To(terminating),
		},
		TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
	}
	if pod.Spec.NodeName != "" {
		e.NodeName = ptr.To(pod.Spec.NodeName)
	}
	if node != nil && node.Labels[corev1.LabelTopologyZone] != "" {
		e.Zone = ptr.To(node.Labels[corev1.LabelTopologyZone])
	}
	if h := services.Hostname(pod, s.service); h != "" {
		e.Hostname = ptr.To(h)
	}
	return e, true
}

// fill puts a group's endpoints into slices with as few writes as it can: endpoints stay
// where they are, new ones go where something changes anyway, then into the fullest slice
// with room for all of them, then into new slices. It returns the unchanged ones.
func (s state) fill(p *plan, family discoveryv1.AddressType, g *group, existing []*discoveryv1.EndpointSlice) []*discoveryv1.EndpointSlice {
	placed := map[endpointKey]bool{}
	var dirty, clean []*discoveryv1.EndpointSlice
	labels := s.labels()
	for _, slice := range existing {
		var keep []discoveryv1.Endpoint
		changed := !maps.Equal(slice.Labels, labels)
		for i := range slice.Endpoints {
			k := keyOf(&slice.Endpoints[i])
			want, ok := g.endpoints[k]
			if !ok || placed[k] {
				changed = true
				continue
			}
			placed[k] = true
			want.Hints = slice.Endpoints[i].Hints
			changed = changed || !equality.Semantic.DeepEqual(want, slice.Endpoints[i])
			keep = append(keep, want)
		}
		switch {
		case len(keep) == 0:
			p.remove = append(p.remove, slice)
		case changed:
			next := slice.DeepCopy()
			next.Endpoints = keep
			next.Labels = maps.Clone(labels)
			dirty = append(dirty, next)
		default:
			clean = append(clean, slice)
		}
	}

	var fresh []discoveryv1.Endpoint
	for _, k := range g.order {
		if !placed[k] {
			fresh = append(fresh, g.endpoints[k])
		}
	}
	slices.SortStableFunc(dirty, func(a, b *discoveryv1.EndpointSlice) int { return cmp.Compare(len(b.Endpoints), len(a.Endpoints)) })
	for _, slice := range dirty {
		n := min(len(fresh), maxEndpoints-len(slice.Endpoints))
		slice.Endpoints = append(slice.Endpoints, fresh[:n]...)
		fresh = fresh[n:]
	}
	if n := len(fresh); n > 0 && n < maxEndpoints {
		best := -1
		for i, slice := range clean {
			if len(slice.Endpoints)+n <= maxEndpoints && (best < 0 || len(slice.Endpoints) > len(clean[best].Endpoints)) {
				best = i
			}
		}
		if best >= 0 {
			next := clean[best].DeepCopy()
			next.Endpoints = append(next.Endpoints, fresh...)
			dirty = append(dirty, next)
			clean = slices.Delete(clean, best, best+1)
			fresh = nil
		}
	}
	for len(fresh) > 0 {
		n := min(len(fresh), maxEndpoints)
		slice := s.newSlice(family, g.ports)
		slice.Endpoints = append(slice.Endpoints, fresh[:n]...)
		p.create = append(p.create, slice)
		fresh = fresh[n:]
	}
	if len(g.order) == 0 && len(dirty)+len(clean) == 0 {
		// Nothing has an address of this family yet; the placeholder will do.
		return nil
	}
	p.update = append(p.update, dirty...)
	return clean
}

// reuse turns pairs of a slice to delete and one to create into updates.
func (p *plan) reuse(s *corev1.Service) {
	p.remove = slices.DeleteFunc(p.remove, func(old *discoveryv1.EndpointSlice) bool {
		n := len(p.create)
		if n == 0 || !owned(old, s) || old.DeletionTimestamp != nil || p.create[n-1].AddressType != old.AddressType {
			return false
		}
		next := old.DeepCopy()
		next.Labels, next.Ports, next.Endpoints = p.create[n-1].Labels, p.create[n-1].Ports, p.create[n-1].Endpoints
		p.create = p.create[:n-1]
		p.update = append(p.update, next)
		return true
	})
}

func (s state) newSlice(family discoveryv1.AddressType, ports []discoveryv1.EndpointPort) *discoveryv1.EndpointSlice {
	if ports == nil {
		ports = []discoveryv1.EndpointPort{}
	}
	prefix := s.service.Name + "-"
	if len(prefix) > validation.DNS1123SubdomainMaxLength {
		prefix = s.service.Name
	}
	return &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName:    prefix,
			Namespace:       s.service.Namespace,
			Labels:          s.labels(),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s.service, corev1.SchemeGroupVersion.WithKind("Service"))},
		},
		AddressType: family,
		Ports:       ports,
		Endpoints:   []discoveryv1.Endpoint{},
	}
}

// labels are the Service's and those that say what the slice is.
func (s state) labels() map[string]string {
	l := maps.Clone(s.service.Labels)
	if l == nil {
		l = map[string]string{}
	}
	delete(l, corev1.IsHeadlessService)
	if services.Headless(s.service) {
		l[corev1.IsHeadlessService] = ""
	}
	l[discoveryv1.LabelServiceName] = s.service.Name
	l[discoveryv1.LabelManagedBy] = ManagedBy
	return l
}
