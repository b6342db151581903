package core

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api/podfit"
)

// laxity names the rules that an update is not held to, because the stored
// object breaks them already: it was accepted before the rule was made.
type laxity struct {
	indivisibleHugePages     bool
	selectorValues           bool // in pod affinity
	nodeAffinityValues       bool
	spreadSelectors          bool
	spreadLabelKeys          bool
	tokenPaths               bool
	hostSysctls              bool
	numericTolerations       bool
	userNamespaceDevices     bool
	userNamespaceHostNetwork bool
	emptyImageVolumes        bool
	sysAdmin                 bool // with allowPrivilegeEscalation: false
	initRestartOnResize      bool
}

func laxityOf(old *v1.PodSpec) laxity {
	var l laxity
	anywhere := field.NewPath("")
	userNamespace := old.HostUsers != nil && !*old.HostUsers
	l.userNamespaceHostNetwork = userNamespace && old.HostNetwork
	eachContainer(old, func(c *v1.Container) {
		l.indivisibleHugePages = l.indivisibleHugePages || hasIndivisibleHugePages(&c.Resources)
		l.userNamespaceDevices = l.userNamespaceDevices || userNamespace && len(c.VolumeDevices) > 0
		l.sysAdmin = l.sysAdmin || sysAdminWithoutEscalation(c.SecurityContext)
	})
	for i := range old.InitContainers {
		c := &old.InitContainers[i]
		for _, p := range c.ResizePolicy {
			if !podfit.Restartable(c) && p.RestartPolicy == v1.RestartContainer {
				l.initRestartOnResize = true
			}
		}
	}
	eachPodAffinityTerm(old.Affinity, func(t *v1.PodAffinityTerm) {
		l.selectorValues = l.selectorValues || badSelectorValue(t.LabelSelector) || badSelectorValue(t.NamespaceSelector)
	})
	if a := old.Affinity; a != nil && a.NodeAffinity != nil && a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		l.nodeAffinityValues = badNodeSelectorValue(a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution)
	}
	for i := range old.TopologySpreadConstraints {
		c := &old.TopologySpreadConstraints[i]
		l.spreadSelectors = l.spreadSelectors || len(metav1validation.ValidateLabelSelector(c.LabelSelector, metav1validation.LabelSelectorValidationOptions{}, anywhere)) > 0
		l.spreadLabelKeys = l.spreadLabelKeys || len(validateLabelKeys(c.MatchLabelKeys, nil, c.LabelSelector, anywhere)) > 0
	}
	for i := range old.Volumes {
		v := &old.Volumes[i].VolumeSource
		l.emptyImageVolumes = l.emptyImageVolumes || v.Image != nil && v.Image.Reference == ""
		if v.Projected == nil {
			continue
		}
		for _, s := range v.Projected.Sources {
			l.tokenPaths = l.tokenPaths || s.ServiceAccountToken != nil && len(localPath(s.ServiceAccountToken.Path, anywhere)) > 0
		}
	}
	if old.SecurityContext != nil {
		for _, s := range old.SecurityContext.Sysctls {
			l.hostSysctls = l.hostSysctls || len(hostSysctl(s.Name, old, anywhere)) > 0
		}
	}
	for _, t := range old.Tolerations {
		l.numericTolerations = l.numericTolerations || t.Operator == v1.TolerationOpLt || t.Operator == v1.TolerationOpGt
	}
	return l
}

func badSelectorValue(s *metav1.LabelSelector) bool {
	return s != nil && metav1validation.LabelSelectorHasInvalidLabelValue(s)
}

func badNodeSelectorValue(s *v1.NodeSelector) bool {
	for _, t := range s.NodeSelectorTerms {
		for _, r := range t.MatchExpressions {
			for _, value := range r.Values {
				if len(validation.IsValidLabelValue(value)) > 0 {
					return true
				}
			}
		}
	}
	return false
}
