package networking

import (
	"fmt"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	netutils "k8s.io/utils/net"
)

// ingressRules say how strict to be: what an Ingress holds already is not refused.
type ingressRules struct {
	anySecretName   bool // spec.tls[].secretName
	anyWildcardRule bool // paths and backends of rules with a wildcard host
}

func ingressRulesFor(old *networkingv1.IngressSpec) ingressRules {
	var r ingressRules
	for i := range old.TLS {
		if name := old.TLS[i].SecretName; name != "" && len(validation.IsDNS1123Subdomain(name)) > 0 {
			r.anySecretName = true
		}
	}
	for i := range old.Rules {
		if rule := &old.Rules[i]; strings.Contains(rule.Host, "*") && len(validatePaths(rule.HTTP, nil)) > 0 {
			r.anyWildcardRule = true
		}
	}
	return r
}

func (r ingressRules) validate(s *networkingv1.IngressSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(s.Rules) == 0 && s.DefaultBackend == nil {
		errs = append(errs, field.Invalid(p, s.Rules, "either `defaultBackend` or `rules` must be specified"))
	}
	if s.DefaultBackend != nil {
		errs = append(errs, validateBackend(s.DefaultBackend, p.Child("defaultBackend"))...)
	}
	for i := range s.Rules {
		rule, rp := &s.Rules[i], p.Child("rules").Index(i)
		if rule.Host != "" {
			if netutils.ParseIPSloppy(rule.Host) != nil {
				errs = append(errs, field.Invalid(rp.Child("host"), rule.Host, "must be a DNS name, not an IP address"))
			}
			errs = append(errs, validateHost(rule.Host, rp.Child("host"))...)
		}
		if !r.anyWildcardRule || !strings.Contains(rule.Host, "*") {
			errs = append(errs, validatePaths(rule.HTTP, rp.Child("http"))...)
		}
	}
	for i := range s.TLS {
		tls, tp := &s.TLS[i], p.Child("tls").Index(i)
		for k, host := range tls.Hosts {
			errs = append(errs, validateHost(host, tp.Child("hosts").Index(k))...)
		}
		if tls.SecretName != "" && !r.anySecretName {
			errs = append(errs, invalidText(tls.SecretName, validation.IsDNS1123Subdomain(tls.SecretName), tp.Child("secretName"))...)
		}
	}
	if s.IngressClassName != nil {
		errs = append(errs, invalidText(*s.IngressClassName, validation.IsDNS1123Subdomain(*s.IngressClassName), p.Child("ingressClassName"))...)
	}
	return errs
}

func invalidText(value string, msgs []string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range msgs {
		errs = append(errs, field.Invalid(p, value, msg))
	}
	return errs
}

func validateHost(host string, p *field.Path) field.ErrorList {
	if strings.Contains(host, "*") {
		return invalidText(host, validation.IsWildcardDNS1123Subdomain(host), p)
	}
	return invalidText(host, validation.IsDNS1123Subdomain(host), p)
}

func validatePaths(http *networkingv1.HTTPIngressRuleValue, p *field.Path) field.ErrorList {
	if http == nil {
		return nil
	}
	var errs field.ErrorList
	if len(http.Paths) == 0 {
		errs = append(errs, field.Required(p.Child("paths"), ""))
	}
	for i := range http.Paths {
		errs = append(errs, validatePath(&http.Paths[i], p.Child("paths").Index(i))...)
	}
	return errs
}

func validatePath(h *networkingv1.HTTPIngressPath, p *field.Path) field.ErrorList {
	if h.PathType == nil {
		return field.ErrorList{field.Required(p.Child("pathType"), "pathType must be specified")}
	}
	var errs field.ErrorList
	pp := p.Child("path")
	absolute := strings.HasPrefix(h.Path, "/")
	switch *h.PathType {
	case networkingv1.PathTypeExact, networkingv1.PathTypePrefix:
		if !absolute {
			errs = append(errs, field.Invalid(pp, h.Path, "must be an absolute path"))
		}
		// Proxies disagree on what these mean.
		for _, part := range []string{"//", "/./", "/../", "%2f", "%2F"} {
			if strings.Contains(h.Path, part) {
				errs = append(errs, field.Invalid(pp, h.Path, fmt.Sprintf("must not contain '%s'", part)))
			}
		}
		for _, end := range []string{"/..", "/."} {
			if strings.HasSuffix(h.Path, end) {
				errs = append(errs, field.Invalid(pp, h.Path, fmt.Sprintf("cannot end with '%s'", end)))
			}
		}
	case networkingv1.PathTypeImplementationSpecific:
		if h.Path != "" && !absolute {
			errs = append(errs, field.Invalid(pp, h.Path, "must be an absolute path"))
		}
	default:
		errs = append(errs, field.NotSupported(p.Child("pathType"), *h.PathType, []networkingv1.PathType{
			networkingv1.PathTypeExact, networkingv1.PathTypeImplementationSpecific, networkingv1.PathTypePrefix}))
	}
	return append(errs, validateBackend(&h.Backend, p.Child("backend"))...)
}

func validateBackend(b *networkingv1.IngressBackend, p *field.Path) field.ErrorList {
	switch {
	case b.Resource != nil && b.Service != nil:
		return field.ErrorList{field.Invalid(p, "", "cannot set both resource and service backends")}
	case b.Resource != nil:
		return validateLocalReference(b.Resource.APIGroup, b.Resource.Kind, b.Resource.Name, p.Child("resource"))
	case b.Service == nil:
		return field.ErrorList{field.Invalid(p, "", "resource or service backend is required")}
	}
	var errs field.ErrorList
	s, sp := b.Service, p.Child("service")
	if s.Name == "" {
		errs = append(errs, field.Required(sp.Child("name"), ""))
	} else {
		errs = append(errs, invalidText(s.Name, validation.IsDNS1123Label(s.Name), sp.Child("name"))...)
	}
	switch named, numbered := s.Port.Name != "", s.Port.Number != 0; {
	case named && numbered:
		errs = append(errs, field.Invalid(p, "", "cannot set both port name & port number"))
	case named:
		errs = append(errs, invalidText(s.Port.Name, validation.IsValidPortName(s.Port.Name), sp.Child("port", "name"))...)
	case numbered:
		for _, msg := range validation.IsValidPortNum(int(s.Port.Number)) {
			errs = append(errs, field.Invalid(sp.Child("port", "number"), s.Port.Number, msg))
		}
	default:
		errs = append(errs, field.Required(p, "port name or number is required"))
	}
	return errs
}

func validateIngressStatus(i, old *networkingv1.Ingress) field.ErrorList {
	var known []string
	for _, lb := range old.Status.LoadBalancer.Ingress {
		if lb.IP != "" {
			known = append(known, lb.IP)
		}
	}
	var errs field.ErrorList
	for k, lb := range i.Status.LoadBalancer.Ingress {
		p := field.NewPath("status", "loadBalancer", "ingress").Index(k)
		if lb.IP != "" {
			errs = append(errs, validation.IsValidIPForLegacyField(p.Child("ip"), lb.IP, true, known)...)
		}
		if lb.Hostname != "" {
			errs = append(errs, invalidText(lb.Hostname, validation.IsDNS1123Subdomain(lb.Hostname), p.Child("hostname"))...)
			if netutils.ParseIPSloppy(lb.Hostname) != nil {
				errs = append(errs, field.Invalid(p.Child("hostname"), lb.Hostname, "must be a DNS name, not an IP address"))
			}
		}
	}
	return errs
}
