package core

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validateProbe(probe *v1.Probe, p *field.Path) field.ErrorList {
	h := &probe.ProbeHandler
	errs := exactlyOneHandler(p, []handler{
		{"exec", h.Exec != nil, func(p *field.Path) field.ErrorList { return validateExec(h.Exec, p) }},
		{"httpGet", h.HTTPGet != nil, func(p *field.Path) field.ErrorList { return validateHTTPGet(h.HTTPGet, p) }},
		{"tcpSocket", h.TCPSocket != nil, func(p *field.Path) field.ErrorList {
			return portNumberOrName(h.TCPSocket.Port, p.Child("port"))
		}},
		{"grpc", h.GRPC != nil, func(p *field.Path) field.ErrorList { return validateGRPC(h.GRPC, p) }},
	})
	errs = append(errs, nonNegative(probe.InitialDelaySeconds, p.Child("initialDelaySeconds"))...)
	errs = append(errs, nonNegative(probe.TimeoutSeconds, p.Child("timeoutSeconds"))...)
	errs = append(errs, nonNegative(probe.PeriodSeconds, p.Child("periodSeconds"))...)
	errs = append(errs, nonNegative(probe.SuccessThreshold, p.Child("successThreshold"))...)
	errs = append(errs, nonNegative(probe.FailureThreshold, p.Child("failureThreshold"))...)
	if g := probe.TerminationGracePeriodSeconds; g != nil && *g <= 0 {
		errs = append(errs, field.Invalid(p.Child("terminationGracePeriodSeconds"), *g, "must be greater than 0"))
	}
	return errs
}

func validateHook(h *v1.LifecycleHandler, grace *int64, p *field.Path) field.ErrorList {
	return exactlyOneHandler(p, []handler{
		{"exec", h.Exec != nil, func(p *field.Path) field.ErrorList { return validateExec(h.Exec, p) }},
		{"httpGet", h.HTTPGet != nil, func(p *field.Path) field.ErrorList { return validateHTTPGet(h.HTTPGet, p) }},
		{"tcpSocket", h.TCPSocket != nil, func(p *field.Path) field.ErrorList {
			return portNumberOrName(h.TCPSocket.Port, p.Child("port"))
		}},
		{"sleep", h.Sleep != nil, func(p *field.Path) field.ErrorList {
			// A bad grace period has its own error.
			if grace == nil || h.Sleep.Seconds >= 0 && h.Sleep.Seconds <= *grace {
				return nil
			}
			return field.ErrorList{field.Invalid(p, h.Sleep.Seconds,
				fmt.Sprintf("must be non-negative and less than terminationGracePeriodSeconds (%d)", *grace))}
		}},
	})
}

type handler struct {
	name  string
	set   bool
	check func(*field.Path) field.ErrorList
}

func exactlyOneHandler(p *field.Path, handlers []handler) field.ErrorList {
	var errs field.ErrorList
	found := false
	for _, h := range handlers {
		switch {
		case !h.set:
		case found:
			errs = append(errs, field.Forbidden(p.Child(h.name), "may not specify more than 1 handler type"))
		default:
			found = true
			errs = append(errs, h.check(p.Child(h.name))...)
		}
	}
	if !found {
		errs = append(errs, field.Required(p, "must specify a handler type"))
	}
	return errs
}

func validateExec(a *v1.ExecAction, p *field.Path) field.ErrorList {
	if len(a.Command) == 0 {
		return field.ErrorList{field.Required(p.Child("command"), "")}
	}
	return nil
}

func validateHTTPGet(a *v1.HTTPGetAction, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if a.Path == "" {
		errs = append(errs, field.Required(p.Child("path"), ""))
	}
	errs = append(errs, portNumberOrName(a.Port, p.Child("port"))...)
	errs = append(errs, supported(a.Scheme, p.Child("scheme"), v1.URISchemeHTTP, v1.URISchemeHTTPS)...)
	for _, h := range a.HTTPHeaders {
		errs = append(errs, invalid(p.Child("httpHeaders"), h.Name, validation.IsHTTPHeaderName(h.Name))...)
	}
	return errs
}

func validateGRPC(a *v1.GRPCAction, p *field.Path) field.ErrorList {
	return portNumber(a.Port, p.Child("port"))
}
