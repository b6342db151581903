// Package announce has this node answer for addresses of load balancers: it adds those that the
// Services name this node for to the link that they are on, where the kernel answers ARP and
// neighbour discovery for them, and tells the neighbours when one has come here.
//
// Owns: these addresses, and a table that keeps the host's own ports closed at them and remembers
// them for the next process. Must not: choose the node (whoever writes the annotation does), lead
// packets to pods (proxy does), touch an address that somebody else has added.
package announce

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/host/netlink"
)

const (
	// tells is how often the neighbours are told of an address that has come here, one pause after the
	// other: a frame may be lost.
	tells = 4
	pause = time.Second
	// lookEvery bounds how long an address that somebody took is missing if nobody told.
	lookEvery = 30 * time.Second
)

// Config of an Announcer.
type Config struct {
	NodeName string
	// Annotation of a Service names the node that answers for its addresses.
	Annotation string
	// Services are watched; the caller runs the informer.
	Services cache.SharedIndexInformer
	// Table is the name of the nftables tables.
	Table string
	// PodLink is where pods are behind, which never carries such addresses.
	PodLink string
	// NodeIPs say which link an address goes to that is on no link's prefix.
	NodeIPs []netip.Addr

	// Host is the kernel's side; nil: this machine.
	Host   Host
	Clock  clock.Clock // nil: the real one
	Logger *slog.Logger
}

// Host is what an Announcer changes.
type Host interface {
	Links() ([]netlink.Link, error)
	// Add and Remove an address; Announce tells the neighbours.
	Add(link string, a netip.Addr) error
	Remove(a netip.Addr) error
	Announce(link string, a netip.Addr) error
	// Kept reads what Keep wrote, also if another process did.
	Kept() ([]netip.Addr, error)
	Keep([]netip.Addr) error
	// Watch calls changed when links or addresses may have changed, until ctx ends.
	Watch(ctx context.Context, changed func()) error
}

// Announcer keeps the addresses.
type Announcer struct {
	cfg  Config
	kick chan struct{}

	// own are the addresses that are here, with how often the neighbours are still to be told.
	own    map[netip.Addr]int
	told   time.Time // last
	warned map[netip.Addr]string
}

// New registers for changes of Services and starts nothing.
func New(cfg Config) (*Announcer, error) {
	if cfg.NodeName == "" || cfg.Annotation == "" || cfg.Services == nil || cfg.Table == "" || cfg.Logger == nil {
		return nil, errors.New("announce: NodeName, Annotation, Services, Table and Logger are required")
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Host == nil {
		cfg.Host = newMachine(cfg.Table)
	}
	a := &Announcer{cfg: cfg, kick: make(chan struct{}, 1), own: map[netip.Addr]int{}, warned: map[netip.Addr]string{}}
	matters := func(o any) bool {
		s, ok := o.(*corev1.Service)
		return ok && s.Spec.Type == corev1.ServiceTypeLoadBalancer
	}
	_, err := cfg.Services.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			if matters(o) {
				a.wake()
			}
		},
		UpdateFunc: func(old, o any) {
			if matters(old) || matters(o) {
				a.wake()
			}
		},
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			if matters(o) {
				a.wake()
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch services: %w", err)
	}
	return a, nil
}

func (a *Announcer) wake() {
	select {
	case a.kick <- struct{}{}:
	default:
	}
}

// Run keeps the addresses until ctx ends. They stay then, for the next process.
func (a *Announcer) Run(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), a.cfg.Services.HasSynced) {
		return nil
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	kept, err := a.cfg.Host.Kept()
	if err != nil {
		return fmt.Errorf("read which addresses are announced: %w", err)
	}
	for _, k := range kept {
		a.own[k] = 0
	}
	watching := false
	for {
		settled, err := a.reconcile()
		if err != nil {
			a.cfg.Logger.Error("announce addresses of load balancers", "err", err)
		}
		// A node without any watches nothing.
		if len(a.own) > 0 && !watching {
			watching = true
			wg.Go(func() {
				if err := a.cfg.Host.Watch(ctx, a.wake); err != nil && ctx.Err() == nil {
					a.cfg.Logger.Warn("watch links; addresses are looked after less often", "err", err)
				}
			})
		}
		wait := lookEvery
		if !settled || err != nil {
			wait = pause
		}
		var again <-chan time.Time
		stop := func() bool { return true }
		if len(a.own) > 0 || err != nil {
			t := a.cfg.Clock.NewTimer(wait)
			again, stop = t.C(), t.Stop
		}
		select {
		case <-ctx.Done():
			stop()
			return nil
		case <-a.kick:
			stop()
		case <-again:
		}
	}
}

// reconcile makes the addresses on the links be those that the Services say. It is settled when the
// neighbours have been told often enough.
func (a *Announcer) reconcile() (settled bool, err error) {
	want := wanted(a.services(), a.cfg.NodeName, a.cfg.Annotation, a.own)
	if len(want) == 0 && len(a.own) == 0 {
		return true, nil
	}
	links, err := a.cfg.Host.Links()
	if err != nil {
		return false, err
	}
	var errs []error
	for _, gone := range slices.SortedFunc(maps.Keys(a.own), netip.Addr.Compare) {
		if want[gone] {
			continue
		}
		if err := a.cfg.Host.Remove(gone); err != nil {
			errs = append(errs, err)
			continue
		}
		delete(a.own, gone)
		delete(a.warned, gone)
		a.cfg.Logger.Info("address is announced no more", "address", gone)
	}
	places := map[netip.Addr]string{}
	for _, addr := range slices.SortedFunc(maps.Keys(want), netip.Addr.Compare) {
		link, err := a.place(links, addr)
		if err != nil {
			a.warn(addr, err)
			continue
		}
		places[addr] = link
		if _, ours := a.own[addr]; !ours {
			a.own[addr] = tells
		} else if !has(links, addr) {
			a.own[addr] = tells // somebody took it
		}
	}
	// Written down before they are there: what is there can always be taken away.
	if err := a.cfg.Host.Keep(slices.SortedFunc(maps.Keys(a.own), netip.Addr.Compare)); err != nil {
		return false, errors.Join(append(errs, err)...)
	}
	settled = true
	now := a.cfg.Clock.Now()
	again := now.Sub(a.told) >= pause // changes of links come in between
	for addr, link := range places {
		if !has(links, addr) {
			if err := a.cfg.Host.Add(link, addr); err != nil {
				errs = append(errs, err)
				continue
			}
			a.cfg.Logger.Info("address is announced", "address", addr, "link", link)
		}
		settled = settled && a.own[addr] == 0
		if a.own[addr] == tells || a.own[addr] > 0 && again {
			if err := a.cfg.Host.Announce(link, addr); err != nil {
				errs = append(errs, err)
				continue
			}
			a.own[addr]--
			a.told = now
		}
	}
	return settled, errors.Join(errs...)
}

func (a *Announcer) services() (out []*corev1.Service) {
	for _, o := range a.cfg.Services.GetStore().List() {
		if s, ok := o.(*corev1.Service); ok && s.Spec.Type == corev1.ServiceTypeLoadBalancer {
			out = append(out, s)
		}
	}
	return out
}

// warn tells once what keeps an address away.
func (a *Announcer) warn(addr netip.Addr, err error) {
	if a.warned[addr] != err.Error() {
		a.warned[addr] = err.Error()
		a.cfg.Logger.Error("address cannot be announced", "address", addr, "err", err)
	}
}

// place is the link that an address goes to.
func (a *Announcer) place(links []netlink.Link, addr netip.Addr) (string, error) {
	if _, ours := a.own[addr]; !ours && has(links, addr) {
		return "", errors.New("the machine has it already; take it out of the pool, or off the machine")
	}
	return place(links, addr, a.cfg.NodeIPs, a.cfg.PodLink)
}
