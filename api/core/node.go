package core

import (
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func nodes() *api.Resource {
	sysInfo := v1.NodeSystemInfo{}.SwaggerDoc()
	addresses := v1.NodeStatus{}.SwaggerDoc()["addresses"]
	return &api.Resource{
		Version: "v1", Kind: "Node", Plural: "nodes", ShortNames: []string{"no"},
		StoragePath: "minions",
		New:         func() api.Object { return &v1.Node{} },
		NewList:     func() runtime.Object { return &v1.NodeList{} },
		Default:     api.Defaults(defaultNode),
		Strategy: api.Strategy{
			// Unlike elsewhere, status may be set on create.
			PrepareCreate: api.OnCreate(func(n *v1.Node) {
				n.Spec.ConfigSource, n.Status.Config, n.Spec.PodPreemptionPolicy = nil, nil, nil
			}),
			Validate: api.Check(validateNode),
			PrepareUpdate: api.OnUpdate(func(n, old *v1.Node) {
				n.Status = old.Status
				if old.Spec.ConfigSource == nil {
					n.Spec.ConfigSource = nil
				}
				if old.Spec.PodPreemptionPolicy == nil {
					n.Spec.PodPreemptionPolicy = nil
				}
			}),
			ValidateUpdate: api.CheckUpdate(func(n, old *v1.Node) field.ErrorList {
				return append(validateNode(n), validateNodeUpdate(n, old)...)
			}),
			Warnings: api.Warn(nodeWarnings),
		},
		Subresources: []api.Subresource{{Name: "status", Verbs: []string{"get", "patch", "update"}, Strategy: api.Strategy{
			PrepareUpdate: api.OnUpdate(func(n, old *v1.Node) {
				n.Spec = old.Spec
				if old.Status.Config == nil {
					n.Status.Config = nil
				}
			}),
			ValidateUpdate: api.CheckUpdate(func(n, old *v1.Node) field.ErrorList {
				errs := append(validateNodeResources(n), validateNodeUpdate(n, old)...)
				return append(errs, validateNodeTaints(n)...)
			}),
			IgnoredApplyPaths: []string{"spec"},
		}}},
		Fields: api.Selectable(func(n *v1.Node) fields.Set {
			return fields.Set{"spec.unschedulable": fmt.Sprint(n.Spec.Unschedulable)}
		}),
		FieldLabels: []string{"spec.unschedulable"},
		Columns: []metav1.TableColumnDefinition{
			api.NameColumn(),
			api.Column("Status", "string", "The status of the node", 0),
			api.Column("Roles", "string", "The roles of the node", 0),
			api.AgeColumn(),
			api.Column("Version", "string", sysInfo["kubeletVersion"], 0),
			api.Column("Internal-IP", "string", addresses, api.Wide),
			api.Column("External-IP", "string", addresses, api.Wide),
			api.Column("OS-Image", "string", sysInfo["osImage"], api.Wide),
			api.Column("Kernel-Version", "string", sysInfo["kernelVersion"], api.Wide),
			api.Column("Container-Runtime", "string", sysInfo["containerRuntimeVersion"], api.Wide),
		},
		Row: api.Cells(nodeRow),
	}
}

// defaultNode also keeps podCIDR and podCIDRs in step; podCIDR wins.
func defaultNode(n *v1.Node) {
	switch s := &n.Spec; {
	case s.PodCIDR != "" && (len(s.PodCIDRs) == 0 || s.PodCIDRs[0] != s.PodCIDR):
		s.PodCIDRs = []string{s.PodCIDR}
	case s.PodCIDR == "" && len(s.PodCIDRs) > 0:
		s.PodCIDR = s.PodCIDRs[0]
	}
	if n.Status.Allocatable == nil && n.Status.Capacity != nil {
		n.Status.Allocatable = n.Status.Capacity.DeepCopy()
	}
	roundUp(n.Status.Capacity)
	roundUp(n.Status.Allocatable)
}

func nodeRow(n *v1.Node, now time.Time) []any {
	status := "Unknown"
	for _, c := range n.Status.Conditions {
		if c.Type != v1.NodeReady {
			continue
		}
		if status = "NotReady"; c.Status == v1.ConditionTrue {
			status = "Ready"
		}
	}
	if n.Spec.Unschedulable {
		status += ",SchedulingDisabled"
	}
	info := n.Status.NodeInfo
	kernel := orUnknown(info.KernelVersion)
	if info.Architecture != "" {
		kernel += " (" + info.Architecture + ")"
	}
	return []any{
		n.Name, status, orNone(strings.Join(nodeRoles(n), ",")), api.Age(n.CreationTimestamp, now), info.KubeletVersion,
		nodeAddress(n, v1.NodeInternalIP), nodeAddress(n, v1.NodeExternalIP),
		orUnknown(info.OSImage), kernel, orUnknown(info.ContainerRuntimeVersion),
	}
}

func nodeRoles(n *v1.Node) []string {
	roles := sets.New[string]()
	for key, value := range n.Labels {
		if role, ok := strings.CutPrefix(key, "node-role.kubernetes.io/"); ok && role != "" {
			roles.Insert(role)
		} else if key == "kubernetes.io/role" && value != "" {
			roles.Insert(value)
		}
	}
	return sets.List(roles)
}

func nodeAddress(n *v1.Node, kind v1.NodeAddressType) string {
	for _, a := range n.Status.Addresses {
		if a.Type == kind {
			return a.Address
		}
	}
	return "<none>"
}

func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}

func orUnknown(s string) string {
	if s == "" {
		return "<unknown>"
	}
	return s
}

func nodeWarnings(n, _ *v1.Node) []string {
	var warnings []string
	if n.Spec.ConfigSource != nil {
		warnings = append(warnings, "spec.configSource: the feature is removed")
	}
	if n.Spec.DoNotUseExternalID != "" {
		warnings = append(warnings, "spec.externalID: this field is deprecated, and is unused by Kubernetes")
	}
	for i, cidr := range n.Spec.PodCIDRs {
		warnings = append(warnings, validation.GetWarningsForCIDR(field.NewPath("spec", "podCIDRs").Index(i), cidr)...)
	}
	return warnings
}
