package discovery

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

// Limits of one slice.
const (
	maxTopologyLabels = 16
	maxAddresses      = 100
	maxPorts          = 20000
	maxEndpoints      = 1000
	maxZoneHints      = 8
	maxNodeHints      = 8
)

var (
	addressTypes = sets.New(discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN)
	protocols    = sets.New(corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP)
)

// validateEndpointSlice takes a nil old on create.
func validateEndpointSlice(s, old *discoveryv1.EndpointSlice) field.ErrorList {
	var errs field.ErrorList
	at := field.NewPath("addressType")
	if s.AddressType == "" {
		errs = append(errs, field.Required(at, ""))
	} else if !addressTypes.Has(s.AddressType) {
		errs = append(errs, field.NotSupported(at, s.AddressType, sets.List(addressTypes)))
	}
	errs = append(errs, validatePorts(s.Ports, field.NewPath("ports"))...)
	endpointErrs := validateEndpoints(s.Endpoints, s.AddressType, field.NewPath("endpoints"))
	// What an older cluster accepted may stay; compare only then, endpoints can be many.
	if len(endpointErrs) == 0 || old == nil || !equality.Semantic.DeepEqual(s.Endpoints, old.Endpoints) {
		errs = append(errs, endpointErrs...)
	}
	if old != nil {
		errs = append(errs, api.Immutable(s.AddressType, old.AddressType, at)...)
	}
	return errs
}

func validatePorts(ports []discoveryv1.EndpointPort, p *field.Path) field.ErrorList {
	if len(ports) > maxPorts {
		return field.ErrorList{field.TooMany(p, len(ports), maxPorts)}
	}
	var errs field.ErrorList
	names := sets.New[string]()
	for i := range ports {
		port, pp := &ports[i], p.Index(i)
		name := ptr.Deref(port.Name, "")
		if name != "" {
			errs = append(errs, invalid(name, validation.IsDNS1123Label(name), pp.Child("name"))...)
		}
		if names.Has(name) {
			errs = append(errs, field.Duplicate(pp.Child("name"), port.Name))
		}
		names.Insert(name)
		if port.Protocol == nil {
			errs = append(errs, field.Required(pp.Child("protocol"), ""))
		} else if !protocols.Has(*port.Protocol) {
			errs = append(errs, field.NotSupported(pp.Child("protocol"), *port.Protocol, sets.List(protocols)))
		}
		if port.AppProtocol != nil {
			errs = append(errs, metav1validation.ValidateLabelName(*port.AppProtocol, pp.Child("appProtocol"))...)
		}
	}
	return errs
}

func validateEndpoints(endpoints []discoveryv1.Endpoint, t discoveryv1.AddressType, p *field.Path) field.ErrorList {
	if len(endpoints) > maxEndpoints {
		return field.ErrorList{field.TooMany(p, len(endpoints), maxEndpoints)}
	}
	var errs field.ErrorList
	for i := range endpoints {
		e, ep := &endpoints[i], p.Index(i)
		ap := ep.Child("addresses")
		switch n := len(e.Addresses); {
		case n == 0:
			errs = append(errs, field.Required(ap, ""))
		case n > maxAddresses:
			errs = append(errs, field.TooMany(ap, n, maxAddresses))
		}
		for k, address := range e.Addresses {
			errs = append(errs, validateAddress(address, t, ap, ap.Index(k))...)
		}
		if e.NodeName != nil {
			errs = append(errs, invalid(*e.NodeName, validation.IsDNS1123Subdomain(*e.NodeName), ep.Child("nodeName"))...)
		}
		topology := ep.Child("deprecatedTopology")
		if n := len(e.DeprecatedTopology); n > maxTopologyLabels {
			errs = append(errs, field.TooMany(topology, n, maxTopologyLabels))
		}
		errs = append(errs, metav1validation.ValidateLabels(e.DeprecatedTopology, topology)...)
		if e.Hostname != nil {
			errs = append(errs, invalid(*e.Hostname, validation.IsDNS1123Label(*e.Hostname), ep.Child("hostname"))...)
		}
		if e.Hints != nil {
			errs = append(errs, validateHints(e.Hints, ep.Child("hints"))...)
		}
	}
	return errs
}

// validateAddress reports the wrong family at all, the list of addresses.
func validateAddress(address string, t discoveryv1.AddressType, all, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch t {
	case discoveryv1.AddressTypeIPv4:
		if errs = validation.IsValidIPForLegacyField(p, address, true, nil); len(errs) > 0 {
			return errs
		}
		if !netutils.IsIPv4String(address) {
			errs = append(errs, field.Invalid(all, address, "must be an IPv4 address"))
		}
	case discoveryv1.AddressTypeIPv6:
		if errs = validation.IsValidIP(p, address); len(errs) > 0 {
			return errs
		}
		if !netutils.IsIPv6String(address) {
			errs = append(errs, field.Invalid(all, address, "must be an IPv6 address"))
		}
	case discoveryv1.AddressTypeFQDN:
		return validation.IsFullyQualifiedDomainName(p, address)
	default:
		return nil
	}
	return append(errs, reachable(address, p)...)
}

// reachable refuses addresses that mean something else on every node.
func reachable(address string, p *field.Path) field.ErrorList {
	ip := netutils.ParseIPSloppy(address)
	if ip == nil {
		return field.ErrorList{field.Invalid(p, address, "must be a valid IP address")}
	}
	var errs field.ErrorList
	if ip.IsUnspecified() {
		errs = append(errs, field.Invalid(p, address, fmt.Sprintf("may not be unspecified (%v)", address)))
	}
	if ip.IsLoopback() {
		errs = append(errs, field.Invalid(p, address, "may not be in the loopback range (127.0.0.0/8, ::1/128)"))
	}
	if ip.IsLinkLocalUnicast() {
		errs = append(errs, field.Invalid(p, address, "may not be in the link-local range (169.254.0.0/16, fe80::/10)"))
	}
	if ip.IsLinkLocalMulticast() {
		errs = append(errs, field.Invalid(p, address, "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"))
	}
	return errs
}

func validateHints(h *discoveryv1.EndpointHints, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	zones, nodes := p.Child("forZones"), p.Child("forNodes")
	if n := len(h.ForZones); n > maxZoneHints {
		return append(errs, field.TooMany(zones, n, maxZoneHints))
	}
	seen := sets.New[string]()
	for i, z := range h.ForZones {
		zp := zones.Index(i).Child("name")
		if seen.Has(z.Name) {
			errs = append(errs, field.Duplicate(zp, z.Name))
		}
		seen.Insert(z.Name)
		errs = append(errs, invalid(z.Name, validation.IsValidLabelValue(z.Name), zp)...)
	}
	if n := len(h.ForNodes); n > maxNodeHints {
		return append(errs, field.TooMany(nodes, n, maxNodeHints))
	}
	seen = sets.New[string]()
	for i, n := range h.ForNodes {
		np := nodes.Index(i).Child("name")
		if seen.Has(n.Name) {
			errs = append(errs, field.Duplicate(np, n.Name))
		}
		seen.Insert(n.Name)
		errs = append(errs, invalid(n.Name, validation.IsDNS1123Subdomain(n.Name), np)...)
	}
	return errs
}

func invalid(value string, msgs []string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range msgs {
		errs = append(errs, field.Invalid(p, value, msg))
	}
	return errs
}
