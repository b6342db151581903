package robustness

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/store"
)

// TestPausedMembers: the servers go on, and read nothing stale, while one of three members of
// etcd at a time stands still, the leader among them.
func TestPausedMembers(t *testing.T) {
	all, urls := members(t, 3)
	servers := []*replica{newReplica(t, connect(t, urls, time.Hour)), newReplica(t, connect(t, urls, time.Hour))}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := servers[0].client().CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	load(t, servers, 300, func(i int) {
		m := all[i%len(all)]
		m.signal(syscall.SIGSTOP)
		pause(2 * time.Second)
		m.signal(syscall.SIGCONT)
		pause(2 * time.Second)
	})
}

// beat is how often servers say that they are there.
const beat = 10 * time.Second

// TestBesideUpstream: two servers of ours and upstream's are one control plane.
func TestBesideUpstream(t *testing.T) {
	_, urls := members(t, 1)
	key := tokenKey(t)
	const compact = time.Second
	theirs, process := upstreamServer(t, urls, key, "192.0.2.30", "--etcd-compaction-interval="+compact.String())
	db := connect(t, urls, time.Hour)
	clients, servers, _ := wholeWith(t, func() store.Store { return connect(t, urls, compact) }, key, 2)
	all := append(clients, theirs)
	s := &twoServers{t, all, servers}
	compactions := countCompactions(t, db)

	addresses := func(ctx context.Context, k kubernetes.Interface) []string {
		ep, err := k.CoreV1().Endpoints("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		if err != nil || len(ep.Subsets) != 1 {
			return nil
		}
		var ips []string
		for _, a := range ep.Subsets[0].Addresses {
			ips = append(ips, a.IP)
		}
		slices.Sort(ips)
		return ips
	}
	behind := func(k kubernetes.Interface, want ...string) {
		t.Helper()
		s.soon(fmt.Sprintf("endpoints are %v", want), func(ctx context.Context) bool { return slices.Equal(addresses(ctx, k), want) })
	}
	behind(theirs, "192.0.2.1", "192.0.2.2", "192.0.2.30")
	leases, err := clients[0].CoordinationV1().Leases("kube-system").List(t.Context(), metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity=kube-apiserver"})
	if err != nil || len(leases.Items) != 3 {
		t.Errorf("identities: %v %v", leases, err)
	}

	// Nobody undoes what another writes: through some heartbeats of each nothing changes.
	ep, err := theirs.CoreV1().Endpoints("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	calm, cancel := context.WithTimeout(t.Context(), 2*beat+beat/2)
	defer cancel()
	w, err := theirs.CoreV1().Endpoints("default").Watch(calm, metav1.ListOptions{ResourceVersion: ep.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	sl, err := theirs.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}

	race(t, all, 6, 100, true)
	// Upstream's repair allocates anew what Services have that it takes for alive, and frees it
	// after a minute: what those hold that are there is what counts.
	allocated(t, db, clients[0], false, true)
	allocated(t, db, theirs, false, true)

	for e := range w.ResultChan() {
		t.Errorf("the endpoints were written again: %v", e)
	}
	if again, err := theirs.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{}); err != nil || again.ResourceVersion != sl.ResourceVersion {
		t.Errorf("the slice was written again: %v %v", again, err)
	}

	// One of the servers compacts in each interval, not each of them.
	if n, most := compactions(), int(2*beat+beat/2)/int(compact)*3/2; n < 5 || n > most {
		t.Errorf("%d compactions, want 5 to %d", n, most)
	}

	process.signal(syscall.SIGTERM)
	<-process.done
	behind(clients[0], "192.0.2.1", "192.0.2.2")
	servers[0].Stop()
	s.soon("one is left", func(ctx context.Context) bool { return len(addresses(ctx, clients[1])) == 1 })
}

// countCompactions counts them by the key on which servers agree, from now on.
func countCompactions(t *testing.T, db store.Store) func() int {
	t.Helper()
	const key = "compact_rev_key"
	w, err := db.Watch(t.Context(), key, 0)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	n, done := 0, make(chan struct{})
	go func() {
		defer close(done)
		last := int64(0)
		for {
			b, err := w.Next(ctx)
			if err != nil {
				return
			}
			for _, e := range b.Events {
				n++
				if rev := revision(strings.TrimSpace(string(e.KV.Value))); rev < last {
					t.Errorf("compaction went from %d back to %d", last, rev)
				} else {
					last = rev
				}
			}
		}
	}()
	return func() int {
		cancel()
		<-done
		w.Close()
		return n
	}
}
