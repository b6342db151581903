package bootstrap

import (
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

// identity is the Lease by which an API server is known in the cluster (KEP-1965), and the
// key by which its peers find it (KEP-4020): upstream's servers pass on to it what they
// themselves do not serve.
type identity struct {
	b      *Bootstrap
	name   string
	holder string
	peer   *presence
}

const (
	identityLabel = "apiserver.kubernetes.io/identity"
	identityValue = "kube-apiserver"
	// peerLabel is of the key, as is the address in it; the Lease has it as an annotation.
	peerLabel = "apiserverIdentity"

	// identityTime is how long the Lease counts after its last renewal, and about how often
	// those of others that have run out are looked for.
	identityTime = time.Hour
)

var leases = schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}

// identityName is apiserver-HASH of the host's name and the component's, each behind its
// length, as upstream derives it: a server that starts again is the same.
func identityName(hostname string) string {
	var data []byte
	for _, s := range []string{hostname, identityValue} {
		data = binary.BigEndian.AppendUint16(data, uint16(len(s)))
		data = append(data, s...)
	}
	hash := sha256.Sum256(data)
	return "apiserver-" + strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(hash[:16]))
}

func newIdentity(b *Bootstrap) *identity {
	i := &identity{b: b, name: identityName(b.Hostname)}
	i.holder = i.name + "_" + uuid.NewString()
	i.peer = &presence{store: b.Store, key: b.Prefix + "peerserverleases/" + i.name, fill: func(o *corev1.Endpoints) {
		o.Subsets = []corev1.EndpointSubset{{
			Addresses: []corev1.EndpointAddress{{IP: b.Peer.Addr().String()}},
			Ports:     []corev1.EndpointPort{{Name: "https", Port: int32(b.Peer.Port()), Protocol: corev1.ProtocolTCP}},
		}}
		if o.Labels == nil {
			o.Labels = map[string]string{}
		}
		o.Labels[peerLabel] = i.name
	}}
	return i
}

// announce renews the Lease and the key.
func (i *identity) announce(ctx context.Context) error {
	if i.b.Hostname == "" {
		return nil
	}
	if err := i.peer.beat(ctx); err != nil {
		return fmt.Errorf("renew the API server's key for its peers: %w", err)
	}
	r, err := lookup.Resource(i.b.Caches, leases)
	if err != nil {
		return err
	}
	_, err = r.Update(ctx, metav1.NamespaceSystem, i.name, false, cacher.Preconditions{},
		func(o cacher.Object) (runtime.Object, time.Duration, error) {
			next := o.Runtime().(*coordinationv1.Lease).DeepCopy()
			i.fill(next)
			return next, 0, nil
		})
	if apierrors.IsNotFound(err) {
		l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: i.name}}
		i.fill(l)
		err = i.b.create(ctx, r, l)
	}
	if err != nil {
		return fmt.Errorf("renew Lease %s: %w", i.name, err)
	}
	return nil
}

func (i *identity) fill(l *coordinationv1.Lease) {
	seconds, now := int32(identityTime/time.Second), metav1.NewMicroTime(i.b.Clock.Now())
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &i.holder, &seconds, &now
	metav1.SetMetaDataLabel(&l.ObjectMeta, identityLabel, identityValue)
	metav1.SetMetaDataLabel(&l.ObjectMeta, corev1.LabelHostname, i.b.Hostname)
	metav1.SetMetaDataAnnotation(&l.ObjectMeta, corev1.AnnotationPeerAdvertiseAddress, i.b.Peer.String())
}

// withdraw takes both away.
func (i *identity) withdraw(ctx context.Context) error {
	if i.b.Hostname == "" {
		return nil
	}
	err := i.peer.drop(ctx)
	r, lerr := lookup.Resource(i.b.Caches, leases)
	if lerr == nil {
		lerr = i.remove(ctx, r, i.name, func(*coordinationv1.Lease) bool { return true })
	}
	return errors.Join(err, lerr)
}

var errStays = errors.New("the Lease stays")

func (i *identity) remove(ctx context.Context, r cacher.Resource, name string, goes func(*coordinationv1.Lease) bool) error {
	_, err := r.Delete(ctx, metav1.NamespaceSystem, name, cacher.Preconditions{}, func(o cacher.Object) error {
		if !goes(o.Runtime().(*coordinationv1.Lease)) {
			return errStays
		}
		return nil
	})
	if apierrors.IsNotFound(err) || errors.Is(err, errStays) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete Lease %s: %w", name, err)
	}
	return nil
}

// collect deletes the Leases of API servers that are gone. The last word is the store's: a
// cache that lags must not delete what has been renewed.
func (i *identity) collect(ctx context.Context) error {
	all, err := lookup.CachedList[*coordinationv1.Lease](ctx, i.b.Caches, leases, metav1.NamespaceSystem)
	if err != nil {
		return fmt.Errorf("list Leases: %w", err)
	}
	r, err := lookup.Resource(i.b.Caches, leases)
	if err != nil {
		return err
	}
	expired := func(l *coordinationv1.Lease) bool {
		s := l.Spec
		return l.Labels[identityLabel] == identityValue && (s.RenewTime == nil || s.LeaseDurationSeconds == nil ||
			s.RenewTime.Add(time.Duration(*s.LeaseDurationSeconds)*time.Second).Before(i.b.Clock.Now()))
	}
	var errs []error
	for _, l := range all {
		if expired(l) {
			errs = append(errs, i.remove(ctx, r, l.Name, expired))
		}
	}
	return errors.Join(errs...)
}
