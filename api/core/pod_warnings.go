package core

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// PodTemplateWarnings tells clients about settings in a template that are
// deprecated, do nothing or may surprise. old is nil on create.
func PodTemplateWarnings(t, old *v1.PodTemplateSpec, p *field.Path) []string {
	if t == nil {
		return nil
	}
	return podSpecWarnings(&t.ObjectMeta, &t.Spec, p)
}

type warnings []string

func (w *warnings) add(p *field.Path, format string, args ...any) {
	*w = append(*w, fmt.Sprintf("%s: %s", p, fmt.Sprintf(format, args...)))
}

// podSpecWarnings is for pods (p is nil) and templates.
func podSpecWarnings(meta *metav1.ObjectMeta, s *v1.PodSpec, p *field.Path) []string {
	var w warnings
	spec, annotations := p.Child("spec"), p.Child("metadata", "annotations")
	w.placement(s, spec)
	for _, a := range []struct{ key, message string }{
		{"scheduler.alpha.kubernetes.io/critical-pod", `non-functional in v1.16+; use the "priorityClassName" field instead`},
		{"security.alpha.kubernetes.io/sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
		{"security.alpha.kubernetes.io/unsafe-sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
	} {
		if _, has := meta.Annotations[a.key]; has {
			w.add(annotations.Key(a.key), "%s", a.message)
		}
	}
	w.volumes(s.Volumes, spec.Child("volumes"))
	w.overlappingPaths(s.Volumes)
	w.duplicates(s, spec)
	w.fractional(s.Overhead, spec.Child("overhead"))
	w.profileAnnotations(meta, s, p)
	eachContainerPath(s, spec, func(c *v1.Container, p *field.Path) {
		w.fractional(c.Resources.Limits, p.Child("resources", "limits"))
		w.fractional(c.Resources.Requests, p.Child("resources", "requests"))
		w.hiddenEnv(c.Env, p.Child("env"))
	})
	w.ports(s, spec)
	if g := s.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		w.add(spec.Child("terminationGracePeriodSeconds"), "must be >= 0; negative values are invalid and will be treated as 1")
	}
	w.nullSelectors(s.Affinity, spec.Child("affinity"))
	if s.DNSConfig != nil {
		for i, ip := range s.DNSConfig.Nameservers {
			w = append(w, validation.GetWarningsForIP(spec.Child("dnsConfig", "nameservers").Index(i), ip)...)
		}
	}
	for i, a := range s.HostAliases {
		w = append(w, validation.GetWarningsForIP(spec.Child("hostAliases").Index(i).Child("ip"), a.IP)...)
	}
	return w
}

// DeprecatedNodeLabel tells what to use instead of a node label, "" if it is in use.
func DeprecatedNodeLabel(key string) string {
	switch key {
	case "beta.kubernetes.io/arch":
		return `deprecated since v1.14; use "kubernetes.io/arch" instead`
	case "beta.kubernetes.io/os":
		return `deprecated since v1.14; use "kubernetes.io/os" instead`
	case "failure-domain.beta.kubernetes.io/region":
		return `deprecated since v1.17; use "topology.kubernetes.io/region" instead`
	case "failure-domain.beta.kubernetes.io/zone":
		return `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`
	case "beta.kubernetes.io/instance-type":
		return `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`
	case "app.kubernetes.io/created-by":
		return `deprecated since v1.9`
	case "scheduler.alpha.kubernetes.io/preferAvoidPods":
		return `deprecated since v1.22; use Taints and Tolerations instead`
	case "node-role.kubernetes.io/master":
		return `use "node-role.kubernetes.io/control-plane" instead`
	}
	return ""
}

func (w *warnings) placement(s *v1.PodSpec, p *field.Path) {
	for _, key := range sortedKeys(s.NodeSelector) {
		if msg := DeprecatedNodeLabel(key); msg != "" {
			w.add(p.Child("nodeSelector").Key(key), "%s", msg)
		}
	}
	if s.Affinity != nil && s.Affinity.NodeAffinity != nil {
		n, p := s.Affinity.NodeAffinity, p.Child("affinity", "nodeAffinity")
		if n.RequiredDuringSchedulingIgnoredDuringExecution != nil {
			p := p.Child("requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
			for i := range n.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
				w.nodeTerm(&n.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[i], false, p.Index(i))
			}
		}
		for i := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			w.nodeTerm(&n.PreferredDuringSchedulingIgnoredDuringExecution[i].Preference, true,
				p.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i).Child("preference"))
		}
	}
	for i, t := range s.TopologySpreadConstraints {
		p := p.Child("topologySpreadConstraints").Index(i)
		if msg := DeprecatedNodeLabel(t.TopologyKey); msg != "" {
			w.add(p.Child("topologyKey"), "%s is %s", t.TopologyKey, msg)
		}
		if t.LabelSelector == nil {
			w.add(p.Child("labelSelector"), "a null labelSelector results in matching no pod")
		}
	}
}

func (w *warnings) nodeTerm(t *v1.NodeSelectorTerm, values bool, p *field.Path) {
	for i, e := range t.MatchExpressions {
		p := p.Child("matchExpressions").Index(i)
		if msg := DeprecatedNodeLabel(e.Key); msg != "" {
			w.add(p.Child("key"), "%s is %s", e.Key, msg)
		}
		if !values {
			continue
		}
		for j, value := range e.Values {
			for _, msg := range validation.IsValidLabelValue(value) {
				w.add(p.Child("values").Index(j), "%s is invalid, %s", value, msg)
			}
		}
	}
}

func (w *warnings) nullSelectors(a *v1.Affinity, p *field.Path) {
	terms := func(required []v1.PodAffinityTerm, preferred []v1.WeightedPodAffinityTerm, p *field.Path) {
		const null = "a null labelSelector results in matching no pod"
		for i, t := range required {
			if t.LabelSelector == nil {
				w.add(p.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i).Child("labelSelector"), null)
			}
		}
		for i, t := range preferred {
			if t.PodAffinityTerm.LabelSelector == nil {
				w.add(p.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i).Child("podAffinityTerm", "labelSelector"), null)
			}
		}
	}
	if a == nil {
		return
	}
	if pa := a.PodAffinity; pa != nil {
		terms(pa.RequiredDuringSchedulingIgnoredDuringExecution, pa.PreferredDuringSchedulingIgnoredDuringExecution, p.Child("podAffinity"))
	}
	if pa := a.PodAntiAffinity; pa != nil {
		terms(pa.RequiredDuringSchedulingIgnoredDuringExecution, pa.PreferredDuringSchedulingIgnoredDuringExecution, p.Child("podAntiAffinity"))
	}
}

func (w *warnings) volumes(volumes []v1.Volume, p *field.Path) {
	for i := range volumes {
		v, p := &volumes[i], p.Index(i)
		for _, gone := range []struct {
			used          bool
			name, message string
		}{
			{v.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+"},
			{v.GitRepo != nil, "gitRepo", "deprecated in v1.11, and disabled by default in v1.33+"},
			{v.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+"},
			{v.Flocker != nil, "flocker", "deprecated in v1.22, non-functional in v1.25+"},
			{v.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+"},
			{v.Quobyte != nil, "quobyte", "deprecated in v1.22, non-functional in v1.25+"},
			{v.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+"},
			{v.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+"},
			{v.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+"},
		} {
			if gone.used {
				w.add(p.Child(gone.name), "%s", gone.message)
			}
		}
		if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
			*w = append(*w, ClaimSpecWarnings(&v.Ephemeral.VolumeClaimTemplate.Spec, p.Child("ephemeral", "volumeClaimTemplate", "spec"))...)
		}
	}
}

func (w *warnings) duplicates(s *v1.PodSpec, p *field.Path) {
	ips, names := sets.New[string](), sets.New[string]()
	for i, a := range s.HostAliases {
		if ips.Has(a.IP) {
			w.add(p.Child("hostAliases").Index(i).Child("ip"), "duplicate ip %q", a.IP)
		}
		ips.Insert(a.IP)
	}
	for i, secret := range s.ImagePullSecrets {
		if names.Has(secret.Name) {
			w.add(p.Child("imagePullSecrets").Index(i).Child("name"), "duplicate name %q", secret.Name)
		}
		names.Insert(secret.Name)
	}
	for i, secret := range s.ImagePullSecrets {
		if secret.Name == "" {
			w.add(p.Child("imagePullSecrets").Index(i).Child("name"), "invalid empty name %q", secret.Name)
		}
	}
}

func (w *warnings) fractional(list v1.ResourceList, p *field.Path) {
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceEphemeralStorage} {
		var q resource.Quantity
		var has bool
		if q, has = list[name]; has && q.MilliValue()%1000 != 0 {
			w.add(p.Key(string(name)), "fractional byte value %q is invalid, must be an integer", q.String())
		}
	}
}

func (w *warnings) profileAnnotations(meta *metav1.ObjectMeta, s *v1.PodSpec, p *field.Path) {
	const useSeccomp, useAppArmor = `non-functional in v1.27+; use the "seccompProfile" field instead`, `deprecated since v1.30; use the "appArmorProfile" field instead`
	annotations := p.Child("metadata", "annotations")
	var podAppArmor *v1.AppArmorProfile
	podSeccomp := false
	if s.SecurityContext != nil {
		podAppArmor, podSeccomp = s.SecurityContext.AppArmorProfile, s.SecurityContext.SeccompProfile != nil
	}
	if _, has := meta.Annotations[seccompPodAnnotation]; has && !podSeccomp {
		w.add(annotations.Key(seccompPodAnnotation), "%s", useSeccomp)
	}
	eachContainer(s, func(c *v1.Container) {
		seccomp, appArmor := false, podAppArmor
		own := false
		if c.SecurityContext != nil {
			seccomp = c.SecurityContext.SeccompProfile != nil
			if own = c.SecurityContext.AppArmorProfile != nil; own {
				appArmor = c.SecurityContext.AppArmorProfile
			}
		}
		if key := seccompContainerAnnotationPrefix + c.Name; !seccomp {
			if _, has := meta.Annotations[key]; has {
				w.add(annotations.Key(key), "%s", useSeccomp)
			}
		}
		key := appArmorAnnotationPrefix + c.Name
		value, has := meta.Annotations[key]
		if !has {
			return
		}
		profile := appArmorProfile(value)
		if p == nil {
			// A pod's annotation was made a field already; it warned if it was none.
			if profile == nil || own && equality.Semantic.DeepEqual(appArmor, profile) && !equality.Semantic.DeepEqual(podAppArmor, profile) {
				w.add(annotations.Key(key), "%s", useAppArmor)
			}
		} else if !own && (podAppArmor == nil || !equality.Semantic.DeepEqual(podAppArmor, profile)) {
			w.add(annotations.Key(key), "%s", useAppArmor)
		}
	})
}

func (w *warnings) hiddenEnv(env []v1.EnvVar, p *field.Path) {
	names := sets.New[string]()
	for i, e := range env {
		if names.Has(e.Name) {
			// X="$(X):more" builds on what stands before; anything else hides it.
			own := "$(" + e.Name + ")"
			if e.ValueFrom != nil || e.Value == own || !strings.Contains(e.Value, own) {
				w.add(p.Index(i), "hides previous definition of %q, which may be dropped when using apply", e.Name)
			}
		}
		names.Insert(e.Name)
	}
}

func (w *warnings) ports(s *v1.PodSpec, p *field.Path) {
	type seen struct {
		at   *field.Path
		port v1.ContainerPort
	}
	byNumber := map[string][]seen{}
	byName := map[string]*field.Path{}
	var names warnings // come after all others
	eachContainerPath(s, p, func(c *v1.Container, p *field.Path) {
		for i, port := range c.Ports {
			at := p.Child("ports").Index(i)
			if port.HostIP != "" && port.HostPort == 0 {
				w.add(at, "hostIP set without hostPort: %+v", port)
			}
			key := fmt.Sprintf("%d/%s", port.ContainerPort, port.Protocol)
			for _, other := range byNumber[key] {
				sameHostPort := port.HostPort == other.port.HostPort
				switch {
				case sameHostPort && port.HostIP == other.port.HostIP:
					w.add(at, "duplicate port definition with %s", other.at)
				case port.HostPort == 0 || other.port.HostPort == 0:
					w.add(at, "overlapping port definition with %s", other.at)
				case sameHostPort && (port.HostIP == "") != (other.port.HostIP == ""):
					w.add(at, "dangerously ambiguous port definition with %s", other.at)
				}
			}
			byNumber[key] = append(byNumber[key], seen{at, port})
			if port.Name == "" {
				continue
			}
			if other, has := byName[port.Name]; has {
				names.add(at, "duplicate port name %q with %s, services and probes that select ports by name will use %s", port.Name, other, other)
			} else {
				byName[port.Name] = at
			}
		}
	})
	*w = append(*w, names...)
}
