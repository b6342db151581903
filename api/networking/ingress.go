package networking

import (
	"fmt"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
)

// classAnnotation named the class before spec.ingressClassName did.
const classAnnotation = "kubernetes.io/ingress.class"

// shownHosts is how many hosts a cell lists.
const shownHosts = 3

func ingresses() *api.Resource {
	return &api.Resource{
		Group: groupVersion.Group, Version: groupVersion.Version,
		Kind: "Ingress", Plural: "ingresses",
		ShortNames:  []string{"ing"},
		Namespaced:  true,
		StoragePath: "ingress",
		New:         func() api.Object { return &networkingv1.Ingress{} },
		NewList:     func() runtime.Object { return &networkingv1.IngressList{} },
		Strategy: api.Strategy{
			PrepareCreate: api.OnCreate(func(i *networkingv1.Ingress) { i.Status = networkingv1.IngressStatus{} }),
			Validate: api.Check(func(i *networkingv1.Ingress) field.ErrorList {
				errs := ingressRules{}.validate(&i.Spec, field.NewPath("spec"))
				if class, ok := i.Annotations[classAnnotation]; ok && i.Spec.IngressClassName != nil && class != *i.Spec.IngressClassName {
					errs = append(errs, field.Invalid(field.NewPath("annotations").Child(classAnnotation), class,
						"must match `ingressClassName` when both are specified"))
				}
				return errs
			}),
			PrepareUpdate: api.OnUpdate(func(i, old *networkingv1.Ingress) { i.Status = old.Status }),
			ValidateUpdate: api.CheckUpdate(func(i, old *networkingv1.Ingress) field.ErrorList {
				return ingressRulesFor(&old.Spec).validate(&i.Spec, field.NewPath("spec"))
			}),
			Warnings: api.Warn(func(i, old *networkingv1.Ingress) []string {
				if _, ok := i.Annotations[classAnnotation]; old == nil && ok && i.Spec.IngressClassName == nil {
					return []string{fmt.Sprintf("annotation %q is deprecated, please use 'spec.ingressClassName' instead", classAnnotation)}
				}
				return nil
			}),
			HasGeneration: true,
		},
		Subresources: []api.Subresource{{
			Name: "status", Verbs: []string{"get", "patch", "update"},
			Strategy: api.Strategy{
				PrepareUpdate:  api.OnUpdate(func(i, old *networkingv1.Ingress) { i.Spec = old.Spec }),
				ValidateUpdate: api.CheckUpdate(validateIngressStatus),
				Warnings: api.Warn(func(i, _ *networkingv1.Ingress) []string {
					var warnings []string
					for k, lb := range i.Status.LoadBalancer.Ingress {
						if lb.IP != "" {
							warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("status", "loadBalancer", "ingress").Index(k), lb.IP)...)
						}
					}
					return warnings
				}),
				IgnoredApplyPaths: []string{"spec"},
			},
		}},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Class", "string", "The name of the IngressClass resource that should be used for additional configuration", 0),
			api.Column("Hosts", "string", "Hosts that incoming requests are matched against before the ingress rule", 0),
			api.Column("Address", "string", "Address is a list containing ingress points for the load-balancer", 0),
			api.Column("Ports", "string", "Ports of TLS configurations that open", 0),
			api.AgeColumn(),
		},
		Row: api.Cells(ingressRow),
	}
}

func ingressRow(i *networkingv1.Ingress, now time.Time) []any {
	ports := "80"
	if len(i.Spec.TLS) > 0 {
		ports = "80, 443"
	}
	addresses := sets.New[string]()
	for _, lb := range i.Status.LoadBalancer.Ingress {
		if lb.IP != "" {
			addresses.Insert(lb.IP)
		} else if lb.Hostname != "" {
			addresses.Insert(lb.Hostname)
		}
	}
	return []any{i.Name, ptr.Deref(i.Spec.IngressClassName, "<none>"), hostsCell(i.Spec.Rules),
		strings.Join(sets.List(addresses), ","), ports, api.Age(i.CreationTimestamp, now)}
}

func hostsCell(rules []networkingv1.IngressRule) string {
	var hosts []string
	for i := range rules {
		if len(hosts) == shownHosts {
			return fmt.Sprintf("%s + %d more...", strings.Join(hosts, ","), len(rules)-shownHosts)
		}
		if rules[i].Host != "" {
			hosts = append(hosts, rules[i].Host)
		}
	}
	if len(hosts) == 0 {
		return "*"
	}
	return strings.Join(hosts, ",")
}
