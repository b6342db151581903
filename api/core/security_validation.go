package core

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

func (c *podChecker) checkPodSecurityContext(p *field.Path) field.ErrorList {
	s := c.spec.SecurityContext
	if s == nil {
		return nil
	}
	errs := groupID(s.FSGroup, p.Child("fsGroup"))
	errs = append(errs, userID(s.RunAsUser, p.Child("runAsUser"))...)
	errs = append(errs, groupID(s.RunAsGroup, p.Child("runAsGroup"))...)
	for i := range s.SupplementalGroups {
		errs = append(errs, groupID(&s.SupplementalGroups[i], p.Child("supplementalGroups").Index(i))...)
	}
	errs = append(errs, c.checkSysctls(s.Sysctls, p.Child("sysctls"))...)
	if s.FSGroupChangePolicy != nil {
		errs = append(errs, supported(*s.FSGroupChangePolicy, p.Child("fsGroupChangePolicy"), v1.FSGroupChangeOnRootMismatch, v1.FSGroupChangeAlways)...)
	}
	errs = append(errs, validateSeccompProfile(s.SeccompProfile, p.Child("seccompProfile"))...)
	errs = append(errs, validateWindowsOptions(s.WindowsOptions, p.Child("windowsOptions"))...)
	errs = append(errs, validateAppArmorProfile(s.AppArmorProfile, p.Child("appArmorProfile"))...)
	if s.SupplementalGroupsPolicy != nil {
		errs = append(errs, supported(*s.SupplementalGroupsPolicy, p.Child("supplementalGroupsPolicy"), v1.SupplementalGroupsPolicyMerge, v1.SupplementalGroupsPolicyStrict)...)
	}
	if s.SELinuxChangePolicy != nil {
		errs = append(errs, supported(*s.SELinuxChangePolicy, p.Child("seLinuxChangePolicy"), v1.SELinuxChangePolicyRecursive, v1.SELinuxChangePolicyMountOption)...)
	}
	return errs
}

func (c *podChecker) checkSecurityContext(s *v1.SecurityContext, p *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	errs := userID(s.RunAsUser, p.Child("runAsUser"))
	errs = append(errs, groupID(s.RunAsGroup, p.Child("runAsGroup"))...)
	if m := s.ProcMount; m != nil {
		p := p.Child("procMount")
		errs = append(errs, supported(*m, p, v1.DefaultProcMount, v1.UnmaskedProcMount)...)
		if c.hostUsers && *m == v1.UnmaskedProcMount {
			errs = append(errs, field.Invalid(p, *m, "`hostUsers` must be false to use `Unmasked`"))
		}
	}
	errs = append(errs, validateSeccompProfile(s.SeccompProfile, p.Child("seccompProfile"))...)
	if s.AllowPrivilegeEscalation != nil && !*s.AllowPrivilegeEscalation {
		if s.Privileged != nil && *s.Privileged {
			errs = append(errs, field.Invalid(p, s, "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"))
		}
		if sysAdminWithoutEscalation(s) && !c.lax.sysAdmin {
			errs = append(errs, field.Invalid(p, s, "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN"))
		}
	}
	errs = append(errs, validateWindowsOptions(s.WindowsOptions, p.Child("windowsOptions"))...)
	return append(errs, validateAppArmorProfile(s.AppArmorProfile, p.Child("appArmorProfile"))...)
}

func sysAdminWithoutEscalation(s *v1.SecurityContext) bool {
	return s != nil && (s.AllowPrivilegeEscalation == nil || !*s.AllowPrivilegeEscalation) &&
		s.Capabilities != nil && slices.Contains(s.Capabilities.Add, "CAP_SYS_ADMIN")
}

func userID(id *int64, p *field.Path) field.ErrorList {
	if id == nil {
		return nil
	}
	return invalid(p, *id, validation.IsValidUserID(*id))
}

func groupID(id *int64, p *field.Path) field.ErrorList {
	if id == nil {
		return nil
	}
	return invalid(p, *id, validation.IsValidGroupID(*id))
}

const sysctlPattern = `^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$`

var sysctlName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(sysctlPattern) })

func (c *podChecker) checkSysctls(sysctls []v1.Sysctl, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := sets.New[string]()
	for i, s := range sysctls {
		p := p.Index(i).Child("name")
		switch {
		case s.Name == "":
			errs = append(errs, field.Required(p, ""))
		case len(s.Name) > 253 || !sysctlName().MatchString(s.Name):
			errs = append(errs, field.Invalid(p, s.Name, fmt.Sprintf("must have at most 253 characters and match regex %s", sysctlPattern)))
		case seen.Has(s.Name):
			errs = append(errs, field.Duplicate(p, s.Name))
		}
		if !c.lax.hostSysctls {
			errs = append(errs, hostSysctl(s.Name, c.spec, p)...)
		}
		seen.Insert(s.Name)
	}
	return errs
}

// hostSysctl refuses parameters of namespaces that the pod shares with the host.
func hostSysctl(name string, spec *v1.PodSpec, p *field.Path) field.ErrorList {
	// Either separator may stand between the parts, whichever comes first.
	dotted := name
	if i := strings.IndexAny(name, "./"); i >= 0 && name[i] == '/' {
		dotted = strings.NewReplacer("/", ".", ".", "/").Replace(name)
	}
	net := strings.HasPrefix(dotted, "net.")
	ipc := dotted == "kernel.sem"
	for _, prefix := range []string{"kernel.shm", "kernel.msg", "fs.mqueue."} {
		ipc = ipc || strings.HasPrefix(dotted, prefix)
	}
	switch {
	case net && spec.HostNetwork:
		return field.ErrorList{field.Invalid(p, name, "may not be specified when 'hostNetwork' is true")}
	case ipc && spec.HostIPC:
		return field.ErrorList{field.Invalid(p, name, "may not be specified when 'hostIPC' is true")}
	}
	return nil
}

func validateSeccompProfile(s *v1.SeccompProfile, p *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	switch s.Type {
	case v1.SeccompProfileTypeLocalhost, v1.SeccompProfileTypeRuntimeDefault, v1.SeccompProfileTypeUnconfined:
	case "":
		errs = append(errs, field.Required(p.Child("type"), "type is required when seccompProfile is set"))
	default:
		errs = append(errs, field.NotSupported(p.Child("type"), s.Type, []v1.SeccompProfileType{
			v1.SeccompProfileTypeLocalhost, v1.SeccompProfileTypeRuntimeDefault, v1.SeccompProfileTypeUnconfined}))
	}
	local := p.Child("localhostProfile")
	switch {
	case s.Type != v1.SeccompProfileTypeLocalhost:
		if s.LocalhostProfile != nil {
			errs = append(errs, field.Invalid(local, s, "can only be set when seccomp type is Localhost"))
		}
	case s.LocalhostProfile == nil:
		errs = append(errs, field.Required(local, "must be set when seccomp type is Localhost"))
	default:
		errs = append(errs, descendingPath(*s.LocalhostProfile, local)...)
	}
	return errs
}

func validateAppArmorProfile(a *v1.AppArmorProfile, p *field.Path) field.ErrorList {
	if a == nil {
		return nil
	}
	var errs field.ErrorList
	local := p.Child("localhostProfile")
	const missing, longest = "must be set when AppArmor type is Localhost", 4095
	switch a.Type {
	case v1.AppArmorProfileTypeLocalhost:
		if a.LocalhostProfile == nil {
			return field.ErrorList{field.Required(local, missing)}
		}
		name := *a.LocalhostProfile
		if strings.TrimSpace(name) != name {
			errs = append(errs, field.Invalid(local, name, "must not be padded with whitespace"))
		} else if name == "" {
			errs = append(errs, field.Required(local, missing))
		}
		if len(name) > longest {
			errs = append(errs, field.TooLong(local, "", longest))
		}
	case v1.AppArmorProfileTypeRuntimeDefault, v1.AppArmorProfileTypeUnconfined:
		if a.LocalhostProfile != nil {
			errs = append(errs, field.Invalid(local, *a.LocalhostProfile, "can only be set when AppArmor type is Localhost"))
		}
	case "":
		errs = append(errs, field.Required(p.Child("type"), "type is required when appArmorProfile is set"))
	default:
		errs = append(errs, field.NotSupported(p.Child("type"), a.Type, []v1.AppArmorProfileType{
			v1.AppArmorProfileTypeLocalhost, v1.AppArmorProfileTypeRuntimeDefault, v1.AppArmorProfileTypeUnconfined}))
	}
	return errs
}

// The annotations below were the fields' forms before they were fields.

const (
	seccompPodAnnotation             = v1.SeccompPodAnnotationKey
	seccompContainerAnnotationPrefix = v1.SeccompContainerAnnotationKeyPrefix
	appArmorAnnotationPrefix         = v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix
)

func validateSeccompAnnotations(a map[string]string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range sortedKeys(a) {
		if key != seccompPodAnnotation && !strings.HasPrefix(key, seccompContainerAnnotationPrefix) {
			continue
		}
		switch value := a[key]; {
		case value == v1.SeccompProfileRuntimeDefault, value == v1.DeprecatedSeccompProfileDockerDefault, value == v1.SeccompProfileNameUnconfined:
		case strings.HasPrefix(value, v1.SeccompLocalhostProfileNamePrefix):
			errs = append(errs, descendingPath(strings.TrimPrefix(value, v1.SeccompLocalhostProfileNamePrefix), p.Child(key))...)
		default:
			errs = append(errs, field.Invalid(p.Child(key), value, "must be a valid seccomp profile"))
		}
	}
	return errs
}

func validateAppArmorAnnotations(a map[string]string, spec *v1.PodSpec, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range sortedKeys(a) {
		name, is := strings.CutPrefix(key, appArmorAnnotationPrefix)
		if !is {
			continue
		}
		found := false
		eachContainer(spec, func(c *v1.Container) { found = found || c.Name == name })
		if !found {
			errs = append(errs, field.Invalid(p.Key(key), name, "container not found"))
		}
		switch value := a[key]; {
		case value == "", value == v1.DeprecatedAppArmorBetaProfileRuntimeDefault, value == v1.DeprecatedAppArmorBetaProfileNameUnconfined,
			strings.HasPrefix(value, v1.DeprecatedAppArmorBetaProfileNamePrefix):
		default:
			errs = append(errs, field.Invalid(p.Key(key), value, fmt.Sprintf("invalid AppArmor profile name: %q", value)))
		}
	}
	return errs
}

// validateProfileAnnotations: where both an annotation and its field are given,
// they must say the same.
func validateProfileAnnotations(a map[string]string, spec *v1.PodSpec, p *field.Path) field.ErrorList {
	if len(a) == 0 {
		return nil
	}
	var errs field.ErrorList
	seccomp := func(key string, profile *v1.SeccompProfile, p *field.Path) {
		value, has := a[key]
		if !has || profile == nil {
			return
		}
		kind := ""
		switch {
		case value == v1.SeccompProfileNameUnconfined:
			kind = string(v1.SeccompProfileTypeUnconfined)
		case value == v1.SeccompProfileRuntimeDefault, value == v1.DeprecatedSeccompProfileDockerDefault:
			kind = string(v1.SeccompProfileTypeRuntimeDefault)
		case strings.HasPrefix(value, v1.SeccompLocalhostProfileNamePrefix):
			kind = string(v1.SeccompProfileTypeLocalhost)
		}
		errs = append(errs, sameProfile("seccomp", kind, strings.TrimPrefix(value, v1.SeccompLocalhostProfileNamePrefix),
			string(profile.Type), profile.LocalhostProfile, p.Child("securityContext", "seccompProfile"))...)
	}
	var podProfile *v1.AppArmorProfile
	if spec.SecurityContext != nil {
		seccomp(seccompPodAnnotation, spec.SecurityContext.SeccompProfile, p)
		podProfile = spec.SecurityContext.AppArmorProfile
	}
	eachContainerPath(spec, p, func(c *v1.Container, p *field.Path) {
		profile := podProfile
		if c.SecurityContext != nil {
			seccomp(seccompContainerAnnotationPrefix+c.Name, c.SecurityContext.SeccompProfile, p)
			if c.SecurityContext.AppArmorProfile != nil {
				profile = c.SecurityContext.AppArmorProfile
			}
		}
		value, has := a[appArmorAnnotationPrefix+c.Name]
		if !has || profile == nil || spec.OS != nil && spec.OS.Name == v1.Windows {
			return
		}
		kind := ""
		switch {
		case value == v1.DeprecatedAppArmorBetaProfileNameUnconfined:
			kind = string(v1.AppArmorProfileTypeUnconfined)
		case value == v1.DeprecatedAppArmorBetaProfileRuntimeDefault:
			kind = string(v1.AppArmorProfileTypeRuntimeDefault)
		case strings.HasPrefix(value, v1.DeprecatedAppArmorBetaProfileNamePrefix):
			kind = string(v1.AppArmorProfileTypeLocalhost)
		}
		errs = append(errs, sameProfile("apparmor", kind, strings.TrimPrefix(value, v1.DeprecatedAppArmorBetaProfileNamePrefix),
			string(profile.Type), profile.LocalhostProfile, p.Child("securityContext", "appArmorProfile"))...)
	})
	return errs
}

func sameProfile(what, kind, name, fieldKind string, fieldName *string, p *field.Path) field.ErrorList {
	if kind != fieldKind {
		return field.ErrorList{field.Forbidden(p.Child("type"), what+" type in annotation and field must match")}
	}
	if kind == "Localhost" && (fieldName == nil || *fieldName != name) {
		return field.ErrorList{field.Forbidden(p.Child("localhostProfile"), what+" profile in annotation and field must match")}
	}
	return nil
}
