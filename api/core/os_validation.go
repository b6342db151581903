package core

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// checkOS refuses what the pod's operating system does not have.
func (c *podChecker) checkOS(p *field.Path) field.ErrorList {
	if c.spec.OS == nil {
		return nil
	}
	switch c.spec.OS.Name {
	case "":
		return field.ErrorList{field.Required(p.Child("os", "name"), "")}
	case v1.Linux:
		return c.checkLinux(p)
	case v1.Windows:
		return c.checkWindows(p)
	}
	return supported(c.spec.OS.Name, p.Child("os"), v1.Linux, v1.Windows)
}

func (c *podChecker) checkLinux(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	const why = "windows options cannot be set for a linux pod"
	if s := c.spec.SecurityContext; s != nil && s.WindowsOptions != nil {
		errs = append(errs, field.Forbidden(p.Child("securityContext", "windowsOptions"), why))
	}
	eachContainerPath(c.spec, p, func(ctr *v1.Container, p *field.Path) {
		if s := ctr.SecurityContext; s != nil && s.WindowsOptions != nil {
			errs = append(errs, field.Forbidden(p.Child("securityContext", "windowsOptions"), why))
		}
	})
	return errs
}

func (c *podChecker) checkWindows(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	type setting struct {
		name string
		set  bool
	}
	refuse := func(p *field.Path, settings []setting) {
		for _, s := range settings {
			if s.set {
				errs = append(errs, field.Forbidden(p.Child(s.name), "cannot be set for a windows pod"))
			}
		}
	}
	if s := c.spec.SecurityContext; s != nil {
		refuse(p.Child("securityContext"), []setting{
			{"appArmorProfile", s.AppArmorProfile != nil}, {"seLinuxOptions", s.SELinuxOptions != nil},
			{"seccompProfile", s.SeccompProfile != nil}, {"fsGroup", s.FSGroup != nil},
			{"fsGroupChangePolicy", s.FSGroupChangePolicy != nil}, {"sysctls", len(s.Sysctls) > 0},
			{"runAsUser", s.RunAsUser != nil}, {"runAsGroup", s.RunAsGroup != nil},
			{"supplementalGroups", s.SupplementalGroups != nil}, {"supplementalGroupsPolicy", s.SupplementalGroupsPolicy != nil},
			{"seLinuxChangePolicy", s.SELinuxChangePolicy != nil},
		})
	}
	refuse(p, []setting{
		{"hostUsers", c.spec.HostUsers != nil}, {"hostPID", c.spec.HostPID}, {"hostIPC", c.spec.HostIPC},
		{"shareProcessNamespace", c.spec.ShareProcessNamespace != nil},
	})
	eachContainerPath(c.spec, p, func(ctr *v1.Container, p *field.Path) {
		s := ctr.SecurityContext
		if s == nil {
			return
		}
		refuse(p.Child("securityContext"), []setting{
			{"appArmorProfile", s.AppArmorProfile != nil}, {"seLinuxOptions", s.SELinuxOptions != nil},
			{"seccompProfile", s.SeccompProfile != nil}, {"capabilities", s.Capabilities != nil},
			{"readOnlyRootFilesystem", s.ReadOnlyRootFilesystem != nil}, {"privileged", s.Privileged != nil},
			{"allowPrivilegeEscalation", s.AllowPrivilegeEscalation != nil}, {"procMount", s.ProcMount != nil},
			{"runAsUser", s.RunAsUser != nil}, {"runAsGroup", s.RunAsGroup != nil},
		})
	})
	return errs
}

// checkHostProcess: Windows host process containers come all together or not at
// all, and on the host's network.
func (c *podChecker) checkHostProcess(p *field.Path) field.ErrorList {
	var errs field.ErrorList
	var pod *bool
	if s := c.spec.SecurityContext; s != nil && s.WindowsOptions != nil {
		pod = s.WindowsOptions.HostProcess
	}
	all, host := 0, 0
	eachContainerPath(c.spec, p, func(ctr *v1.Container, p *field.Path) {
		all++
		own := pod
		if s := ctr.SecurityContext; s != nil && s.WindowsOptions != nil && s.WindowsOptions.HostProcess != nil {
			own = s.WindowsOptions.HostProcess
			if pod != nil && *pod != *own {
				errs = append(errs, field.Invalid(p.Child("securityContext", "windowsOptions", "hostProcess"), *own,
					fmt.Sprintf("pod hostProcess value must be identical if both are specified, was %v", *pod)))
			}
		}
		if own != nil && *own {
			host++
		}
	})
	if host == 0 {
		return errs
	}
	if host != all {
		errs = append(errs, field.Invalid(p, "", "If pod contains any hostProcess containers then all containers must be HostProcess containers"))
	}
	if !c.spec.HostNetwork {
		errs = append(errs, field.Invalid(p.Child("hostNetwork"), false, "hostNetwork must be true if pod contains any hostProcess containers"))
	}
	return errs
}

// Rules for Windows account names, compiled when the first one comes.
var (
	windowsDomain = sync.OnceValue(func() *regexp.Regexp {
		const netBIOS, label = `[^\\/:\*\?"<>|\.][^\\/:\*\?"<>|]{0,14}`, `[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?`
		return regexp.MustCompile(`^(?:` + netBIOS + `|` + label + `(?:\.` + label + `)*)$`)
	})
	controlCharacters = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`[[:cntrl:]]`) })
)

func validateWindowsOptions(o *v1.WindowsSecurityContextOptions, p *field.Path) field.ErrorList {
	if o == nil {
		return nil
	}
	var errs field.ErrorList
	if n := o.GMSACredentialSpecName; n != nil {
		errs = append(errs, dnsSubdomain(*n, p.Child("gmsaCredentialSpecName"))...)
	}
	if s := o.GMSACredentialSpec; s != nil {
		p := p.Child("gmsaCredentialSpec")
		if *s == "" {
			errs = append(errs, field.Invalid(p, *s, "gmsaCredentialSpec cannot be an empty string"))
		} else if len(*s) > 64<<10 {
			errs = append(errs, field.Invalid(p, *s, "gmsaCredentialSpec size must be under 64 KiB"))
		}
	}
	if o.RunAsUserName != nil {
		errs = append(errs, validateWindowsUser(*o.RunAsUserName, p.Child("runAsUserName"))...)
	}
	return errs
}

func validateWindowsUser(name string, p *field.Path) field.ErrorList {
	var errs field.ErrorList
	refuse := func(why string) { errs = append(errs, field.Invalid(p, name, why)) }
	switch {
	case name == "":
		refuse("runAsUserName cannot be an empty string")
		return errs
	case controlCharacters().MatchString(name):
		refuse("runAsUserName cannot contain control characters")
		return errs
	case strings.Count(name, `\`) > 1:
		refuse("runAsUserName cannot contain more than one backslash")
		return errs
	}
	user := name
	if domain, rest, has := strings.Cut(name, `\`); has {
		user = rest
		if len(domain) >= 256 {
			refuse("runAsUserName's Domain length must be under 256 characters")
		}
		if !windowsDomain().MatchString(domain) {
			refuse("runAsUserName's Domain doesn't match the NetBios nor the DNS format")
		}
	}
	if user == "" {
		refuse("runAsUserName's User cannot be empty")
	} else if len(user) > 104 {
		refuse("runAsUserName's User length must not be longer than 104 characters")
	}
	if user != "" && strings.Trim(user, ". ") == "" {
		refuse("runAsUserName's User cannot contain only periods or spaces")
	}
	if strings.ContainsAny(user, `"/\:;|=,+*?<>@[]`) {
		refuse(`runAsUserName's User cannot contain the following characters: "/\:;|=,+*?<>@[]`)
	}
	return errs
}
