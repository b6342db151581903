package baremetal

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	cloudapi "k8s.io/cloud-provider/api"
)

// retryTaken is how soon a Service without an address asks again: nothing tells when one is free.
const retryTaken = 15 * time.Second

// loadBalancers implements cloudprovider.LoadBalancer.
type loadBalancers struct{ p *Provider }

func keyOf(s *corev1.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
}

// GetLoadBalancerName implements cloudprovider.LoadBalancer.
func (l loadBalancers) GetLoadBalancerName(_ context.Context, _ string, s *corev1.Service) string {
	return keyOf(s).String()
}

// GetLoadBalancer implements cloudprovider.LoadBalancer: a Service has one if it has an address of a pool.
func (l loadBalancers) GetLoadBalancer(_ context.Context, _ string, s *corev1.Service) (*corev1.LoadBalancerStatus, bool, error) {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	addrs := slices.DeleteFunc(ingress(&s.Status.LoadBalancer), func(a netip.Addr) bool { return !l.p.pooled(a) })
	if b := l.p.balancers[keyOf(s)]; len(addrs) == 0 && b != nil && b.uid == s.UID {
		addrs = b.promised
	}
	if len(addrs) == 0 {
		return nil, false, nil
	}
	return statusOf(addrs), true, nil
}

// EnsureLoadBalancer implements cloudprovider.LoadBalancer.
func (l loadBalancers) EnsureLoadBalancer(_ context.Context, _ string, s *corev1.Service, nodes []*corev1.Node) (*corev1.LoadBalancerStatus, error) {
	r, err := requestOf(s)
	if err != nil {
		return nil, err
	}
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	addrs, err := l.p.assign(r)
	if errors.Is(err, errNoAddress) {
		return nil, fmt.Errorf("%s: %w", err, cloudapi.NewRetryError("an address is looked for again", retryTaken))
	}
	if err != nil {
		return nil, err
	}
	l.p.balancers[r.key].nodes = namesOf(nodes)
	l.p.wake()
	return statusOf(addrs), nil
}

// assign chooses a Service's addresses and promises them to it. The lock is held.
func (p *Provider) assign(r request) ([]netip.Addr, error) {
	others, err := p.claims(r.key)
	if err != nil {
		return nil, err
	}
	b := p.balancers[r.key]
	if b == nil || b.uid != r.uid {
		b = &balancer{uid: r.uid}
		p.balancers[r.key] = b
	}
	if len(r.addrs) == 0 {
		r.addrs = b.promised
	}
	addrs, err := allocate(p.pools, others, r)
	if err != nil {
		return nil, err
	}
	b.promised = addrs
	return addrs, nil
}

// UpdateLoadBalancer implements cloudprovider.LoadBalancer.
func (l loadBalancers) UpdateLoadBalancer(_ context.Context, _ string, s *corev1.Service, nodes []*corev1.Node) error {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	b := l.p.balancers[keyOf(s)]
	if b == nil || b.uid != s.UID {
		return fmt.Errorf("load balancer of service %s: it has not been ensured", keyOf(s))
	}
	b.nodes = namesOf(nodes)
	l.p.wake()
	return nil
}

// EnsureLoadBalancerDeleted implements cloudprovider.LoadBalancer. The node takes the address off
// when the status is empty or the Service gone, and until then nobody else gets it.
func (l loadBalancers) EnsureLoadBalancerDeleted(_ context.Context, _ string, s *corev1.Service) error {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if b := l.p.balancers[keyOf(s)]; b != nil && b.uid == s.UID {
		delete(l.p.balancers, keyOf(s))
	}
	return nil
}

func (p *Provider) pooled(a netip.Addr) bool {
	return slices.ContainsFunc(p.pools, func(o pool) bool { return o.contains(a) })
}

// claims are the addresses of all Services but one, whoever gave them: by their status, and by
// what has been promised and does not show there yet.
func (p *Provider) claims(except types.NamespacedName) ([]claim, error) {
	all, err := p.services.List(labels.Everything())
	if err != nil {
		return nil, fmt.Errorf("list services: %w", err)
	}
	var out []claim
	for _, s := range all {
		key := keyOf(s)
		if key == except {
			continue
		}
		c := claimOf(s)
		if b := p.balancers[key]; b != nil && b.uid == s.UID {
			for _, a := range b.promised {
				if !slices.Contains(c.addrs, a) {
					c.addrs = append(c.addrs, a)
				}
			}
		}
		for _, text := range s.Spec.ExternalIPs {
			if a, err := netip.ParseAddr(text); err == nil && p.pooled(a.Unmap()) {
				c.addrs = append(c.addrs, a.Unmap())
			}
		}
		if len(c.addrs) > 0 {
			out = append(out, c)
		}
	}
	return out, nil
}

func statusOf(addrs []netip.Addr) *corev1.LoadBalancerStatus {
	s := &corev1.LoadBalancerStatus{}
	mode := corev1.LoadBalancerIPModeVIP
	for _, a := range addrs {
		s.Ingress = append(s.Ingress, corev1.LoadBalancerIngress{IP: a.String(), IPMode: &mode})
	}
	return s
}

func namesOf(nodes []*corev1.Node) []string {
	var out []string
	for _, n := range nodes {
		out = append(out, n.Name)
	}
	return out
}
