package allocate

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/big"
	"math/rand/v2"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/store"
)

var (
	errPortTaken = errors.New("provided port is already allocated")
	errPortsFull = errors.New("range is full")
)

// nodePorts is a bitmap of ports that all API servers share by compare-and-swap.
type nodePorts struct {
	store store.Store
	key   string
	ports utilnet.PortRange
	inUse func(ctx context.Context) ([]int32, error) // to begin with

	mu   sync.Mutex // one write of ours at a time
	last store.KV   // the newest state known; Value nil: none

	orphans map[int]time.Time // bits without Service, since when; the repair's
}

func newNodePorts(s store.Store, key string, ports utilnet.PortRange, inUse func(context.Context) ([]int32, error)) *nodePorts {
	return &nodePorts{store: s, key: key, ports: ports, inUse: inUse}
}

// portSet is the bitmap while one write works on it.
type portSet struct {
	ports utilnet.PortRange
	bits  *big.Int
}

func (p *portSet) take(port int32) error {
	if !p.ports.Contains(int(port)) {
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %s", p.ports.String())
	}
	i := int(port) - p.ports.Base
	if p.bits.Bit(i) == 1 {
		return errPortTaken
	}
	p.bits.SetBit(p.bits, i, 1)
	return nil
}

// next takes a free port, by preference not of the range's first part, which is left to
// those whom a user asks for by number (KEP-3682).
func (p *portSet) next() (int32, error) {
	offset := 0
	if p.ports.Size > 16 {
		offset = min(max(p.ports.Size/32, 16), 128)
	}
	for _, part := range []struct{ from, n int }{{offset, p.ports.Size - offset}, {0, offset}} {
		if part.n <= 0 {
			continue
		}
		start := rand.IntN(part.n)
		for i := range part.n {
			bit := part.from + (start+i)%part.n
			if p.bits.Bit(bit) == 0 {
				p.bits.SetBit(p.bits, bit, 1)
				return int32(p.ports.Base + bit), nil
			}
		}
	}
	return 0, errPortsFull
}

func (p *portSet) give(port int32) {
	if p.ports.Contains(int(port)) {
		p.bits.SetBit(p.bits, int(port)-p.ports.Base, 0)
	}
}

// change applies f to the bitmap until the result is stored without a race. f may run
// several times. With dryRun nothing is stored.
func (n *nodePorts) change(ctx context.Context, dryRun bool, f func(*portSet) error) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		if n.last.Value == nil {
			if err := n.load(ctx); err != nil {
				return err
			}
		}
		set, err := n.decode(n.last.Value)
		if err != nil {
			return err
		}
		before := new(big.Int).Set(set.bits)
		fErr := f(set)
		if dryRun {
			return fErr
		}
		if fErr != nil || before.Cmp(set.bits) == 0 {
			// Only the newest state may refuse, or have it already: to give back a port that
			// another server took changes nothing in what this one knows.
			kv, _, err := n.store.Get(ctx, n.key)
			if err != nil {
				return fmt.Errorf("read node port range: %w", err)
			}
			if kv.ModRevision == n.last.ModRevision {
				return fErr
			}
			n.last = kv
			continue
		}
		value, err := n.encode(set.bits)
		if err != nil {
			return err
		}
		rev, err := n.store.Update(ctx, n.key, value, n.last.ModRevision, 0)
		var conflict *store.ConflictError
		switch {
		case err == nil:
			n.last.Value, n.last.ModRevision = value, rev
			return nil
		case errors.As(err, &conflict):
			n.last = conflict.Current // zero if missing: loaded anew
		default:
			n.last = store.KV{} // it may have been written
			return fmt.Errorf("write node port range: %w", err)
		}
	}
}

// load reads the range, or makes it from the ports that Services have.
func (n *nodePorts) load(ctx context.Context) error {
	kv, _, err := n.store.Get(ctx, n.key)
	if err == nil {
		n.last = kv
		return nil
	}
	if !errors.Is(err, store.ErrNotFound) {
		return fmt.Errorf("read node port range: %w", err)
	}
	used, err := n.inUse(ctx)
	if err != nil {
		return fmt.Errorf("list node ports in use: %w", err)
	}
	set := &portSet{ports: n.ports, bits: new(big.Int)}
	for _, p := range used {
		if err := set.take(p); err != nil {
			continue // shared by two protocols, or outside the range
		}
	}
	value, err := n.encode(set.bits)
	if err != nil {
		return err
	}
	rev, err := n.store.Create(ctx, n.key, value, 0)
	var exists *store.ExistsError
	switch {
	case err == nil:
		n.last = store.KV{Key: n.key, Value: value, CreateRevision: rev, ModRevision: rev}
	case errors.As(err, &exists):
		n.last = exists.Current
	default:
		return fmt.Errorf("create node port range: %w", err)
	}
	return nil
}

func (n *nodePorts) decode(value []byte) (*portSet, error) {
	if len(value) < 4 || string(value[:4]) != "k8s\x00" {
		return nil, fmt.Errorf("node port range at %s is not encoded as protobuf", n.key)
	}
	var u runtime.Unknown
	var r corev1.RangeAllocation
	if err := u.Unmarshal(value[4:]); err != nil {
		return nil, fmt.Errorf("decode node port range: %w", err)
	}
	if err := r.Unmarshal(u.Raw); err != nil {
		return nil, fmt.Errorf("decode node port range: %w", err)
	}
	if r.Range != n.ports.String() {
		return nil, apierrors.NewInternalError(fmt.Errorf("node port range in the store is %s, this server is configured for %s", r.Range, n.ports.String()))
	}
	return &portSet{ports: n.ports, bits: new(big.Int).SetBytes(r.Data)}, nil
}

func (n *nodePorts) encode(bits *big.Int) ([]byte, error) {
	raw, err := (&corev1.RangeAllocation{Range: n.ports.String(), Data: bits.Bytes()}).Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode node port range: %w", err)
	}
	u := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: "v1", Kind: "RangeAllocation"}, Raw: raw}
	b, err := u.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode node port range: %w", err)
	}
	return append([]byte("k8s\x00"), b...), nil
}

func (n *nodePorts) release(ctx context.Context, ports []int32) error {
	if len(ports) == 0 {
		return nil
	}
	return n.change(ctx, false, func(p *portSet) error {
		for _, port := range ports {
			p.give(port)
		}
		return nil
	})
}

// portsOf are all ports a Service holds.
func portsOf(s *corev1.Service) iter.Seq[int32] {
	return func(yield func(int32) bool) {
		for _, p := range s.Spec.Ports {
			if p.NodePort != 0 && !yield(p.NodePort) {
				return
			}
		}
		if s.Spec.HealthCheckNodePort != 0 {
			yield(s.Spec.HealthCheckNodePort)
		}
	}
}

func wantsPorts(s *corev1.Service) bool {
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
		return true
	}
	return false
}

// assignsPorts: ports that are not asked for by number are chosen.
func assignsPorts(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeNodePort ||
		s.Spec.Type == corev1.ServiceTypeLoadBalancer && (s.Spec.AllocateLoadBalancerNodePorts == nil || *s.Spec.AllocateLoadBalancerNodePorts)
}

func wantsHealthPort(s *corev1.Service) bool {
	return s.Spec.Type == corev1.ServiceTypeLoadBalancer && s.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
}

// allocatePorts takes the ports that the Service has not got yet and notes those that it
// gives up. old is nil on create.
func (t *transaction) allocatePorts(ctx context.Context, old *corev1.Service, dryRun bool) error {
	s := t.svc
	held := map[int32]bool{}
	if old != nil {
		for p := range portsOf(old) {
			held[p] = true
		}
	}
	if !wantsPorts(s) && len(held) == 0 {
		return nil
	}
	var plan []int32 // of Spec.Ports
	var health int32
	var taken []int32
	needs := false
	for _, p := range s.Spec.Ports {
		needs = needs || (wantsPorts(s) && (p.NodePort == 0 && assignsPorts(s) || p.NodePort != 0 && !held[p.NodePort]))
	}
	needsHealth := wantsHealthPort(s) && (old == nil || !wantsHealthPort(old))
	plan = make([]int32, len(s.Spec.Ports))
	for i := range s.Spec.Ports {
		plan[i] = s.Spec.Ports[i].NodePort
	}
	health = s.Spec.HealthCheckNodePort
	if needs || needsHealth {
		err := t.a.ports.change(ctx, dryRun, func(set *portSet) error {
			taken = nil
			var err error
			if needs {
				if plan, err = choosePorts(s, held, old == nil, set, &taken); err != nil {
					return err
				}
			}
			if needsHealth {
				if health, err = chooseHealthPort(s, set); err != nil {
					return err
				}
				taken = append(taken, health)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	for i := range s.Spec.Ports {
		s.Spec.Ports[i].NodePort = plan[i]
	}
	s.Spec.HealthCheckNodePort = health
	if !dryRun {
		t.takenPorts = taken
	}
	// What the old object held and the new one does not is given up. A type without ports holds
	// none, though its fields may still name them: preparing the update clears those.
	keeps := map[int32]bool{}
	if wantsPorts(s) {
		for _, p := range plan {
			keeps[p] = true
		}
		if wantsHealthPort(s) {
			keeps[health] = true
		}
	}
	for p := range held {
		if !keeps[p] {
			t.freePorts = append(t.freePorts, p)
		}
	}
	return nil
}

// choosePorts decides on each port's node port. Ports of a new Service that differ in
// protocol alone share one.
func choosePorts(s *corev1.Service, held map[int32]bool, create bool, set *portSet, taken *[]int32) ([]int32, error) {
	plan := make([]int32, len(s.Spec.Ports))
	mine := map[int32]bool{}
	byPort := map[int32]int32{}
	if create {
		for _, p := range s.Spec.Ports {
			if p.NodePort != 0 && byPort[p.Port] == 0 {
				byPort[p.Port] = p.NodePort
			}
		}
	}
	for i, p := range s.Spec.Ports {
		want := p.NodePort
		if want == 0 {
			if !assignsPorts(s) {
				continue
			}
			want = byPort[p.Port]
		}
		if want == 0 {
			next, err := set.next()
			if err != nil {
				return nil, apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
			}
			*taken = append(*taken, next)
			mine[next] = true
			plan[i] = next
			if create {
				byPort[p.Port] = next
			}
			continue
		}
		if !held[want] && !mine[want] {
			if err := set.take(want); err != nil {
				return nil, invalid(s, field.Invalid(field.NewPath("spec", "ports").Index(i).Child("nodePort"), want, err.Error()))
			}
			*taken = append(*taken, want)
			mine[want] = true
		}
		plan[i] = want
	}
	return plan, nil
}

func chooseHealthPort(s *corev1.Service, set *portSet) (int32, error) {
	if want := s.Spec.HealthCheckNodePort; want != 0 {
		if err := set.take(want); err != nil {
			return 0, apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", want, err))
		}
		return want, nil
	}
	port, err := set.next()
	if err != nil {
		return 0, apierrors.NewInternalError(fmt.Errorf("failed to allocate a HealthCheck NodePort: %w", err))
	}
	return port, nil
}

// repair sets the bits of ports that Services hold, and clears those that have been
// without Service for a while.
func (n *nodePorts) repair(ctx context.Context, all []*corev1.Service, now time.Time) error {
	held := map[int32]bool{}
	for _, s := range all {
		for p := range portsOf(s) {
			held[p] = true
		}
	}
	var seen map[int]time.Time
	err := n.change(ctx, false, func(set *portSet) error {
		seen = map[int]time.Time{}
		for p := range held {
			if set.ports.Contains(int(p)) {
				set.bits.SetBit(set.bits, int(p)-set.ports.Base, 1)
			}
		}
		for bit := range set.bits.BitLen() {
			if set.bits.Bit(bit) == 0 || held[int32(set.ports.Base+bit)] {
				continue
			}
			first, ok := n.orphans[bit]
			if !ok {
				first = now
			}
			if now.Sub(first) >= orphanAge {
				set.bits.SetBit(set.bits, bit, 0)
				continue
			}
			seen[bit] = first
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("repair node ports: %w", err)
	}
	n.orphans = seen
	return nil
}
