// Package services is what the controllers of EndpointSlices and of Endpoints share:
// which Services select a pod, which pods are endpoints, and at which ports.
package services

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	corelisters "k8s.io/client-go/listers/core/v1"

	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/ownership"
)

// Selecting reports whether a Service gets its endpoints from pods.
func Selecting(s *corev1.Service) bool {
	return s.Spec.Selector != nil && s.Spec.Type != corev1.ServiceTypeExternalName
}

// Headless reports whether a Service has no cluster IP.
func Headless(s *corev1.Service) bool {
	return s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone
}

// Selects reports whether the Service's selector matches the labels.
func Selects(s *corev1.Service, podLabels map[string]string) bool {
	if !Selecting(s) {
		return false
	}
	for k, v := range s.Spec.Selector {
		if got, ok := podLabels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// Pods returns the shared pods that the Service selects.
func Pods(lister corelisters.PodLister, s *corev1.Service) ([]*corev1.Pod, error) {
	return lister.Pods(s.Namespace).List(labels.SelectorFromSet(s.Spec.Selector))
}

// PodHandlers wake the Services that select a pod when anything of it changes that
// endpoints show.
func PodHandlers(lister corelisters.ServiceLister, loop *controller.Loop[controller.Key]) controller.Handlers[*corev1.Pod] {
	wake := func(pods ...*corev1.Pod) {
		all, err := lister.Services(pods[0].Namespace).List(labels.Everything())
		if err != nil {
			return
		}
		for _, s := range all {
			for _, p := range pods {
				if Selects(s, p.Labels) {
					loop.Add(controller.KeyOf(s))
				}
			}
		}
	}
	return controller.Handlers[*corev1.Pod]{
		Added: func(p *corev1.Pod) { wake(p) },
		Updated: func(old, p *corev1.Pod) {
			if sameLabels := equal(old.Labels, p.Labels); !sameLabels {
				wake(old, p)
			} else if changed(old, p) {
				wake(p)
			}
		},
		Deleted: func(p *corev1.Pod) { wake(p) },
	}
}

func equal(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}

func changed(old, p *corev1.Pod) bool {
	if ownership.Ready(old) != ownership.Ready(p) || (old.DeletionTimestamp == nil) != (p.DeletionTimestamp == nil) ||
		ownership.Ended(old) != ownership.Ended(p) || old.Spec.NodeName != p.Spec.NodeName ||
		old.Spec.Hostname != p.Spec.Hostname || old.Spec.Subdomain != p.Spec.Subdomain ||
		len(old.Status.PodIPs) != len(p.Status.PodIPs) || old.Status.PodIP != p.Status.PodIP {
		return true
	}
	for i := range old.Status.PodIPs {
		if old.Status.PodIPs[i] != p.Status.PodIPs[i] {
			return true
		}
	}
	return false
}

// Endpoint reports whether a pod may be an endpoint at all; terminating ones only where
// that can be said of them.
func Endpoint(p *corev1.Pod, terminating bool) bool {
	if ownership.Ended(p) || p.Status.PodIP == "" && len(p.Status.PodIPs) == 0 {
		return false
	}
	return terminating || p.DeletionTimestamp == nil
}

// Port finds the container port that a Service port names; false when the pod has none.
func Port(p *corev1.Pod, sp *corev1.ServicePort) (int32, bool) {
	if sp.TargetPort.Type == intstr.Int {
		return sp.TargetPort.IntVal, true
	}
	find := func(c *corev1.Container) (int32, bool) {
		for i := range c.Ports {
			if c.Ports[i].Name == sp.TargetPort.StrVal && c.Ports[i].Protocol == sp.Protocol {
				return c.Ports[i].ContainerPort, true
			}
		}
		return 0, false
	}
	for i := range p.Spec.Containers {
		if n, ok := find(&p.Spec.Containers[i]); ok {
			return n, true
		}
	}
	for i := range p.Spec.InitContainers {
		c := &p.Spec.InitContainers[i]
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		if n, ok := find(c); ok {
			return n, true
		}
	}
	return 0, false
}

// Hostname is the pod's own name under the Service's, if it has one.
func Hostname(p *corev1.Pod, s *corev1.Service) string {
	if p.Spec.Subdomain == s.Name && p.Namespace == s.Namespace {
		return p.Spec.Hostname
	}
	return ""
}
