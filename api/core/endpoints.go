package core

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func endpoints() *api.Resource {
	return &api.Resource{
		Version: "v1", Kind: "Endpoints", ListKind: "EndpointsList",
		Plural: "endpoints", Singular: "endpoints", ShortNames: []string{"ep"},
		Namespaced: true, StoragePath: "services/endpoints",
		New:     func() api.Object { return &v1.Endpoints{} },
		NewList: func() runtime.Object { return &v1.EndpointsList{} },
		Default: api.Defaults(func(e *v1.Endpoints) {
			for i := range e.Subsets {
				for j := range e.Subsets[i].Ports {
					setIfEmpty(&e.Subsets[i].Ports[j].Protocol, v1.ProtocolTCP)
				}
			}
		}),
		Strategy: api.Strategy{
			Validate: api.Check(func(e *v1.Endpoints) field.ErrorList { return validateSubsets(e.Subsets) }),
			ValidateUpdate: api.CheckUpdate(func(e, old *v1.Endpoints) field.ErrorList {
				errs := validateSubsets(e.Subsets)
				if len(errs) > 0 && equality.Semantic.DeepEqual(e.Subsets, old.Subsets) {
					return nil // stored when the rules were laxer
				}
				return errs
			}),
			Warnings:       api.Warn(endpointsWarnings),
			CreateOnUpdate: true,
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Endpoints", "string", v1.Endpoints{}.SwaggerDoc()["subsets"], 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(e *v1.Endpoints, now time.Time) []any {
			return []any{e.Name, endpointsCell(e), api.Age(e.CreationTimestamp, now)}
		}),
	}
}

// endpointsCell shows the first three ready endpoints and how many more there are.
func endpointsCell(e *v1.Endpoints) string {
	if len(e.Subsets) == 0 {
		return "<none>"
	}
	const most = 3
	var shown []string
	count := 0
	add := func(s string) {
		if count++; len(shown) < most {
			shown = append(shown, s)
		}
	}
	for _, s := range e.Subsets {
		if len(s.Ports) == 0 {
			for _, a := range s.Addresses {
				add(a.IP)
			}
		}
		for _, p := range s.Ports {
			for _, a := range s.Addresses {
				add(net.JoinHostPort(a.IP, strconv.Itoa(int(p.Port))))
			}
		}
	}
	cell := strings.Join(shown, ",")
	if count > most {
		return fmt.Sprintf("%s + %d more...", cell, count-most)
	}
	return cell
}

func validateSubsets(subsets []v1.EndpointSubset) field.ErrorList {
	var errs field.ErrorList
	for i, s := range subsets {
		p := field.NewPath("subsets").Index(i)
		if len(s.Addresses) == 0 && len(s.NotReadyAddresses) == 0 {
			errs = append(errs, field.Required(p, "must specify `addresses` or `notReadyAddresses`"))
		}
		for j := range s.Addresses {
			errs = append(errs, validateEndpointAddress(&s.Addresses[j], p.Child("addresses").Index(j))...)
		}
		for j := range s.NotReadyAddresses {
			errs = append(errs, validateEndpointAddress(&s.NotReadyAddresses[j], p.Child("notReadyAddresses").Index(j))...)
		}
		for j := range s.Ports {
			errs = append(errs, validateEndpointPort(&s.Ports[j], len(s.Ports) > 1, p.Child("ports").Index(j))...)
		}
	}
	return errs
}

func validateEndpointAddress(a *v1.EndpointAddress, p *field.Path) field.ErrorList {
	errs := validation.IsValidIPForLegacyField(p.Child("ip"), a.IP, true, nil)
	if a.Hostname != "" {
		errs = append(errs, dnsLabel(a.Hostname, p.Child("hostname"))...)
	}
	if a.NodeName != nil {
		errs = append(errs, invalid(p.Child("nodeName"), *a.NodeName, apivalidation.NameIsDNSSubdomain(*a.NodeName, false))...)
	}
	return append(errs, endpointIP(a.IP, p.Child("ip"))...)
}

func validateEndpointPort(port *v1.EndpointPort, needsName bool, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if port.Name != "" {
		errs = append(errs, dnsLabel(port.Name, p.Child("name"))...)
	} else if needsName {
		errs = append(errs, field.Required(p.Child("name"), ""))
	}
	errs = append(errs, portNumber(port.Port, p.Child("port"))...)
	errs = append(errs, oneOf(port.Protocol, p.Child("protocol"), protocols()...)...)
	if port.AppProtocol != nil {
		errs = append(errs, qualifiedName(*port.AppProtocol, p.Child("appProtocol"))...)
	}
	return errs
}

func endpointsWarnings(e, _ *v1.Endpoints) []string {
	if e.Labels["endpoints.kubernetes.io/managed-by"] == "endpoint-controller" {
		return nil // it writes good addresses only
	}
	var warnings []string
	for i, s := range e.Subsets {
		p := field.NewPath("subsets").Index(i)
		for j, a := range s.Addresses {
			warnings = append(warnings, validation.GetWarningsForIP(p.Child("addresses").Index(j).Child("ip"), a.IP)...)
		}
		for j, a := range s.NotReadyAddresses {
			warnings = append(warnings, validation.GetWarningsForIP(p.Child("notReadyAddresses").Index(j).Child("ip"), a.IP)...)
		}
	}
	return warnings
}
