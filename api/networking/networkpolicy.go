package networking

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

func networkPolicies() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "NetworkPolicy", Plural: "networkpolicies",
		ShortNames:  []string{"netpol"},
		Namespaced:  true,
		StoragePath: "networkpolicies",
		New:         func() api.Object { return &networkingv1.NetworkPolicy{} },
		NewList:     func() runtime.Object { return &networkingv1.NetworkPolicyList{} },
		Default:     api.Defaults(defaultNetworkPolicy),
		Strategy: api.Strategy{
			Validate: api.Check(func(n *networkingv1.NetworkPolicy) field.ErrorList {
				return policyRules{}.validate(&n.Spec, field.NewPath("spec"))
			}),
			ValidateUpdate: api.CheckUpdate(func(n, old *networkingv1.NetworkPolicy) field.ErrorList {
				rules := policyRules{knownCIDRs: policyCIDRs(&old.Spec)}
				rules.selectors.AllowInvalidLabelValueInSelector = metav1validation.LabelSelectorHasInvalidLabelValue(&old.Spec.PodSelector)
				return rules.validate(&n.Spec, field.NewPath("spec"))
			}),
			Warnings: api.Warn(func(n, _ *networkingv1.NetworkPolicy) []string {
				var warnings []string
				eachPeer(&n.Spec, field.NewPath("spec"), func(peer *networkingv1.NetworkPolicyPeer, p *field.Path) {
					if b := peer.IPBlock; b != nil {
						warnings = append(warnings, validation.GetWarningsForCIDR(p.Child("ipBlock", "cidr"), b.CIDR)...)
						for i, except := range b.Except {
							warnings = append(warnings, validation.GetWarningsForCIDR(p.Child("ipBlock", "except").Index(i), except)...)
						}
					}
				})
				return warnings
			}),
			HasGeneration: true,
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Pod-Selector", "string", networkingv1.NetworkPolicySpec{}.SwaggerDoc()["podSelector"], 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(n *networkingv1.NetworkPolicy, now time.Time) []any {
			return []any{n.Name, metav1.FormatLabelSelector(&n.Spec.PodSelector), api.Age(n.CreationTimestamp, now)}
		}),
	}
}

func defaultNetworkPolicy(n *networkingv1.NetworkPolicy) {
	defaultPorts := func(ports []networkingv1.NetworkPolicyPort) {
		for i := range ports {
			if ports[i].Protocol == nil {
				ports[i].Protocol = ptr.To(corev1.ProtocolTCP)
			}
		}
	}
	for i := range n.Spec.Ingress {
		defaultPorts(n.Spec.Ingress[i].Ports)
	}
	for i := range n.Spec.Egress {
		defaultPorts(n.Spec.Egress[i].Ports)
	}
	// Whoever names no types isolates ingress, and egress if there are rules for it.
	if len(n.Spec.PolicyTypes) == 0 {
		n.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		if len(n.Spec.Egress) > 0 {
			n.Spec.PolicyTypes = append(n.Spec.PolicyTypes, networkingv1.PolicyTypeEgress)
		}
	}
}

func eachPeer(s *networkingv1.NetworkPolicySpec, p *field.Path, f func(*networkingv1.NetworkPolicyPeer, *field.Path)) {
	for i := range s.Ingress {
		for k := range s.Ingress[i].From {
			f(&s.Ingress[i].From[k], p.Child("ingress").Index(i).Child("from").Index(k))
		}
	}
	for i := range s.Egress {
		for k := range s.Egress[i].To {
			f(&s.Egress[i].To[k], p.Child("egress").Index(i).Child("to").Index(k))
		}
	}
}

// policyRules say how strict to be: what a policy holds already is not refused, wherever
// in it an update moves it.
type policyRules struct {
	selectors  metav1validation.LabelSelectorValidationOptions
	knownCIDRs []string
}

func policyCIDRs(s *networkingv1.NetworkPolicySpec) []string {
	var list []string
	eachPeer(s, nil, func(peer *networkingv1.NetworkPolicyPeer, _ *field.Path) {
		if peer.IPBlock != nil {
			list = append(append(list, peer.IPBlock.CIDR), peer.IPBlock.Except...)
		}
	})
	return list
}

func (r policyRules) validate(s *networkingv1.NetworkPolicySpec, p *field.Path) field.ErrorList {
	errs := metav1validation.ValidateLabelSelector(&s.PodSelector, r.selectors, p.Child("podSelector"))
	for i := range s.Ingress {
		errs = append(errs, validatePolicyPorts(s.Ingress[i].Ports, p.Child("ingress").Index(i).Child("ports"))...)
	}
	for i := range s.Egress {
		errs = append(errs, validatePolicyPorts(s.Egress[i].Ports, p.Child("egress").Index(i).Child("ports"))...)
	}
	eachPeer(s, p, func(peer *networkingv1.NetworkPolicyPeer, p *field.Path) {
		errs = append(errs, r.validatePeer(peer, p)...)
	})
	types := p.Child("policyTypes")
	if len(s.PolicyTypes) > 2 {
		return append(errs, field.Invalid(types, &s.PolicyTypes, "may not specify more than two policyTypes"))
	}
	for i, t := range s.PolicyTypes {
		if t != networkingv1.PolicyTypeIngress && t != networkingv1.PolicyTypeEgress {
			errs = append(errs, field.NotSupported(types.Index(i), t,
				[]networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}))
		}
	}
	return errs
}

func (r policyRules) validatePeer(peer *networkingv1.NetworkPolicyPeer, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	selects := peer.PodSelector != nil || peer.NamespaceSelector != nil
	if peer.PodSelector != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(peer.PodSelector, r.selectors, p.Child("podSelector"))...)
	}
	if peer.NamespaceSelector != nil {
		errs = append(errs, metav1validation.ValidateLabelSelector(peer.NamespaceSelector, r.selectors, p.Child("namespaceSelector"))...)
	}
	if peer.IPBlock != nil {
		errs = append(errs, r.validateIPBlock(peer.IPBlock, p.Child("ipBlock"))...)
	}
	switch {
	case !selects && peer.IPBlock == nil:
		errs = append(errs, field.Required(p, "must specify a peer"))
	case selects && peer.IPBlock != nil:
		errs = append(errs, field.Forbidden(p, "may not specify both ipBlock and another peer"))
	}
	return errs
}

func (r policyRules) validateIPBlock(b *networkingv1.IPBlock, p *field.Path) field.ErrorList {
	if b.CIDR == "" {
		return field.ErrorList{field.Required(p.Child("cidr"), "")}
	}
	errs := validation.IsValidCIDRForLegacyField(p.Child("cidr"), b.CIDR, true, r.knownCIDRs)
	_, all, err := netutils.ParseCIDRSloppy(b.CIDR)
	if err != nil {
		return errs
	}
	for i, text := range b.Except {
		ep := p.Child("except").Index(i)
		errs = append(errs, validation.IsValidCIDRForLegacyField(ep, text, true, r.knownCIDRs)...)
		_, except, err := netutils.ParseCIDRSloppy(text)
		if err != nil {
			continue
		}
		wide, _ := all.Mask.Size()
		narrow, _ := except.Mask.Size()
		if !all.Contains(except.IP) || wide >= narrow {
			errs = append(errs, field.Invalid(ep, text, "must be a strict subset of `cidr`"))
		}
	}
	return errs
}

func validatePolicyPorts(ports []networkingv1.NetworkPolicyPort, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	invalid := func(p *field.Path, value any, msgs []string) {
		for _, msg := range msgs {
			errs = append(errs, field.Invalid(p, value, msg))
		}
	}
	for i := range ports {
		port, pp := &ports[i], p.Index(i)
		switch ptr.Deref(port.Protocol, corev1.ProtocolTCP) {
		case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		default:
			errs = append(errs, field.NotSupported(pp.Child("protocol"), *port.Protocol,
				[]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}))
		}
		end, ep := port.EndPort, pp.Child("endPort")
		switch {
		case port.Port == nil:
			if end != nil {
				errs = append(errs, field.Invalid(ep, *end, "may not be specified when `port` is not specified"))
			}
		case port.Port.Type == intstr.Int:
			invalid(pp.Child("port"), port.Port.IntVal, validation.IsValidPortNum(int(port.Port.IntVal)))
			if end != nil {
				if *end < port.Port.IntVal {
					errs = append(errs, field.Invalid(ep, *end, "must be greater than or equal to `port`"))
				}
				invalid(ep, *end, validation.IsValidPortNum(int(*end)))
			}
		default:
			if end != nil {
				errs = append(errs, field.Invalid(ep, *end, "may not be specified when `port` is non-numeric"))
			}
			invalid(pp.Child("port"), port.Port.StrVal, validation.IsValidPortName(port.Port.StrVal))
		}
	}
	return errs
}
