package objects

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// patience is how long a reader waits for the watch before it asks directly.
const patience = time.Second

// Ref names one object that a pod refers to.
type Ref struct {
	Kind            string // ConfigMap or Secret
	Namespace, Name string
}

// Config of a Cache.
type Config struct {
	Client kubernetes.Interface
	Logger *slog.Logger
	// Changed is called when an object that was known changes or vanishes.
	Changed func(Ref)
}

// Cache follows the objects that registered pods refer to.
type Cache struct {
	cfg  Config
	ctx  context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu    sync.Mutex
	items map[Ref]*item
	pods  map[types.UID]map[Ref]bool
}

type item struct {
	users  int
	cancel context.CancelFunc
	synced chan struct{}

	mu    sync.Mutex
	known bool
	obj   runtime.Object // nil: absent
}

// New makes an empty cache; watches run from the first registered pod to Close.
func New(cfg Config) *Cache {
	ctx, stop := context.WithCancel(context.Background())
	return &Cache{cfg: cfg, ctx: ctx, stop: stop, items: map[Ref]*item{}, pods: map[types.UID]map[Ref]bool{}}
}

// Close ends all watches and waits for them.
func (c *Cache) Close() {
	c.stop()
	c.wg.Wait()
}

// Register follows what the pod refers to, and lets go of what it no longer does.
func (c *Cache) Register(pod *corev1.Pod) {
	refs := References(pod)
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.pods[pod.UID]
	for r := range refs {
		if !old[r] {
			c.acquire(r)
		}
	}
	for r := range old {
		if !refs[r] {
			c.release(r)
		}
	}
	c.pods[pod.UID] = refs
}

// Unregister lets go of everything that the pod refers to.
func (c *Cache) Unregister(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for r := range c.pods[uid] {
		c.release(r)
	}
	delete(c.pods, uid)
}

// Users are the pods that refer to an object.
func (c *Cache) Users(r Ref) []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []types.UID
	for uid, refs := range c.pods {
		if refs[r] {
			out = append(out, uid)
		}
	}
	return out
}

func (c *Cache) acquire(r Ref) {
	it := c.items[r]
	if it == nil {
		ctx, cancel := context.WithCancel(c.ctx)
		it = &item{cancel: cancel, synced: make(chan struct{})}
		c.items[r] = it
		c.wg.Add(1)
		go func() {
			defer c.wg.Done()
			c.follow(ctx, r, it)
		}()
	}
	it.users++
}

func (c *Cache) release(r Ref) {
	if it := c.items[r]; it != nil {
		if it.users--; it.users == 0 {
			it.cancel()
			delete(c.items, r)
		}
	}
}

func (c *Cache) follow(ctx context.Context, r Ref, it *item) {
	one := fields.OneTermEqualSelector("metadata.name", r.Name).String()
	src := Source{Client: c.cfg.Client}
	switch r.Kind {
	case "ConfigMap":
		api := c.cfg.Client.CoreV1().ConfigMaps(r.Namespace)
		src.List = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = one
			return api.List(ctx, o)
		}
		src.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = one
			return api.Watch(ctx, o)
		}
		Follow(ctx, c.cfg.Logger, src, &corev1.ConfigMap{}, feed[*corev1.ConfigMap](c, r, it))
	case "Secret":
		api := c.cfg.Client.CoreV1().Secrets(r.Namespace)
		src.List = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = one
			return api.List(ctx, o)
		}
		src.Watch = func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = one
			return api.Watch(ctx, o)
		}
		Follow(ctx, c.cfg.Logger, src, &corev1.Secret{}, feed[*corev1.Secret](c, r, it))
	}
}

type named interface {
	runtime.Object
	metav1.Object
}

func feed[T named](c *Cache, r Ref, it *item) Feed[T] {
	set := func(obj runtime.Object) {
		it.mu.Lock()
		first := !it.known
		it.known, it.obj = true, obj
		it.mu.Unlock()
		if first {
			close(it.synced)
		} else if c.cfg.Changed != nil {
			c.cfg.Changed(r)
		}
	}
	return Feed[T]{
		Replaced: func(all []T) {
			for _, o := range all {
				if o.GetName() == r.Name { // the fake clientset ignores field selectors
					set(o)
					return
				}
			}
			set(nil)
		},
		Changed: func(o T) {
			if o.GetName() == r.Name {
				set(o)
			}
		},
		Deleted: func(o T) {
			if o.GetName() == r.Name {
				set(nil)
			}
		},
	}
}

// ConfigMap reads one that a registered pod refers to.
func (c *Cache) ConfigMap(ctx context.Context, namespace, name string) (*corev1.ConfigMap, error) {
	obj, err := c.get(ctx, Ref{"ConfigMap", namespace, name})
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.ConfigMap), nil
}

// Secret reads one that a registered pod refers to.
func (c *Cache) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	obj, err := c.get(ctx, Ref{"Secret", namespace, name})
	if err != nil {
		return nil, err
	}
	return obj.(*corev1.Secret), nil
}

func (c *Cache) get(ctx context.Context, r Ref) (runtime.Object, error) {
	c.mu.Lock()
	it := c.items[r]
	c.mu.Unlock()
	if it != nil {
		t := time.NewTimer(patience)
		defer t.Stop()
		select {
		case <-it.synced:
			it.mu.Lock()
			obj := it.obj
			it.mu.Unlock()
			if obj == nil {
				return nil, apierrors.NewNotFound(schema.GroupResource{Resource: resource(r.Kind)}, r.Name)
			}
			return obj, nil
		case <-t.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for %s %s/%s: %w", r.Kind, r.Namespace, r.Name, ctx.Err())
		}
	}
	if r.Kind == "Secret" {
		return c.cfg.Client.CoreV1().Secrets(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	}
	return c.cfg.Client.CoreV1().ConfigMaps(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
}

func resource(kind string) string {
	if kind == "Secret" {
		return "secrets"
	}
	return "configmaps"
}

// References are the ConfigMaps and Secrets that a pod's volumes, environment
// and image pulls need.
func References(pod *corev1.Pod) map[Ref]bool {
	out := map[Ref]bool{}
	add := func(kind, name string) {
		if name != "" {
			out[Ref{kind, pod.Namespace, name}] = true
		}
	}
	for _, s := range pod.Spec.ImagePullSecrets {
		add("Secret", s.Name)
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		switch {
		case v.Secret != nil:
			add("Secret", v.Secret.SecretName)
		case v.ConfigMap != nil:
			add("ConfigMap", v.ConfigMap.Name)
		case v.Projected != nil:
			for _, p := range v.Projected.Sources {
				if p.Secret != nil {
					add("Secret", p.Secret.Name)
				}
				if p.ConfigMap != nil {
					add("ConfigMap", p.ConfigMap.Name)
				}
			}
		}
	}
	env := func(vars []corev1.EnvVar, from []corev1.EnvFromSource) {
		for _, f := range from {
			if f.ConfigMapRef != nil {
				add("ConfigMap", f.ConfigMapRef.Name)
			}
			if f.SecretRef != nil {
				add("Secret", f.SecretRef.Name)
			}
		}
		for _, e := range vars {
			if e.ValueFrom == nil {
				continue
			}
			if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
				add("ConfigMap", r.Name)
			}
			if r := e.ValueFrom.SecretKeyRef; r != nil {
				add("Secret", r.Name)
			}
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			env(list[i].Env, list[i].EnvFrom)
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		env(pod.Spec.EphemeralContainers[i].Env, pod.Spec.EphemeralContainers[i].EnvFrom)
	}
	return out
}
