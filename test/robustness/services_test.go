package robustness

import (
	"context"
	"crypto/ecdsa"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/mem"
)

// whole are servers as clusters have them, of one cluster, with the ways to their store.
func whole(t *testing.T, db store.Store, n int) (clients []kubernetes.Interface, servers []*servertest.Server, ways []*faulty) {
	t.Helper()
	return wholeWith(t, func() store.Store { return db }, tokenKey(t), n)
}

func wholeWith(t *testing.T, db func() store.Store, key *ecdsa.PrivateKey, n int) (clients []kubernetes.Interface, servers []*servertest.Server, ways []*faulty) {
	t.Helper()
	var mu sync.Mutex
	var starting sync.WaitGroup
	for i := range n { // at the same time, as machines do that lost power
		starting.Go(func() {
			way := newFaulty(db())
			s := servertest.FullWith(t, servertest.Options{Store: way, Key: key, Hostname: fmt.Sprint("skiff-", i), Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})})
			k, err := kubernetes.NewForConfig(s.Admin())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			clients, servers, ways = append(clients, k), append(servers, s), append(ways, way)
		})
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return clients, servers, ways
}

func service(name string, nodePort bool) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	if nodePort {
		s.Spec.Type = corev1.ServiceTypeNodePort
	}
	return s
}

// TestServicesRace: servers that create and delete thousands of Services at the same time give
// nothing twice, and what was given back is free again.
func TestServicesRace(t *testing.T) {
	for name, lost := range map[string]float64{"all is well": 0, "answers are lost": 0.02} {
		t.Run(name, func(t *testing.T) {
			db := mem.New(mem.Config{})
			clients, _, ways := whole(t, db, 2)
			for _, w := range ways {
				w.often(lost, 0)
			}
			race(t, clients, 8, 150, lost == 0)
			for _, w := range ways {
				w.often(0, 0)
			}
			allocated(t, db, clients[1], lost == 0, lost == 0)
		})
	}
}

// race creates Services at all servers and deletes every third at any.
func race(t *testing.T, clients []kubernetes.Interface, workers, each int, strict bool) {
	t.Helper()
	failed := func(err error) bool {
		if err != nil && strict {
			t.Error(err)
		}
		return err != nil
	}
	var working sync.WaitGroup
	for w := range workers {
		working.Go(func() {
			for i := range each {
				k := clients[rand.IntN(len(clients))]
				s, err := k.CoreV1().Services("default").Create(t.Context(), service(fmt.Sprintf("s%d-%d", w, i), i%2 == 0), metav1.CreateOptions{})
				if !failed(err) && i%3 == 0 {
					k = clients[rand.IntN(len(clients))]
					failed(k.CoreV1().Services("default").Delete(t.Context(), s.Name, metav1.DeleteOptions{}))
				}
			}
		})
	}
	working.Wait()
}

// allocated checks that what Services hold is allocated to them; exact: and no other address,
// or port, is.
func allocated(t *testing.T, db store.Store, k kubernetes.Interface, exactAddresses, exactPorts bool) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	all, err := k.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ips, ports := map[string]string{}, map[int32]string{}
	for _, s := range all.Items {
		if other := ips[s.Spec.ClusterIP]; other != "" {
			t.Errorf("%s and %s have %s", s.Name, other, s.Spec.ClusterIP)
		}
		ips[s.Spec.ClusterIP] = s.Name
		for _, p := range s.Spec.Ports {
			if p.NodePort == 0 {
				continue
			}
			if other := ports[p.NodePort]; other != "" {
				t.Errorf("%s and %s have port %d", s.Name, other, p.NodePort)
			}
			ports[p.NodePort] = s.Name
		}
	}
	addresses, err := k.NetworkingV1().IPAddresses().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	of := map[string]string{}
	for _, a := range addresses.Items {
		of[a.Name] = a.Spec.ParentRef.Name
		if exactAddresses && ips[a.Name] == "" {
			t.Errorf("%s is allocated to %s, which does not have it", a.Name, a.Spec.ParentRef.Name)
		}
	}
	for ip, name := range ips {
		if of[ip] != name {
			t.Errorf("%s has %s, which is allocated to %q", name, ip, of[ip])
		}
	}
	bits := nodePorts(t, db)
	for bit := range bits.BitLen() {
		if port := int32(30000 + bit); exactPorts && bits.Bit(bit) == 1 && ports[port] == "" {
			t.Errorf("port %d is allocated and nobody has it", port)
		}
	}
	for port, name := range ports {
		if bits.Bit(int(port)-30000) == 0 {
			t.Errorf("%s has port %d, which is not allocated", name, port)
		}
	}
	t.Logf("%d Services, %d addresses, %d node ports", len(all.Items), len(of), len(ports))
}

// nodePorts is the bitmap that the servers share.
func nodePorts(t *testing.T, db store.Store) *big.Int {
	t.Helper()
	kv, _, err := db.Get(context.WithoutCancel(t.Context()), "/registry/ranges/servicenodeports")
	if err != nil {
		t.Fatal(err)
	}
	var u runtime.Unknown
	var r corev1.RangeAllocation
	if err := u.Unmarshal(kv.Value[4:]); err != nil {
		t.Fatal(err)
	}
	if err := r.Unmarshal(u.Raw); err != nil {
		t.Fatal(err)
	}
	return new(big.Int).SetBytes(r.Data)
}
