package objects

import (
	"context"
	"log/slog"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// Services keeps what environment variables need of every Service: name,
// cluster IP and ports.
type Services struct {
	client kubernetes.Interface
	log    *slog.Logger

	mu     sync.Mutex
	synced chan struct{}
	once   sync.Once
	byNS   map[string]map[string]*corev1.Service
}

// NewServices makes an empty set; Run fills it.
func NewServices(client kubernetes.Interface, log *slog.Logger) *Services {
	return &Services{client: client, log: log, synced: make(chan struct{}), byNS: map[string]map[string]*corev1.Service{}}
}

// Run follows the API's Services until the context ends.
func (s *Services) Run(ctx context.Context) {
	api := s.client.CoreV1().Services(metav1.NamespaceAll)
	src := Source{
		Client: s.client,
		List:   func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return api.List(ctx, o) },
		Watch:  func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return api.Watch(ctx, o) },
	}
	Follow(ctx, s.log, src, &corev1.Service{}, Feed[*corev1.Service]{
		Replaced: func(all []*corev1.Service) {
			s.mu.Lock()
			s.byNS = map[string]map[string]*corev1.Service{}
			for _, o := range all {
				s.put(o)
			}
			s.mu.Unlock()
			s.once.Do(func() { close(s.synced) })
		},
		Changed: func(o *corev1.Service) {
			s.mu.Lock()
			s.put(o)
			s.mu.Unlock()
		},
		Deleted: func(o *corev1.Service) {
			s.mu.Lock()
			delete(s.byNS[o.Namespace], o.Name)
			s.mu.Unlock()
		},
	})
}

func (s *Services) put(o *corev1.Service) {
	m := s.byNS[o.Namespace]
	if m == nil {
		m = map[string]*corev1.Service{}
		s.byNS[o.Namespace] = m
	}
	slim := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace}}
	slim.Spec.ClusterIP = o.Spec.ClusterIP
	for _, p := range o.Spec.Ports {
		slim.Spec.Ports = append(slim.Spec.Ports, corev1.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
	}
	m[o.Name] = slim
}

// Synced is closed once the Services have been read.
func (s *Services) Synced() <-chan struct{} { return s.synced }

// Links are the Services whose variables containers of the namespace get: all of
// its own if links are wanted, and the API server's in any case.
func (s *Services) Links(namespace string, links bool) []*corev1.Service {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*corev1.Service
	if links {
		for _, o := range s.byNS[namespace] {
			out = append(out, o)
		}
	}
	if k := s.byNS[metav1.NamespaceDefault]["kubernetes"]; k != nil && !(links && namespace == metav1.NamespaceDefault) {
		// The namespace's own Service of that name wins.
		if !links || s.byNS[namespace]["kubernetes"] == nil {
			out = append(out, k)
		}
	}
	return out
}
