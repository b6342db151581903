package core

import (
	"fmt"
	"strconv"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api"
)

func pods() *api.Resource {
	update := []string{"get", "patch", "update"}
	return &api.Resource{
		Version: "v1", Kind: "Pod", Plural: "pods",
		ShortNames: []string{"po"}, Categories: []string{"all"},
		Namespaced: true, StoragePath: "pods",
		New:     func() api.Object { return &v1.Pod{} },
		NewList: func() runtime.Object { return &v1.PodList{} },
		Default: api.Defaults(DefaultPod),
		Strategy: api.Strategy{
			HasGeneration:  true,
			PrepareCreate:  api.OnCreate(preparePod),
			Validate:       api.Check(validatePod),
			PrepareUpdate:  api.OnUpdate(preparePodUpdate),
			ValidateUpdate: api.CheckUpdate(validatePodUpdate),
			Warnings:       api.Warn(podWarnings),
			Grace: func(obj runtime.Object, o *metav1.DeleteOptions) bool {
				return podGrace(obj.(*v1.Pod), o)
			},
		},
		Subresources: []api.Subresource{
			{Name: "status", Verbs: update, Strategy: api.Strategy{
				HasGeneration:     true,
				PrepareUpdate:     api.OnUpdate(preparePodStatus),
				ValidateUpdate:    api.CheckUpdate(validatePodStatus),
				Warnings:          api.Warn(podStatusWarnings),
				IgnoredApplyPaths: []string{"spec"},
			}},
			{Name: "ephemeralcontainers", Verbs: update, Strategy: api.Strategy{
				HasGeneration:     true,
				PrepareUpdate:     api.OnUpdate(prepareEphemeralContainers),
				ValidateUpdate:    api.CheckUpdate(validateEphemeralContainersUpdate),
				IgnoredApplyPaths: []string{"status"},
			}},
			{Name: "resize", Verbs: update, Strategy: api.Strategy{
				HasGeneration:     true,
				PrepareUpdate:     api.OnUpdate(preparePodResize),
				ValidateUpdate:    api.CheckUpdate(validatePodResize),
				IgnoredApplyPaths: []string{"status"},
			}},
		},
		Fields: api.Selectable(func(p *v1.Pod) fields.Set {
			ip := ""
			if len(p.Status.PodIPs) > 0 {
				ip = p.Status.PodIPs[0].IP
			}
			return fields.Set{
				"spec.nodeName":            p.Spec.NodeName,
				"spec.restartPolicy":       string(p.Spec.RestartPolicy),
				"spec.schedulerName":       p.Spec.SchedulerName,
				"spec.serviceAccountName":  p.Spec.ServiceAccountName,
				"spec.hostNetwork":         strconv.FormatBool(p.Spec.HostNetwork),
				"status.phase":             string(p.Status.Phase),
				"status.podIP":             ip,
				"status.nominatedNodeName": p.Status.NominatedNodeName,
			}
		}),
		FieldLabels: []string{
			"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName",
			"spec.hostNetwork", "status.phase", "status.podIP", "status.nominatedNodeName",
		},
		Columns: podColumns(),
		Row:     api.Cells(podRow),
	}
}

// podGrace settles how long a pod may take to end: what was asked for, else what
// it says itself, and no time at all when nothing runs.
func podGrace(p *v1.Pod, o *metav1.DeleteOptions) bool {
	if o == nil {
		return false
	}
	var period int64
	switch {
	case o.GracePeriodSeconds != nil:
		period = *o.GracePeriodSeconds
	case p.Spec.TerminationGracePeriodSeconds != nil:
		period = *p.Spec.TerminationGracePeriodSeconds
	}
	if p.Spec.NodeName == "" || p.Status.Phase == v1.PodFailed || p.Status.Phase == v1.PodSucceeded {
		period = 0
	}
	if period < 0 {
		period = 1
	}
	o.GracePeriodSeconds = &period
	return true
}

func podWarnings(p, old *v1.Pod) []string {
	if old != nil {
		return nil // mostly machines update pods, and often
	}
	var warnings []string
	if msgs := validation.IsDNS1123Label(p.Name); len(msgs) > 0 {
		warnings = append(warnings, fmt.Sprintf("metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: %v", msgs))
	}
	return append(warnings, podSpecWarnings(&p.ObjectMeta, &p.Spec, nil)...)
}

func podStatusWarnings(p, _ *v1.Pod) []string {
	var warnings []string
	for i, ip := range p.Status.PodIPs {
		warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("status", "podIPs").Index(i).Child("ip"), ip.IP)...)
	}
	for i, ip := range p.Status.HostIPs {
		warnings = append(warnings, validation.GetWarningsForIP(field.NewPath("status", "hostIPs").Index(i).Child("ip"), ip.IP)...)
	}
	return warnings
}
