// Package apparmor chooses the AppArmor profile of a container and has the default one.
//
// Owns: the default profile's text and name. Must not: touch the kernel but through host/apparmor.
package apparmor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/host/apparmor"
)

// Values of the CRI's deprecated field, which clients of before structured profiles set.
const (
	runtimeDefault  = "runtime/default"
	unconfined      = "unconfined"
	localhostPrefix = "localhost/"
)

var errNoParser = errors.New("apparmor_parser, which loads the default profile, is not installed (Debian's package apparmor)")

// Profiles gives containers their profiles.
type Profiles struct {
	host    apparmor.Host
	enabled bool
	loading sync.Mutex
}

// New looks at the host once, as other runtimes and the kubelet do: who enables AppArmor starts anew.
func New(host apparmor.Host) *Profiles {
	return &Profiles{host: host, enabled: host.Check() == nil}
}

// Enabled says whether the host enforces profiles.
func (p *Profiles) Enabled() bool { return p.enabled }

// Missing is why containers that ask for nothing go without a profile on a host that has
// AppArmor; nil on all others.
func (p *Profiles) Missing() error {
	if p.enabled && !p.host.CanLoad() {
		return errNoParser
	}
	return nil
}

// Of returns the name of the profile for a container, loaded; "" for none. Where the host has no
// AppArmor only who asks for a profile is refused.
func (p *Profiles) Of(ctx context.Context, sec *runtimeapi.LinuxContainerSecurityContext) (string, error) {
	want, err := asked(sec)
	if err != nil {
		return "", err
	}
	if !p.enabled {
		if want != nil && want.GetProfileType() != runtimeapi.SecurityProfile_Unconfined {
			return "", apparmor.ErrDisabled
		}
		return "", nil
	}
	switch want.GetProfileType() { // RuntimeDefault where nothing is asked for
	case runtimeapi.SecurityProfile_Unconfined:
		return "", nil
	case runtimeapi.SecurityProfile_Localhost:
		return p.localhost(strings.TrimPrefix(want.GetLocalhostRef(), localhostPrefix))
	case runtimeapi.SecurityProfile_RuntimeDefault:
		if sec.GetPrivileged() {
			return "", nil
		}
		if !p.host.CanLoad() {
			if want == nil {
				return "", nil // told once, by Missing
			}
			return "", errNoParser
		}
		return DefaultName, p.ensureDefault(ctx)
	}
	return "", fmt.Errorf("profileType: unknown %v", want.GetProfileType())
}

// asked is the profile that the client names, by either field; nil: by none.
func asked(sec *runtimeapi.LinuxContainerSecurityContext) (*runtimeapi.SecurityProfile, error) {
	if a := sec.GetApparmor(); a != nil {
		if a.GetLocalhostRef() != "" && a.GetProfileType() != runtimeapi.SecurityProfile_Localhost {
			return nil, fmt.Errorf("localhostRef: %q is given but profileType is %v", a.GetLocalhostRef(), a.GetProfileType())
		}
		return a, nil
	}
	switch old := sec.GetApparmorProfile(); { //nolint:staticcheck // deprecated, but older clients set it alone
	case old == "":
		return nil, nil
	case old == runtimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case old == unconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case strings.HasPrefix(old, localhostPrefix):
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: old}, nil
	default:
		return nil, fmt.Errorf("apparmorProfile: %q is none of %s, %s and %sNAME", old, runtimeDefault, unconfined, localhostPrefix)
	}
}

func (p *Profiles) localhost(name string) (string, error) {
	if name == "" {
		return "", errors.New("localhostRef: must name a profile")
	}
	loaded, err := p.host.Loaded(name)
	if err == nil && !loaded {
		err = fmt.Errorf("AppArmor profile not found: %q is not loaded on this node", name)
	}
	return name, err
}

// ensureDefault loads the default profile unless it is there: whoever looks after the host may
// have put one of that name in its place.
func (p *Profiles) ensureDefault(ctx context.Context) error {
	p.loading.Lock()
	defer p.loading.Unlock()
	loaded, err := p.host.Loaded(DefaultName)
	if err != nil || loaded {
		return err
	}
	return p.host.Load(ctx, text(p.host.Has, p.host.Own()))
}
