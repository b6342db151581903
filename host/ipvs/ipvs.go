// Package ipvs is the seam to the kernel's load balancer IPVS: its virtual services and where
// they lead.
//
// Owns: every netlink call of that family. Must not: know Services, or hold state.
package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/moby/ipvs"
	"golang.org/x/sys/unix"
)

// Service is where a virtual service is reached.
type Service struct {
	At       netip.AddrPort
	Protocol uint8
}

// String is how logs have it.
func (s Service) String() string { return fmt.Sprintf("%s protocol %d", s.At, s.Protocol) }

// Settings of a virtual service.
type Settings struct {
	Scheduler string
	// Persistent is how long a client stays with its destination; 0: not at all.
	Persistent time.Duration
	// SourceHash has the scheduler mh take ports into account.
	SourceHash bool
}

// Destination of a virtual service; of weight 0 new connections are not led to it.
type Destination struct {
	At     netip.AddrPort
	Weight int
	// Connections that it has.
	Connections int
}

// Flags of a virtual service (linux/ip_vs.h).
const (
	flagPersistent = 0x1
	flagSchedPort  = 0x10 // IP_VS_SVC_F_SCHED_MH_PORT
)

// Handle programs the network namespace that it was opened in.
type Handle struct{ h *ipvs.Handle }

// Open fails where the kernel has no IPVS.
func Open() (*Handle, error) {
	h, err := ipvs.New("")
	if err != nil {
		return nil, fmt.Errorf("open IPVS: %w", err)
	}
	if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
		h.Close()
		return nil, errors.New("the kernel has no IPVS; load its module (modprobe ip_vs), or use another mode of the proxy")
	}
	return &Handle{h}, nil
}

// Close ends it.
func (h *Handle) Close() { h.h.Close() }

func (s Service) kernel(set Settings) *ipvs.Service {
	out := &ipvs.Service{Address: s.At.Addr().AsSlice(), Port: s.At.Port(), Protocol: uint16(s.Protocol), SchedName: set.Scheduler,
		AddressFamily: unix.AF_INET, Netmask: 0xffffffff}
	if s.At.Addr().Is6() {
		out.AddressFamily, out.Netmask = unix.AF_INET6, 128
	}
	if set.Persistent > 0 {
		out.Flags, out.Timeout = flagPersistent, uint32(set.Persistent/time.Second)
	}
	if set.SourceHash {
		out.Flags |= flagSchedPort
	}
	return out
}

// Services are all virtual services of the namespace, but those of firewall marks.
func (h *Handle) Services() (map[Service]Settings, error) {
	all, err := h.h.GetServices()
	if err != nil {
		return nil, fmt.Errorf("list virtual services: %w", err)
	}
	out := make(map[Service]Settings, len(all))
	for _, s := range all {
		a, ok := netip.AddrFromSlice(s.Address)
		if s.FWMark != 0 || !ok {
			continue
		}
		set := Settings{Scheduler: s.SchedName, SourceHash: s.Flags&flagSchedPort != 0}
		if s.Flags&flagPersistent != 0 {
			set.Persistent = time.Duration(s.Timeout) * time.Second
		}
		out[Service{netip.AddrPortFrom(a.Unmap(), s.Port), uint8(s.Protocol)}] = set
	}
	return out, nil
}

// Add makes a virtual service, Update changes its settings, Delete takes it away with its destinations.
func (h *Handle) Add(s Service, set Settings) error {
	if err := h.h.NewService(s.kernel(set)); err != nil {
		return fmt.Errorf("add virtual service %s, scheduler %s: %w", s, set.Scheduler, err)
	}
	return nil
}

// Update changes the settings of a virtual service.
func (h *Handle) Update(s Service, set Settings) error {
	if err := h.h.UpdateService(s.kernel(set)); err != nil {
		return fmt.Errorf("change virtual service %s: %w", s, err)
	}
	return nil
}

// Delete takes a virtual service away with its destinations. That there is none is no error.
func (h *Handle) Delete(s Service) error {
	if err := h.h.DelService(s.kernel(Settings{})); err != nil && !errors.Is(err, unix.ESRCH) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("delete virtual service %s: %w", s, err)
	}
	return nil
}

// Destinations are where a virtual service leads.
func (h *Handle) Destinations(s Service) ([]Destination, error) {
	all, err := h.h.GetDestinations(s.kernel(Settings{}))
	if err != nil {
		return nil, fmt.Errorf("list destinations of %s: %w", s, err)
	}
	out := make([]Destination, 0, len(all))
	for _, d := range all {
		a, ok := netip.AddrFromSlice(d.Address)
		if !ok {
			continue
		}
		out = append(out, Destination{netip.AddrPortFrom(a.Unmap(), d.Port), d.Weight, d.ActiveConnections + d.InactiveConnections})
	}
	return out, nil
}

func destination(to netip.AddrPort, weight int) *ipvs.Destination {
	family := uint16(unix.AF_INET)
	if to.Addr().Is6() {
		family = unix.AF_INET6
	}
	return &ipvs.Destination{Address: to.Addr().AsSlice(), Port: to.Port(), Weight: weight, AddressFamily: family, ConnectionFlags: ipvs.ConnectionFlagMasq}
}

// Lead has a virtual service lead to a destination with a weight, whether it did or not.
func (h *Handle) Lead(s Service, to netip.AddrPort, weight int) error {
	err := h.h.NewDestination(s.kernel(Settings{}), destination(to, weight))
	if errors.Is(err, unix.EEXIST) {
		err = h.h.UpdateDestination(s.kernel(Settings{}), destination(to, weight))
	}
	if err != nil {
		return fmt.Errorf("lead %s to %s: %w", s, to, err)
	}
	return nil
}

// Leave has it no longer lead there; its connections end. That it did not is no error.
func (h *Handle) Leave(s Service, to netip.AddrPort) error {
	err := h.h.DelDestination(s.kernel(Settings{}), destination(to, 0))
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("no longer lead %s to %s: %w", s, to, err)
	}
	return nil
}

// SetTimeouts sets how long connections without traffic are kept; 0 leaves one as it is.
func (h *Handle) SetTimeouts(tcp, tcpFin, udp time.Duration) error {
	if err := h.h.SetConfig(&ipvs.Config{TimeoutTCP: tcp, TimeoutTCPFin: tcpFin, TimeoutUDP: udp}); err != nil {
		return fmt.Errorf("set timeouts of IPVS: %w", err)
	}
	return nil
}
