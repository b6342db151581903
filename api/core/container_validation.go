package core

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/api/podfit"
)

func (c *podChecker) checkContainers(p *field.Path) field.ErrorList {
	if len(c.spec.Containers) == 0 {
		return field.ErrorList{field.Required(p, "")}
	}
	var errs field.ErrorList
	names, hostPorts := sets.New[string](), sets.New[string]()
	for i := range c.spec.Containers {
		ctr, p := &c.spec.Containers[i], p.Index(i)
		errs = append(errs, c.checkContainer(ctr, p)...)
		if names.Has(ctr.Name) {
			errs = append(errs, field.Duplicate(p.Child("name"), ctr.Name))
		}
		names.Insert(ctr.Name)
		errs = append(errs, c.checkLongRunning(ctr, p)...)
		errs = append(errs, validateRestartRules(ctr, p)...)
	}
	for i := range c.spec.Containers {
		errs = append(errs, uniqueHostPorts(&c.spec.Containers[i], hostPorts, p.Index(i))...)
	}
	return errs
}

func (c *podChecker) checkInitContainers(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i := range c.spec.Containers {
		names.Insert(c.spec.Containers[i].Name)
	}
	for i := range c.spec.InitContainers {
		ctr, p := &c.spec.InitContainers[i], p.Index(i)
		errs = append(errs, c.checkContainer(ctr, p)...)
		if ctr.RestartPolicy != nil {
			errs = append(errs, validateRestartRules(ctr, p)...)
		} else if len(ctr.RestartPolicyRules) > 0 {
			errs = append(errs, field.Required(p.Child("restartPolicy"), "must specify restartPolicy when restart rules are used"))
		}
		if ctr.Name != "" && names.Has(ctr.Name) {
			errs = append(errs, field.Duplicate(p.Child("name"), ctr.Name))
		}
		names.Insert(ctr.Name)
		// They run one after the other, so that each may use a port again.
		errs = append(errs, uniqueHostPorts(ctr, sets.New[string](), p)...)
		if podfit.Restartable(ctr) {
			errs = append(errs, c.checkLongRunning(ctr, p)...)
			continue
		}
		const why = "may not be set for init containers without restartPolicy=Always"
		for _, f := range []struct {
			name string
			set  bool
		}{
			{"lifecycle", ctr.Lifecycle != nil}, {"livenessProbe", ctr.LivenessProbe != nil},
			{"readinessProbe", ctr.ReadinessProbe != nil}, {"startupProbe", ctr.StartupProbe != nil},
		} {
			if f.set {
				errs = append(errs, field.Forbidden(p.Child(f.name), why))
			}
		}
		for j, r := range ctr.ResizePolicy {
			if r.RestartPolicy == v1.RestartContainer && !c.lax.initRestartOnResize {
				errs = append(errs, field.Invalid(p.Child("resizePolicy").Index(j).Child("restartPolicy"), r.RestartPolicy,
					"must not be set to 'RestartContainer' for non-sidecar initContainers"))
			}
		}
	}
	return errs
}

func (c *podChecker) checkEphemeralContainers(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	targets := sets.New[string]()
	for i := range c.spec.Containers {
		targets.Insert(c.spec.Containers[i].Name)
	}
	for i := range c.spec.InitContainers {
		targets.Insert(c.spec.InitContainers[i].Name)
	}
	names := targets.Clone()
	const why = "cannot be set for an Ephemeral Container"
	for i := range c.spec.EphemeralContainers {
		e, p := &c.spec.EphemeralContainers[i], p.Index(i)
		ctr := (*v1.Container)(&e.EphemeralContainerCommon)
		errs = append(errs, c.checkContainer(ctr, p)...)
		errs = append(errs, imageUnpadded(ctr.Image, p)...)
		if names.Has(e.Name) {
			errs = append(errs, field.Duplicate(p.Child("name"), e.Name))
		}
		names.Insert(e.Name)
		if e.TargetContainerName != "" && !targets.Has(e.TargetContainerName) {
			errs = append(errs, field.NotFound(p.Child("targetContainerName"), e.TargetContainerName))
		}
		// Nothing that the pod's work could come to depend on.
		for _, f := range []struct {
			name string
			set  bool
		}{
			{"ports", ctr.Ports != nil}, {"resources", ctr.Resources.Limits != nil || ctr.Resources.Requests != nil || ctr.Resources.Claims != nil},
			{"resizePolicy", ctr.ResizePolicy != nil}, {"restartPolicy", ctr.RestartPolicy != nil}, {"restartPolicyRules", ctr.RestartPolicyRules != nil},
			{"livenessProbe", ctr.LivenessProbe != nil}, {"readinessProbe", ctr.ReadinessProbe != nil},
			{"startupProbe", ctr.StartupProbe != nil}, {"lifecycle", ctr.Lifecycle != nil},
		} {
			if f.set {
				errs = append(errs, field.Forbidden(p.Child(f.name), why))
			}
		}
		for j, m := range e.VolumeMounts {
			if m.SubPath != "" {
				errs = append(errs, field.Forbidden(p.Child("volumeMounts").Index(j).Child("subPath"), why))
			}
			if m.SubPathExpr != "" {
				errs = append(errs, field.Forbidden(p.Child("volumeMounts").Index(j).Child("subPathExpr"), why))
			}
		}
	}
	return errs
}

// checkContainer holds for containers of every kind.
func (c *podChecker) checkContainer(ctr *v1.Container, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	if ctr.Name == "" {
		errs = append(errs, field.Required(p.Child("name"), ""))
	} else {
		errs = append(errs, dnsLabel(ctr.Name, p.Child("name"))...)
	}
	if ctr.Image == "" {
		errs = append(errs, field.Required(p.Child("image"), ""))
	}
	errs = append(errs, oneOfAsListed(ctr.TerminationMessagePolicy, p.Child("terminationMessagePolicy"),
		v1.TerminationMessageReadFile, v1.TerminationMessageFallbackToLogsOnError)...)
	errs = append(errs, validateContainerPorts(ctr.Ports, p.Child("ports"))...)
	errs = append(errs, validateEnv(ctr.Env, p.Child("env"))...)
	errs = append(errs, validateEnvFrom(ctr.EnvFrom, p.Child("envFrom"))...)
	errs = append(errs, c.checkMounts(ctr, p.Child("volumeMounts"))...)
	errs = append(errs, c.checkDevices(ctr, p.Child("volumeDevices"))...)
	errs = append(errs, oneOf(ctr.ImagePullPolicy, p.Child("imagePullPolicy"), v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)...)
	errs = append(errs, c.checkResources(&ctr.Resources, containerResourceName, p.Child("resources"))...)
	errs = append(errs, c.checkResizePolicy(ctr.ResizePolicy, p.Child("resizePolicy"))...)
	return append(errs, c.checkSecurityContext(ctr.SecurityContext, p.Child("securityContext"))...)
}

// checkLongRunning checks what only containers that keep running may have.
func (c *podChecker) checkLongRunning(ctr *v1.Container, p *field.Path) field.ErrorList {
	grace := c.spec.TerminationGracePeriodSeconds
	var errs field.ErrorList
	if l := ctr.Lifecycle; l != nil {
		p := p.Child("lifecycle")
		if l.PostStart != nil {
			errs = append(errs, validateHook(l.PostStart, grace, p.Child("postStart"))...)
		}
		if l.PreStop != nil {
			errs = append(errs, validateHook(l.PreStop, grace, p.Child("preStop"))...)
		}
	}
	once := func(probe *v1.Probe, p *field.Path) {
		if probe == nil {
			return
		}
		errs = append(errs, validateProbe(probe, p)...)
		if probe.SuccessThreshold != 1 {
			errs = append(errs, field.Invalid(p.Child("successThreshold"), probe.SuccessThreshold, "must be 1"))
		}
	}
	once(ctr.LivenessProbe, p.Child("livenessProbe"))
	if r := ctr.ReadinessProbe; r != nil {
		p := p.Child("readinessProbe")
		errs = append(errs, validateProbe(r, p)...)
		if g := r.TerminationGracePeriodSeconds; g != nil {
			errs = append(errs, field.Invalid(p.Child("terminationGracePeriodSeconds"), *g, "must not be set for readinessProbes"))
		}
	}
	once(ctr.StartupProbe, p.Child("startupProbe"))
	return errs
}

func validateContainerPorts(ports []v1.ContainerPort, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i, port := range ports {
		p := p.Index(i)
		if port.Name != "" {
			if bad := invalid(p.Child("name"), port.Name, validation.IsValidPortName(port.Name)); len(bad) > 0 {
				errs = append(errs, bad...)
			} else if names.Has(port.Name) {
				errs = append(errs, field.Duplicate(p.Child("name"), port.Name))
			} else {
				names.Insert(port.Name)
			}
		}
		if port.ContainerPort == 0 {
			errs = append(errs, field.Required(p.Child("containerPort"), ""))
		} else {
			errs = append(errs, portNumber(port.ContainerPort, p.Child("containerPort"))...)
		}
		if port.HostPort != 0 {
			errs = append(errs, portNumber(port.HostPort, p.Child("hostPort"))...)
		}
		errs = append(errs, oneOf(port.Protocol, p.Child("protocol"), protocols()...)...)
	}
	return errs
}

func uniqueHostPorts(ctr *v1.Container, taken sets.Set[string], p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i, port := range ctr.Ports {
		if port.HostPort == 0 {
			continue
		}
		key := fmt.Sprintf("%s/%s/%d", port.Protocol, port.HostIP, port.HostPort)
		if taken.Has(key) {
			errs = append(errs, field.Duplicate(p.Child("ports").Index(i).Child("hostPort"), key))
		}
		taken.Insert(key)
	}
	return errs
}

// validateRestartRules checks the container's own restart policy (KEP-5307).
func validateRestartRules(ctr *v1.Container, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	rules := p.Child("restartPolicyRules")
	if ctr.RestartPolicy == nil {
		if len(ctr.RestartPolicyRules) == 0 {
			return nil
		}
		errs = append(errs, field.Required(p.Child("restartPolicy"), "must specify restartPolicy when restart rules are used"))
	} else {
		errs = append(errs, supported(*ctr.RestartPolicy, p.Child("restartPolicy"),
			v1.ContainerRestartPolicyAlways, v1.ContainerRestartPolicyNever, v1.ContainerRestartPolicyOnFailure)...)
	}
	if n := len(ctr.RestartPolicyRules); n > 20 {
		errs = append(errs, field.TooMany(rules, n, 20))
	}
	for i, r := range ctr.RestartPolicyRules {
		p := rules.Index(i)
		errs = append(errs, supported(r.Action, p.Child("action"),
			v1.ContainerRestartRuleActionRestart, v1.ContainerRestartRuleActionRestartAllContainers)...)
		if r.ExitCodes == nil {
			errs = append(errs, field.Required(p.Child("exitCodes"), "must be specified"))
			continue
		}
		errs = append(errs, supported(r.ExitCodes.Operator, p.Child("exitCodes", "operator"),
			v1.ContainerRestartRuleOnExitCodesOpIn, v1.ContainerRestartRuleOnExitCodesOpNotIn)...)
		if n := len(r.ExitCodes.Values); n > 255 {
			errs = append(errs, field.TooMany(p.Child("exitCodes", "values"), n, 255))
		}
	}
	return errs
}

func (c *podChecker) checkResizePolicy(policies []v1.ContainerResizePolicy, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[v1.ResourceName]()
	for i, r := range policies {
		if seen.Has(r.ResourceName) {
			errs = append(errs, field.Duplicate(p.Index(i), r.ResourceName))
		}
		seen.Insert(r.ResourceName)
		errs = append(errs, oneOf(r.ResourceName, p, v1.ResourceCPU, v1.ResourceMemory)...)
		errs = append(errs, oneOf(r.RestartPolicy, p, v1.NotRequired, v1.RestartContainer)...)
		if c.spec.RestartPolicy == v1.RestartPolicyNever && r.RestartPolicy != v1.NotRequired {
			errs = append(errs, field.Invalid(p, r.RestartPolicy, "must be 'NotRequired' when pod `restartPolicy` is 'Never'"))
		}
	}
	return errs
}

func protocols() []v1.Protocol { return []v1.Protocol{v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP} }

func portNumberOrName(port intstr.IntOrString, p *field.Path) field.ErrorList {
	if port.Type == intstr.String {
		return invalid(p, port.StrVal, validation.IsValidPortName(port.StrVal))
	}
	return invalid(p, port.IntValue(), validation.IsValidPortNum(port.IntValue()))
}
