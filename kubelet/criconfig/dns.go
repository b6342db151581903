package criconfig

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// DNS is a resolver configuration.
type DNS struct{ Servers, Searches, Options []string }

const (
	maxServers     = 3
	maxSearches    = 32
	maxSearchChars = 2048
)

// ParseResolvConf reads resolv.conf(5).
func ParseResolvConf(r io.Reader) (DNS, error) {
	var d DNS
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		if len(f) == 0 || strings.HasPrefix(f[0], "#") {
			continue
		}
		switch f[0] {
		case "nameserver":
			if len(f) < 2 {
				return DNS{}, fmt.Errorf("parse resolv.conf: nameserver without address")
			}
			d.Servers = append(d.Servers, f[1])
		case "search":
			d.Searches = nil
			for _, s := range f[1:] {
				if s != "." {
					d.Searches = append(d.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case "options":
			for _, o := range f[1:] {
				d.Options = setOption(d.Options, o)
			}
		}
	}
	if err := sc.Err(); err != nil {
		return DNS{}, fmt.Errorf("read resolv.conf: %w", err)
	}
	return d, nil
}

// PodDNS is the pod's resolver configuration by its dnsPolicy and dnsConfig.
func PodDNS(n *Node, pod *corev1.Pod) (DNS, []string) {
	var d DNS
	var warnings []string
	policy := pod.Spec.DNSPolicy
	if policy == corev1.DNSClusterFirst && pod.Spec.HostNetwork {
		policy = corev1.DNSDefault
	}
	if policy == corev1.DNSClusterFirstWithHostNet || policy == "" {
		policy = corev1.DNSClusterFirst
	}
	if policy == corev1.DNSClusterFirst && len(n.ClusterDNS) == 0 {
		warnings = append(warnings, fmt.Sprintf("kubelet does not have ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.", corev1.DNSClusterFirst, corev1.DNSDefault))
		policy = corev1.DNSDefault
	}
	switch policy {
	case corev1.DNSNone:
	case corev1.DNSDefault:
		d = DNS{Servers: append([]string(nil), n.HostDNS.Servers...), Searches: append([]string(nil), n.HostDNS.Searches...), Options: append([]string(nil), n.HostDNS.Options...)}
	default:
		d.Servers = append([]string(nil), n.ClusterDNS...)
		if dom := n.ClusterDomain; dom != "" {
			d.Searches = []string{pod.Namespace + ".svc." + dom, "svc." + dom, dom}
		}
		d.Searches = unique(append(d.Searches, n.HostDNS.Searches...))
		d.Options = []string{"ndots:5"}
	}
	if c := pod.Spec.DNSConfig; c != nil {
		d.Servers = unique(append(d.Servers, c.Nameservers...))
		d.Searches = unique(append(d.Searches, c.Searches...))
		for _, o := range c.Options {
			s := o.Name
			if o.Value != nil && *o.Value != "" {
				s += ":" + *o.Value
			}
			d.Options = setOption(d.Options, s)
		}
	}
	if len(d.Servers) > maxServers {
		d.Servers = d.Servers[:maxServers]
		warnings = append(warnings, "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: "+strings.Join(d.Servers, " "))
	}
	if fit := fitSearches(d.Searches); len(fit) != len(d.Searches) {
		d.Searches = fit
		warnings = append(warnings, "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: "+strings.Join(fit, " "))
	}
	return d, warnings
}

func fitSearches(in []string) []string {
	var out []string
	chars := -1
	for _, s := range in {
		// Longer names make some resolvers abort.
		if len(s) > validation.DNS1123SubdomainMaxLength {
			continue
		}
		if len(out) == maxSearches || chars+1+len(s) > maxSearchChars {
			break
		}
		out = append(out, s)
		chars += 1 + len(s)
	}
	return out
}

// setOption adds an option or replaces the one of the same name.
func setOption(list []string, o string) []string {
	name, _, _ := strings.Cut(o, ":")
	for i := range list {
		if n, _, _ := strings.Cut(list[i], ":"); n == name {
			list[i] = o
			return list
		}
	}
	return append(list, o)
}

func unique(in []string) []string {
	seen := make(map[string]bool, len(in))
	var out []string
	for _, s := range in {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}
