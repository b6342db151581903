package criconfig

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// AppArmorProfile is the profile that a container is to have (KEP-24), nil for what the runtime
// gives those that name none. The API server makes fields of annotations of before v1.30; static
// pods have not passed there.
func AppArmorProfile(pod *corev1.Pod, c *corev1.Container) *corev1.AppArmorProfile {
	if s := c.SecurityContext; s != nil && s.AppArmorProfile != nil {
		return s.AppArmorProfile
	}
	if value, ok := pod.Annotations[corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name]; ok {
		switch name, local := strings.CutPrefix(value, corev1.DeprecatedAppArmorBetaProfileNamePrefix); {
		case value == corev1.DeprecatedAppArmorBetaProfileRuntimeDefault:
			return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}
		case value == corev1.DeprecatedAppArmorBetaProfileNameUnconfined:
			return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}
		case local:
			return &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
		}
	}
	if s := pod.Spec.SecurityContext; s != nil {
		return s.AppArmorProfile
	}
	return nil
}

// CheckAppArmor says why a pod's profiles cannot be enforced. disabled is why the host enforces
// none; nil: it does. Whether a profile is loaded is for the runtime to see.
func CheckAppArmor(pod *corev1.Pod, disabled error) error {
	if !usesAppArmor(pod) {
		return nil
	}
	if disabled != nil {
		return disabled
	}
	for c := range containersOf(pod) {
		p := AppArmorProfile(pod, c)
		if p == nil || p.Type != corev1.AppArmorProfileTypeLocalhost {
			continue
		}
		if p.LocalhostProfile == nil || strings.TrimSpace(*p.LocalhostProfile) == "" {
			return fmt.Errorf("invalid empty AppArmor profile name: %q", p)
		}
	}
	return nil
}

// usesAppArmor says whether anything in a pod names a profile.
func usesAppArmor(pod *corev1.Pod) bool {
	confined := func(p *corev1.AppArmorProfile) bool {
		return p != nil && p.Type != corev1.AppArmorProfileTypeUnconfined
	}
	if s := pod.Spec.SecurityContext; s != nil && confined(s.AppArmorProfile) {
		return true
	}
	for c := range containersOf(pod) {
		if s := c.SecurityContext; s != nil && confined(s.AppArmorProfile) {
			return true
		}
	}
	for key, value := range pod.Annotations {
		if strings.HasPrefix(key, corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix) && value != corev1.DeprecatedAppArmorBetaProfileNameUnconfined {
			return true
		}
	}
	return false
}

// containersOf are a pod's containers of all kinds.
func containersOf(pod *corev1.Pod) func(yield func(*corev1.Container) bool) {
	return func(yield func(*corev1.Container) bool) {
		for i := range pod.Spec.InitContainers {
			if !yield(&pod.Spec.InitContainers[i]) {
				return
			}
		}
		for i := range pod.Spec.Containers {
			if !yield(&pod.Spec.Containers[i]) {
				return
			}
		}
		for i := range pod.Spec.EphemeralContainers {
			if !yield((*corev1.Container)(&pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)) {
				return
			}
		}
	}
}

// appArmor is a container's profile as CRI has it, in both its fields.
func appArmor(pod *corev1.Pod, c *corev1.Container) (profile *runtimeapi.SecurityProfile, deprecated string, err error) {
	p := AppArmorProfile(pod, c)
	if p == nil {
		return nil, "", nil
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, corev1.DeprecatedAppArmorBetaProfileRuntimeDefault, nil
	case corev1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, corev1.DeprecatedAppArmorBetaProfileNameUnconfined, nil
	case corev1.AppArmorProfileTypeLocalhost:
		if p.LocalhostProfile == nil {
			return nil, "", errors.New("missing localhost apparmor profile name")
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *p.LocalhostProfile},
			corev1.DeprecatedAppArmorBetaProfileNamePrefix + *p.LocalhostProfile, nil
	}
	return nil, "", fmt.Errorf("unknown apparmor profile type: %q", p.Type)
}
