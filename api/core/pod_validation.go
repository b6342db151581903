package core

import (
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func validatePod(p *v1.Pod) field.ErrorList                            { return nil }
func validatePodUpdate(p, old *v1.Pod) field.ErrorList                 { return nil }
func validatePodStatus(p, old *v1.Pod) field.ErrorList                 { return nil }
func validateEphemeralContainersUpdate(p, old *v1.Pod) field.ErrorList { return nil }
func validatePodResize(p, old *v1.Pod) field.ErrorList                 { return nil }
func validatePersistentVolumeSource(pv *v1.PersistentVolume, p *field.Path) field.ErrorList {
	return nil
}

func protocols() []v1.Protocol { return []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP} }

func portNumberOrName(port intstr.IntOrString, p *field.Path) field.ErrorList {
	if port.Type == intstr.String {
		return invalid(p, port.StrVal, validation.IsValidPortName(port.StrVal))
	}
	return invalid(p, port.IntValue(), validation.IsValidPortNum(port.IntValue()))
}
