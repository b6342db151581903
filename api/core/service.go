package core

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/meta"
)

func services() *api.Resource {
	doc := v1.ServiceSpec{}.SwaggerDoc()
	return &api.Resource{
		Version: "v1", Kind: "Service", Plural: "services",
		ShortNames: []string{"svc"}, Categories: []string{"all"},
		Namespaced: true, StoragePath: "services/specs",
		New:     func() api.Object { return &v1.Service{} },
		NewList: func() runtime.Object { return &v1.ServiceList{} },
		Default: api.Defaults(defaultService),
		OnRead:  api.Defaults(readService),
		Strategy: api.Strategy{
			NameErrors:    meta.DNSLabel, // KEP-5311
			PrepareCreate: api.OnCreate(func(s *v1.Service) { s.Status = v1.ServiceStatus{} }),
			Validate:      api.Check(func(s *v1.Service) field.ErrorList { return validateService(s, nil) }),
			PrepareUpdate: api.OnUpdate(func(s, old *v1.Service) {
				s.Status = old.Status
				dropFieldsOfOldType(s, old)
			}),
			ValidateUpdate: api.CheckUpdate(validateServiceUpdate),
			Warnings:       api.Warn(serviceWarnings),
			CreateOnUpdate: true,
		},
		Subresources: []api.Subresource{{Name: "status", Verbs: []string{"get", "patch", "update"}, Strategy: api.Strategy{
			PrepareUpdate: api.OnUpdate(func(s, old *v1.Service) { s.Spec = old.Spec }),
			ValidateUpdate: api.CheckUpdate(func(s, old *v1.Service) field.ErrorList {
				return validateLoadBalancerStatus(&s.Status.LoadBalancer, &old.Status.LoadBalancer, s.Spec.Type)
			}),
			Warnings: api.Warn(func(s, _ *v1.Service) []string {
				var warnings []string
				for i, in := range s.Status.LoadBalancer.Ingress {
					if in.IP != "" {
						warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("status", "loadBalancer", "ingress").Index(i), in.IP)...)
					}
				}
				return warnings
			}),
			IgnoredApplyPaths: []string{"spec"},
		}}},
		Fields: api.Selectable(func(s *v1.Service) fields.Set {
			return fields.Set{"spec.clusterIP": s.Spec.ClusterIP, "spec.type": string(s.Spec.Type)}
		}),
		FieldLabels: []string{"spec.clusterIP", "spec.type"},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Type", "string", doc["type"], 0),
			api.Column("Cluster-IP", "string", doc["clusterIP"], 0),
			api.Column("External-IP", "string", doc["externalIPs"], 0),
			api.Column("Port(s)", "string", doc["ports"], 0),
			api.AgeColumn(),
			api.Column("Selector", "string", doc["selector"], api.Wide),
		},
		Row: api.Cells(serviceRow),
	}
}

func defaultService(s *v1.Service) {
	spec := &s.Spec
	setIfEmpty(&spec.SessionAffinity, v1.ServiceAffinityNone)
	switch spec.SessionAffinity {
	case v1.ServiceAffinityNone:
		spec.SessionAffinityConfig = nil
	case v1.ServiceAffinityClientIP:
		if c := spec.SessionAffinityConfig; c == nil || c.ClientIP == nil || c.ClientIP.TimeoutSeconds == nil {
			timeout := v1.DefaultClientIPServiceAffinitySeconds
			spec.SessionAffinityConfig = &v1.SessionAffinityConfig{ClientIP: &v1.ClientIPConfig{TimeoutSeconds: &timeout}}
		}
	}
	setIfEmpty(&spec.Type, v1.ServiceTypeClusterIP)
	for i := range spec.Ports {
		p := &spec.Ports[i]
		setIfEmpty(&p.Protocol, v1.ProtocolTCP)
		if p.TargetPort == intstr.FromInt32(0) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
	}
	if externallyAccessible(s) {
		setIfEmpty(&spec.ExternalTrafficPolicy, v1.ServiceExternalTrafficPolicyCluster)
	}
	switch spec.Type {
	case v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort, v1.ServiceTypeLoadBalancer:
		setIfNil(&spec.InternalTrafficPolicy, v1.ServiceInternalTrafficPolicyCluster)
	}
	if spec.Type == v1.ServiceTypeLoadBalancer {
		setIfNil(&spec.AllocateLoadBalancerNodePorts, true)
		for i := range s.Status.LoadBalancer.Ingress {
			if in := &s.Status.LoadBalancer.Ingress[i]; in.IP != "" {
				setIfNil(&in.IPMode, v1.LoadBalancerIPModeVIP)
			}
		}
	}
}

func serviceRow(s *v1.Service, now time.Time) []any {
	clusterIP := "<none>"
	if len(s.Spec.ClusterIPs) > 0 {
		clusterIP = s.Spec.ClusterIPs[0]
	}
	ports := make([]string, len(s.Spec.Ports))
	for i, p := range s.Spec.Ports {
		if ports[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol); p.NodePort > 0 {
			ports[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
	}
	return []any{
		s.Name, string(s.Spec.Type), clusterIP, externalIPs(s), orNone(strings.Join(ports, ",")),
		api.Age(s.CreationTimestamp, now), labels.FormatLabels(s.Spec.Selector),
	}
}

func externalIPs(s *v1.Service) string {
	switch s.Spec.Type {
	case v1.ServiceTypeClusterIP, v1.ServiceTypeNodePort:
		return orNone(strings.Join(s.Spec.ExternalIPs, ","))
	case v1.ServiceTypeLoadBalancer:
		ingress := sets.New[string]()
		for _, in := range s.Status.LoadBalancer.Ingress {
			if in.IP != "" {
				ingress.Insert(in.IP)
			} else if in.Hostname != "" {
				ingress.Insert(in.Hostname)
			}
		}
		if all := append(sets.List(ingress), s.Spec.ExternalIPs...); len(all) > 0 {
			return strings.Join(all, ",")
		}
		return "<pending>"
	case v1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	}
	return "<unknown>"
}

func serviceWarnings(s, _ *v1.Service) []string {
	var warnings []string
	add := func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
	spec := field.NewPath("spec")
	if _, has := s.Annotations[v1.DeprecatedAnnotationTopologyAwareHints]; has {
		add("annotation %s is deprecated, please use %s instead", v1.DeprecatedAnnotationTopologyAwareHints, v1.AnnotationTopologyMode)
	}
	if s.Spec.ClusterIP != "" && s.Spec.ClusterIP != v1.ClusterIPNone {
		for i, ip := range s.Spec.ClusterIPs {
			warnings = append(warnings, validation.GetWarningsForIP(spec.Child("clusterIPs").Index(i), ip)...)
		}
	}
	headless := s.Spec.Type == v1.ServiceTypeClusterIP && s.Spec.ClusterIP == v1.ClusterIPNone
	if headless {
		if s.Spec.LoadBalancerIP != "" {
			add("spec.loadBalancerIP is ignored for headless services")
		}
		if len(s.Spec.ExternalIPs) > 0 {
			add("spec.externalIPs is ignored for headless services")
		}
		if s.Spec.SessionAffinity != v1.ServiceAffinityNone {
			add("spec.SessionAffinity is ignored for headless services")
		}
	}
	for i, ip := range s.Spec.ExternalIPs {
		warnings = append(warnings, validation.GetWarningsForIP(spec.Child("externalIPs").Index(i), ip)...)
	}
	if len(s.Spec.ExternalIPs) > 0 && !headless && s.Spec.Type != v1.ServiceTypeExternalName {
		add("spec.externalIPs is deprecated and may no longer be implemented in some clusters")
	}
	if s.Spec.LoadBalancerIP != "" {
		warnings = append(warnings, validation.GetWarningsForIP(spec.Child("loadBalancerIP"), s.Spec.LoadBalancerIP)...)
	}
	for i, cidr := range s.Spec.LoadBalancerSourceRanges {
		warnings = append(warnings, validation.GetWarningsForCIDR(spec.Child("loadBalancerSourceRanges").Index(i), cidr)...)
	}
	if s.Spec.Type == v1.ServiceTypeExternalName && len(s.Spec.ExternalIPs) > 0 {
		add("spec.externalIPs is ignored when spec.type is %q", v1.ServiceTypeExternalName)
	}
	if s.Spec.Type != v1.ServiceTypeExternalName && s.Spec.ExternalName != "" {
		add("spec.externalName is ignored when spec.type is not %q", v1.ServiceTypeExternalName)
	}
	if t := s.Spec.TrafficDistribution; t != nil && *t == v1.ServiceTrafficDistributionPreferClose {
		add("spec.trafficDistribution: %q is deprecated; use %q", v1.ServiceTrafficDistributionPreferClose, v1.ServiceTrafficDistributionPreferSameZone)
	}
	return warnings
}
