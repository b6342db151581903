package robustness

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
	"github.com/skiff-k8s/skiff/store/mem"
)

// balancer passes connections on to one server after the other, as balancers in front of a
// control plane do: it knows nothing of what is in them.
type balancer struct {
	ln net.Listener
	to []string

	mu    sync.Mutex
	next  int
	conns map[net.Conn]struct{}
	wg    sync.WaitGroup
}

func newBalancer(t *testing.T, servers ...*servertest.Server) *balancer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{ln: ln, conns: map[net.Conn]struct{}{}}
	for _, s := range servers {
		u, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		b.to = append(b.to, u.Host)
	}
	b.wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			b.wg.Go(func() { b.pass(c) })
		}
	})
	t.Cleanup(func() {
		ln.Close()
		b.reset()
		b.wg.Wait()
	})
	return b
}

func (b *balancer) pass(from net.Conn) {
	defer from.Close()
	b.mu.Lock()
	to := b.to[b.next%len(b.to)]
	b.next++
	b.mu.Unlock()
	other, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer other.Close()
	b.mu.Lock()
	b.conns[from], b.conns[other] = struct{}{}, struct{}{}
	b.mu.Unlock()
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{from, other}, {other, from}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // a connection that breaks is what this is about
			way[0].Close()
			way[1].Close()
		})
	}
	both.Wait()
	b.mu.Lock()
	delete(b.conns, from)
	delete(b.conns, other)
	b.mu.Unlock()
}

// reset breaks all connections: their clients come again, and to another server.
func (b *balancer) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns {
		c.Close()
	}
}

// TestInformersDoNotGoBack: what a client has seen of an object at one server it does not
// see older at another, though that one lags.
func TestInformersDoNotGoBack(t *testing.T) {
	db := mem.New(mem.Config{})
	ways := []*faulty{newFaulty(db), newFaulty(db)}
	servers := []*servertest.Server{servertest.NewOn(t, ways[0]), servertest.NewOn(t, ways[1])}
	direct, err := kubernetes.NewForConfig(servers[0].Config())
	if err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
	if _, err := direct.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const objects, updates = 5, 120
	var last [objects]string
	for i := range objects {
		o, err := direct.CoreV1().ConfigMaps(namespace).Create(t.Context(), object(fmt.Sprint("o", i), "0"), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		last[i] = o.ResourceVersion
	}
	b := newBalancer(t, servers...)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer cancel()
	// Several clients, each with its connection, lists and watches by itself.
	var stores []cache.Store
	var events atomic.Int64
	for range 4 {
		k, err := kubernetes.NewForConfig(&rest.Config{Host: "http://" + b.ln.Addr().String(), QPS: -1})
		if err != nil {
			t.Fatal(err)
		}
		f := informers.NewSharedInformerFactoryWithOptions(k, 0, informers.WithNamespace(namespace))
		inf := f.Core().V1().ConfigMaps().Informer()
		if _, err := inf.AddEventHandler(cache.ResourceEventHandlerFuncs{
			UpdateFunc: func(before, after any) {
				events.Add(1)
				x, y := before.(*corev1.ConfigMap), after.(*corev1.ConfigMap)
				if revision(y.ResourceVersion) < revision(x.ResourceVersion) {
					t.Errorf("%s went from %s back to %s", y.Name, x.ResourceVersion, y.ResourceVersion)
				}
			},
			DeleteFunc: func(gone any) { t.Errorf("%v is gone, and nobody deleted it", gone) },
		}); err != nil {
			t.Fatal(err)
		}
		running.Go(func() { inf.Run(ctx.Done()) })
		if !cache.WaitForCacheSync(ctx.Done(), inf.HasSynced) {
			t.Fatal("an informer does not come up")
		}
		stores = append(stores, inf.GetStore())
	}
	var moving sync.WaitGroup
	stop := make(chan struct{})
	moving.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			// One lags, and all come to it, or half of them.
			release := ways[i%2].hold()
			b.reset()
			pause(60 * time.Millisecond)
			release()
			pause(60 * time.Millisecond)
		}
	})
	for n := range updates {
		for i := range objects {
			o := object(fmt.Sprint("o", i), fmt.Sprint(n))
			o, err := direct.CoreV1().ConfigMaps(namespace).Update(t.Context(), o, metav1.UpdateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			last[i] = o.ResourceVersion
		}
		pause(20 * time.Millisecond)
	}
	close(stop)
	moving.Wait()
	for _, s := range stores {
		for i := range objects {
			for {
				o, ok, err := s.GetByKey(fmt.Sprintf("%s/o%d", namespace, i))
				if err != nil || !ok {
					t.Fatalf("o%d: %v %v", i, ok, err)
				}
				if o.(*corev1.ConfigMap).ResourceVersion == last[i] {
					break
				}
				if ctx.Err() != nil {
					t.Fatalf("o%d stays at %s, want %s", i, o.(*corev1.ConfigMap).ResourceVersion, last[i])
				}
				pause(5 * time.Millisecond)
			}
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	t.Logf("%d connections, %d updates seen", b.next, events.Load())
	if b.next < 10 {
		t.Errorf("the balancer was asked only %d times", b.next)
	}
}
