package cluster

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/cluster/addons"
	"github.com/skiff-k8s/skiff/network/dns"
	"github.com/skiff-k8s/skiff/network/routes"
)

// servers are the DNS listeners that run, by address.
type servers struct {
	dns     *dns.Server
	log     *slog.Logger
	running map[netip.Addr]running
}

type running struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func newServers(d *dns.Server, log *slog.Logger) *servers {
	return &servers{dns: d, log: log, running: map[netip.Addr]running{}}
}

// follow serves at exactly these addresses.
func (s *servers) follow(ctx context.Context, addrs []netip.Addr) error {
	want := map[netip.Addr]bool{}
	var errs []error
	for _, a := range addrs {
		want[a] = true
		if _, ok := s.running[a]; ok {
			continue
		}
		l, err := s.dns.Listen(netip.AddrPortFrom(a, dnsPort))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		ctx, cancel := context.WithCancel(ctx)
		r := running{cancel, make(chan struct{})}
		s.running[a] = r
		go func() {
			defer close(r.done)
			if err := l.Serve(ctx); err != nil {
				s.log.Error("serve DNS", "err", err)
			}
		}()
	}
	for a, r := range s.running {
		if !want[a] {
			r.cancel()
			<-r.done
			delete(s.running, a)
		}
	}
	return errors.Join(errs...)
}

func (s *servers) stop() {
	for _, r := range s.running {
		r.cancel()
		<-r.done
	}
}

// addresses are those at which somebody listens, in order.
func (s *servers) addresses() []netip.Addr {
	return slices.SortedFunc(maps.Keys(s.running), netip.Addr.Compare)
}

// dnsNotice tells by the own Node where this machine serves DNS, once it does: what is said there
// becomes an endpoint of cluster DNS, and a lookup that goes where nobody listens fails.
type dnsNotice struct {
	publish func(ctx context.Context, text string) error
	// said is what the Node says, as far as read.
	said string
	read bool
}

// known takes what was read in the Node.
func (d *dnsNotice) known(said string) { d.said, d.read = said, true }

// tell publishes the addresses if the Node says otherwise. A Node that is not yet there can't be told.
func (d *dnsNotice) tell(ctx context.Context, at []netip.Addr) error {
	var texts []string
	for _, a := range at {
		texts = append(texts, a.String())
	}
	text := strings.Join(texts, ",")
	if !d.read || text == d.said {
		return nil
	}
	if err := d.publish(ctx, text); err != nil {
		return err
	}
	d.said = text
	return nil
}

// podNetworkNode keeps of a Node what the pod network reads. It changes its argument, as
// routes.Transform, which drops other annotations.
func podNetworkNode(o any) (any, error) {
	var said string
	if n, ok := o.(*corev1.Node); ok {
		said = n.Annotations[addons.DNSAnnotation]
	}
	kept, err := routes.Transform(o)
	if n, ok := kept.(*corev1.Node); ok && said != "" {
		if n.Annotations == nil {
			n.Annotations = map[string]string{}
		}
		n.Annotations[addons.DNSAnnotation] = said
	}
	return kept, err
}
