// Package discovery declares the resources of discovery.k8s.io.
//
// Owns: endpointslices. Must not: know Services or pods.
package discovery

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

// Resources lists what the group serves.
func Resources() []*api.Resource { return []*api.Resource{endpointSlices()} }

func endpointSlices() *api.Resource {
	doc := discoveryv1.EndpointSlice{}.SwaggerDoc()
	return &api.Resource{
		Group: discoveryv1.GroupName, Version: "v1",
		Kind: "EndpointSlice", Plural: "endpointslices",
		Namespaced:  true,
		StoragePath: "endpointslices",
		New:         func() api.Object { return &discoveryv1.EndpointSlice{} },
		NewList:     func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
		Default:     api.Defaults(defaultEndpointSlice),
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(s *discoveryv1.EndpointSlice) { dropTopology(s, &discoveryv1.EndpointSlice{}) }),
			PrepareUpdate: api.OnUpdate(func(s, old *discoveryv1.EndpointSlice) {
				if !equality.Semantic.DeepEqual(s.Endpoints, old.Endpoints) {
					dropTopology(s, old)
				}
			}),
			Validate: api.Check(func(s *discoveryv1.EndpointSlice) field.ErrorList {
				return validateEndpointSlice(s, nil)
			}),
			ValidateUpdate: api.CheckUpdate(validateEndpointSlice),
			Warnings:       api.Warn(endpointSliceWarnings),
			HasGeneration:  true,
			SpecChanged:    api.Changed(endpointSliceChanged),
		},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("AddressType", "string", doc["addressType"], 0),
			api.Column("Ports", "string", doc["ports"], 0),
			api.Column("Endpoints", "string", doc["endpoints"], 0),
			api.AgeColumn(),
		},
		Row: api.Cells(func(s *discoveryv1.EndpointSlice, now time.Time) []any {
			return []any{s.Name, string(s.AddressType), portsCell(s.Ports), endpointsCell(s.Endpoints), api.Age(s.CreationTimestamp, now)}
		}),
	}
}

func defaultEndpointSlice(s *discoveryv1.EndpointSlice) {
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Name == nil {
			p.Name = ptr.To("")
		}
		if p.Protocol == nil {
			p.Protocol = ptr.To(corev1.ProtocolTCP)
		}
	}
}

// dropTopology ignores writes to deprecatedTopology, as documented, but keeps a node
// name that an object from v1beta1 times has only there.
func dropTopology(s, old *discoveryv1.EndpointSlice) {
	known := sets.New[string]()
	for i := range old.Endpoints {
		if node := old.Endpoints[i].DeprecatedTopology[corev1.LabelHostname]; node != "" {
			known.Insert(node)
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		node := e.DeprecatedTopology[corev1.LabelHostname]
		if e.NodeName == nil && known.Has(node) && len(validation.IsDNS1123Subdomain(node)) == 0 {
			e.NodeName = &node
		}
		e.DeprecatedTopology = nil
	}
}

// endpointSliceChanged: all but metadata counts, and labels.
func endpointSliceChanged(s, old *discoveryv1.EndpointSlice) bool {
	return s.AddressType != old.AddressType ||
		!equality.Semantic.DeepEqual(s.Endpoints, old.Endpoints) ||
		!equality.Semantic.DeepEqual(s.Ports, old.Ports) ||
		!equality.Semantic.DeepEqual(s.Labels, old.Labels)
}

func endpointSliceWarnings(s, old *discoveryv1.EndpointSlice) []string {
	var warnings []string
	if old == nil && s.AddressType == discoveryv1.AddressTypeFQDN {
		warnings = append(warnings, "spec.addressType: FQDN endpoints are deprecated")
	}
	switch s.Labels[discoveryv1.LabelManagedBy] {
	case "endpointslice-controller.k8s.io", "endpointslicemirroring-controller.k8s.io":
		return warnings // they write canonical addresses
	}
	for i := range s.Endpoints {
		for k, address := range s.Endpoints[i].Addresses {
			p := field.NewPath("endpoints").Index(i).Child("addresses").Index(k)
			warnings = append(warnings, validation.GetWarningsForIP(p, address)...)
		}
	}
	return warnings
}

// shown is how many ports or addresses a cell lists.
const shown = 3

func listCell(list []string) string {
	switch n := len(list); {
	case n == 0:
		return "<unset>"
	case n > shown:
		return fmt.Sprintf("%s + %d more...", strings.Join(list[:shown], ","), n-shown)
	}
	if text := strings.Join(list, ","); text != "" {
		return text
	}
	return "<unset>"
}

func portsCell(ports []discoveryv1.EndpointPort) string {
	list := make([]string, len(ports))
	for i, p := range ports {
		switch {
		case p.Port != nil:
			list[i] = strconv.Itoa(int(*p.Port))
		case p.Name != nil:
			list[i] = *p.Name
		default:
			list[i] = "*"
		}
	}
	return listCell(list)
}

func endpointsCell(endpoints []discoveryv1.Endpoint) string {
	var list []string
	for i := range endpoints {
		list = append(list, endpoints[i].Addresses...)
	}
	return listCell(list)
}
