package robustness

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/mem"
)

const namespace = "robust"

// replica is an API server that is killed and started again.
type replica struct {
	t     *testing.T
	store *faulty
	mu    sync.RWMutex
	srv   *servertest.Server
	k     kubernetes.Interface
}

func newReplica(t *testing.T, s store.Store) *replica {
	r := &replica{t: t, store: newFaulty(s)}
	r.start()
	return r
}

func (r *replica) start() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.srv = servertest.NewOn(r.t, r.store)
	k, err := kubernetes.NewForConfig(r.srv.Config())
	if err != nil {
		r.t.Error(err)
	}
	r.k = k
}

func (r *replica) restart() {
	r.mu.RLock()
	s := r.srv
	r.mu.RUnlock()
	s.Stop()
	r.start()
}

// follows waits until the server has caught up with the store.
func (r *replica) follows(t *testing.T) {
	r.mu.RLock()
	s := r.srv
	r.mu.RUnlock()
	for t.Context().Err() == nil && s.Caches.Follows(t.Context()) != nil {
	}
}

func (r *replica) client() kubernetes.Interface {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.k
}

// history is what clients did and saw.
type history struct {
	begun time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation
}

func (h *history) now() int64 { return int64(time.Since(h.begun)) }

func (h *history) add(client int, in input, call int64, out output) {
	op := porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: h.now()}
	if out.unknown {
		op.Return = math.MaxInt64 // it may happen at any later time
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, op)
}

func object(key, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: key}, Data: map[string]string{"v": value}}
}

// outcome is what an error of a write says; ok false: nothing happened, as is known.
func outcome(err error) (out output, ok bool) {
	switch {
	case err == nil:
		return output{}, true
	case apierrors.IsAlreadyExists(err), apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return output{refused: true}, true
	case apierrors.IsServiceUnavailable(err), apierrors.IsTooManyRequests(err):
		return output{}, false
	}
	return output{unknown: true}, true // timeouts, and connections that broke
}

// client does one thing after the other, each at any of the servers, and knows nothing but
// what it has read.
func client(ctx context.Context, id, steps int, servers []*replica, keys []string, h *history) {
	values := 0
	for range steps {
		if ctx.Err() != nil {
			return
		}
		key, maps := keys[rand.IntN(len(keys))], servers[rand.IntN(len(servers))].client().CoreV1().ConfigMaps(namespace)
		call := h.now()
		if rand.IntN(4) == 0 { // a list is a read of each
			l, err := maps.List(ctx, metav1.ListOptions{Limit: int64(rand.IntN(2) * 100)})
			if err != nil {
				continue
			}
			found := map[string]string{}
			for _, o := range l.Items {
				found[o.Name] = o.Data["v"]
			}
			for _, k := range keys {
				h.add(id, input{kind: opGet, key: k}, call, output{value: found[k]})
			}
			continue
		}
		o, err := maps.Get(ctx, key, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			o = nil
		case err != nil:
			continue
		}
		seen := ""
		if o != nil {
			seen = o.Data["v"]
		}
		h.add(id, input{kind: opGet, key: key}, call, output{value: seen})
		values++
		in := input{key: key, expect: seen, value: fmt.Sprintf("%d.%d", id, values)}
		maps = servers[rand.IntN(len(servers))].client().CoreV1().ConfigMaps(namespace)
		call = h.now()
		switch {
		case o == nil:
			in.kind = opCreate
			_, err = maps.Create(ctx, object(key, in.value), metav1.CreateOptions{})
		case rand.IntN(5) == 0:
			in.kind = opDelete
			err = maps.Delete(ctx, key, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &o.ResourceVersion}})
		default:
			in.kind = opSwap
			o.Data["v"] = in.value
			_, err = maps.Update(ctx, o, metav1.UpdateOptions{})
		}
		if out, ok := outcome(err); ok {
			h.add(id, in, call, out)
		}
	}
}

func check(t *testing.T, h *history) {
	t.Helper()
	unknown := 0
	for _, o := range h.ops {
		if o.Output.(output).unknown {
			unknown++
		}
	}
	t.Logf("%d operations, the outcome of %d is unknown", len(h.ops), unknown)
	model := register.ToModel()
	result, info := porcupine.CheckOperationsVerbose(model, h.ops, time.Minute)
	if result == porcupine.Ok {
		return
	}
	t.Errorf("the history is not linearizable: %s", result)
	for key, partial := range info.PartialLinearizationsOperations() {
		for _, ops := range partial {
			if len(ops) > 0 {
				t.Logf("key %d: the longest part that is ends with %s", key, model.DescribeOperation(ops[len(ops)-1].Input, ops[len(ops)-1].Output))
			}
		}
	}
}

// watcher follows the objects by whatever server there is, and comes back where it was.
type watcher struct {
	seen []string // revision and type of each event
}

func (w *watcher) run(ctx context.Context, t *testing.T, servers []*replica, from string) {
	last := from
	for i := 0; ctx.Err() == nil; i++ {
		r := servers[i%len(servers)]
		events, err := r.client().CoreV1().ConfigMaps(namespace).Watch(ctx, metav1.ListOptions{ResourceVersion: last, AllowWatchBookmarks: true})
		if err != nil {
			continue
		}
		for e := range events.ResultChan() {
			if e.Type == "ERROR" {
				if err := apierrors.FromObject(e.Object); apierrors.IsResourceExpired(err) {
					t.Errorf("a watch cannot be resumed at %s: %v", last, err)
					return
				}
				break
			}
			o := e.Object.(*corev1.ConfigMap)
			if revision(o.ResourceVersion) < revision(last) {
				t.Errorf("a watch went back from %s to %s", last, o.ResourceVersion)
			}
			last = o.ResourceVersion
			if e.Type != "BOOKMARK" {
				w.seen = append(w.seen, fmt.Sprintf("%s %s", o.ResourceVersion, e.Type))
			}
			if o.Name == "end" {
				events.Stop()
				return
			}
		}
		events.Stop()
	}
}

func revision(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return -1
	}
	return n
}

// load lets clients work at the servers while fault is called again and again, and checks
// what they and watches saw.
func load(t *testing.T, servers []*replica, steps int, fault func(i int)) {
	t.Helper()
	ctx := t.Context()
	start, err := servers[0].client().CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{"a", "b", "c", "d"}
	watchers := []*watcher{{}, {}, {}}
	var watching sync.WaitGroup
	for i, w := range watchers {
		watching.Go(func() {
			w.run(ctx, t, append(slices.Clone(servers[i%len(servers):]), servers...), start.ResourceVersion)
		})
	}
	h := &history{begun: time.Now()}
	var working sync.WaitGroup
	for id := range 6 {
		working.Go(func() { client(ctx, id, steps, servers, keys, h) })
	}
	var done atomic.Bool
	faults := make(chan int)
	go func() {
		n := 0
		for ; !done.Load(); n++ {
			fault(n)
		}
		faults <- n
	}()
	working.Wait()
	done.Store(true)
	n := <-faults
	for _, r := range servers {
		r.store.often(0, 0)
	}
	t.Logf("%d faults", n)
	for {
		_, err := servers[0].client().CoreV1().ConfigMaps(namespace).Create(ctx, object("end", ""), metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			break
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
	watching.Wait()
	check(t, h)
	for i, w := range watchers {
		if !slices.Equal(w.seen, watchers[0].seen) {
			t.Errorf("watch %d saw %d events, watch 0 %d: they are not the same", i, len(w.seen), len(watchers[0].seen))
		}
	}
	if len(watchers[0].seen) < steps/2 {
		t.Errorf("watches saw only %d events", len(watchers[0].seen))
	}
}

// pause is how long a fault lasts, or is waited for; nothing depends on it.
func pause(d time.Duration) { <-time.After(rand.N(d)) }

// TestLinearizable: reads and writes through two servers on one store are those of one
// object after the other, whatever happens to the servers' ways to the store.
func TestLinearizable(t *testing.T) {
	for name, fault := range map[string]func(t *testing.T, r *replica){
		"nothing": func(*testing.T, *replica) { pause(20 * time.Millisecond) },
		"watches are cut": func(t *testing.T, r *replica) {
			r.store.cut()
			r.follows(t)
			pause(20 * time.Millisecond)
		},
		"watches lag": func(t *testing.T, r *replica) {
			release := r.store.hold()
			pause(50 * time.Millisecond)
			release()
			r.follows(t)
			pause(50 * time.Millisecond)
		},
		"answers are lost": func(_ *testing.T, r *replica) {
			r.store.often(0.1, 0.02)
			pause(50 * time.Millisecond)
			r.store.often(0, 0)
			pause(50 * time.Millisecond)
		},
		"servers are restarted": func(t *testing.T, r *replica) {
			r.restart()
			r.follows(t)
			pause(50 * time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			db := mem.New(mem.Config{})
			servers := []*replica{newReplica(t, db), newReplica(t, db)}
			ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}
			if _, err := servers[0].client().CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			load(t, servers, 150, func(i int) { fault(t, servers[i%2]) })
		})
	}
}

// The check itself finds what is wrong.
func TestModelFindsStaleReads(t *testing.T) {
	w := func(client int, call, ret int64, in input, out output) porcupine.Operation {
		return porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: ret}
	}
	created := w(0, 0, 10, input{kind: opCreate, key: "a", value: "1"}, output{})
	for name, c := range map[string]struct {
		then []porcupine.Operation
		want porcupine.CheckResult
	}{
		"fresh":                 {[]porcupine.Operation{w(1, 11, 12, input{kind: opGet, key: "a"}, output{value: "1"})}, porcupine.Ok},
		"stale":                 {[]porcupine.Operation{w(1, 11, 12, input{kind: opGet, key: "a"}, output{})}, porcupine.Illegal},
		"a lost update":         {[]porcupine.Operation{w(1, 11, 12, input{kind: opSwap, key: "a", expect: "1", value: "2"}, output{}), w(2, 11, 12, input{kind: opSwap, key: "a", expect: "1", value: "3"}, output{})}, porcupine.Illegal},
		"unknown, happened":     {[]porcupine.Operation{w(1, 11, math.MaxInt64, input{kind: opDelete, key: "a", expect: "1"}, output{unknown: true}), w(2, 12, 13, input{kind: opGet, key: "a"}, output{})}, porcupine.Ok},
		"unknown, happened not": {[]porcupine.Operation{w(1, 11, math.MaxInt64, input{kind: opDelete, key: "a", expect: "1"}, output{unknown: true}), w(2, 12, 13, input{kind: opGet, key: "a"}, output{value: "1"})}, porcupine.Ok},
		"unknown, undone": {[]porcupine.Operation{w(1, 11, math.MaxInt64, input{kind: opDelete, key: "a", expect: "1"}, output{unknown: true}),
			w(2, 12, 13, input{kind: opGet, key: "a"}, output{}), w(2, 14, 15, input{kind: opGet, key: "a"}, output{value: "1"})}, porcupine.Illegal},
	} {
		if got := porcupine.CheckOperationsTimeout(register.ToModel(), append([]porcupine.Operation{created}, c.then...), time.Minute); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
