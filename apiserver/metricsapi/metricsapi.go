// Package metricsapi measures what nodes and pods use and answers for metrics.k8s.io as
// metrics-server does, from the resource metrics of kubelets, ours and upstream's.
//
// Nothing is measured while nobody asks: a question finds the counters of the last one, or
// those of a second ago. Owns: asking kubelets, rates. Must not: store, serve HTTP.
package metricsapi

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

// Config configures a Source.
type Config struct {
	// Caches hold nodes and pods.
	Caches lookup.Caches
	// Kubelets authenticates to kubelets; nil: without a certificate, to whoever answers.
	Kubelets *tls.Config
	Log      *slog.Logger
	// Clock defaults to the real one.
	Clock clock.Clock
}

// Source measures on demand. It is safe for concurrent use.
type Source struct {
	Config
	client *http.Client

	mu    sync.Mutex
	nodes map[string]*node
}

const (
	// fresh is how long an answer holds: who asks again sooner gets the same.
	fresh = 10 * time.Second
	// longest is how far apart two readings may be: over more time a rate says little about now.
	longest = 60 * time.Second
	// shortest is how far apart they are when there is no earlier one.
	shortest = time.Second
	// patience is how long a kubelet may take.
	patience = 10 * time.Second
	// atOnce bounds how many kubelets are asked at a time.
	atOnce = 64
)

var (
	nodeResource = schema.GroupResource{Resource: "nodes"}
	podResource  = schema.GroupResource{Resource: "pods"}
)

// New returns a Source; it starts nothing.
func New(c Config) (*Source, error) {
	if c.Caches == nil {
		return nil, errors.New("metricsapi: Caches must be set")
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	conf := &tls.Config{}
	if c.Kubelets != nil {
		conf = c.Kubelets.Clone()
	}
	if conf.RootCAs == nil {
		conf.InsecureSkipVerify = true // as with logs and exec, where no authority is given
	}
	return &Source{Config: c, nodes: map[string]*node{}, client: &http.Client{Timeout: patience, Transport: &http.Transport{
		DialContext:     (&net.Dialer{Timeout: patience / 2}).DialContext,
		TLSClientConfig: conf, TLSHandshakeTimeout: patience / 2, ForceAttemptHTTP2: true, IdleConnTimeout: 2 * longest,
	}}}, nil
}

// Nodes are the metrics of the nodes that the request is about; those that do not answer
// are left out.
func (s *Source) Nodes(ctx context.Context) []runtime.Object {
	all, err := lookup.CachedList[*corev1.Node](ctx, s.Caches, nodeResource, "")
	if err != nil {
		s.Log.Warn("list nodes for their metrics", "err", err)
		return nil
	}
	if name := nameOf(ctx); name != "" {
		all = slices.DeleteFunc(all, func(n *corev1.Node) bool { return n.Name != name })
	}
	windows := s.measure(ctx, all)
	var out []runtime.Object
	for _, n := range all {
		w := windows[n.Name]
		if w == nil || w.node.window <= 0 {
			continue
		}
		out = append(out, &metricsv1beta1.NodeMetrics{
			ObjectMeta: s.meta(n.ObjectMeta), Timestamp: metav1.NewTime(w.node.at), Window: metav1.Duration{Duration: w.node.window}, Usage: w.node.list(),
		})
	}
	s.forget(all, nameOf(ctx) == "")
	return out
}

// Pods are the metrics of running pods; one of which a container has not been measured yet
// is left out, as half of a pod would mislead an autoscaler.
func (s *Source) Pods(ctx context.Context) []runtime.Object {
	namespace := ""
	if info, ok := request.RequestInfoFrom(ctx); ok {
		namespace = info.Namespace
	}
	pods, err := lookup.CachedList[*corev1.Pod](ctx, s.Caches, podResource, namespace)
	if err != nil {
		s.Log.Warn("list pods for their metrics", "err", err)
		return nil
	}
	name := nameOf(ctx)
	on := map[string]bool{}
	pods = slices.DeleteFunc(pods, func(p *corev1.Pod) bool {
		drop := name != "" && p.Name != name || p.Spec.NodeName == "" || p.Status.Phase != corev1.PodRunning
		if !drop {
			on[p.Spec.NodeName] = true
		}
		return drop
	})
	all, err := lookup.CachedList[*corev1.Node](ctx, s.Caches, nodeResource, "")
	if err != nil {
		s.Log.Warn("list nodes for metrics of pods", "err", err)
		return nil
	}
	windows := s.measure(ctx, slices.DeleteFunc(all, func(n *corev1.Node) bool { return !on[n.Name] }))
	var out []runtime.Object
	for _, p := range pods {
		if w := windows[p.Spec.NodeName]; w != nil {
			if m := s.pod(p, w.pods[podKey{p.Namespace, p.Name}]); m != nil {
				out = append(out, m)
			}
		}
	}
	slices.SortFunc(out, func(a, b runtime.Object) int {
		x, y := a.(*metricsv1beta1.PodMetrics), b.(*metricsv1beta1.PodMetrics)
		return cmp.Or(cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name))
	})
	return out
}

// pod makes the object of a pod's containers; nil: not all that run are known.
func (s *Source) pod(p *corev1.Pod, containers map[string]usage) *metricsv1beta1.PodMetrics {
	out := &metricsv1beta1.PodMetrics{ObjectMeta: s.meta(p.ObjectMeta), Containers: []metricsv1beta1.ContainerMetrics{}}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if c.State.Running == nil {
			continue
		}
		u, known := containers[c.Name]
		if !known {
			return nil
		}
		out.Containers = append(out.Containers, metricsv1beta1.ContainerMetrics{Name: c.Name, Usage: u.list()})
		// The pod's time is that of its oldest reading: all figures hold then.
		if out.Timestamp.IsZero() || u.at.Before(out.Timestamp.Time) {
			out.Timestamp, out.Window = metav1.NewTime(u.at), metav1.Duration{Duration: u.window}
		}
	}
	if len(out.Containers) == 0 {
		return nil
	}
	slices.SortFunc(out.Containers, func(a, b metricsv1beta1.ContainerMetrics) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// meta is what metrics carry of their subject: selectors of labels work as on it.
func (s *Source) meta(of metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Name: of.Name, Namespace: of.Namespace, Labels: of.Labels, CreationTimestamp: metav1.NewTime(s.Clock.Now()).Rfc3339Copy()}
}

func nameOf(ctx context.Context) string {
	info, ok := request.RequestInfoFrom(ctx)
	if !ok {
		return ""
	}
	return info.Name
}

func (u usage) list() corev1.ResourceList {
	return corev1.ResourceList{
		corev1.ResourceCPU:    *resource.NewScaledQuantity(int64(u.nanoCores), resource.Nano),
		corev1.ResourceMemory: *resource.NewQuantity(int64(u.memory), resource.BinarySI),
	}
}

// measure asks the kubelets, many at a time, and returns what each said by its node's name.
func (s *Source) measure(ctx context.Context, nodes []*corev1.Node) map[string]*window {
	var mu sync.Mutex
	out := map[string]*window{}
	var g errgroup.Group
	g.SetLimit(atOnce)
	for _, n := range nodes {
		g.Go(func() error {
			w, err := s.nodeOf(n.Name).measure(ctx, s, n)
			if err != nil {
				if ctx.Err() == nil {
					s.Log.Warn("read a node's metrics", "node", n.Name, "err", err)
				}
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			out[n.Name] = w
			return nil
		})
	}
	_ = g.Wait() // none fails: what a node did not say is left out
	return out
}

func (s *Source) nodeOf(name string) *node {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.nodes[name]
	if n == nil {
		n = &node{turn: make(chan struct{}, 1)}
		s.nodes[name] = n
	}
	return n
}

// forget drops readings of nodes that are gone, once all that there are have been listed.
func (s *Source) forget(all []*corev1.Node, complete bool) {
	if !complete {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	there := map[string]bool{}
	for _, n := range all {
		there[n.Name] = true
	}
	for name := range s.nodes {
		if !there[name] {
			delete(s.nodes, name)
		}
	}
}

// node keeps the last reading of one node, and what was made of it.
type node struct {
	turn    chan struct{} // held by the one who asks the kubelet
	asked   time.Time
	last    *reading
	current *window
}

// measure returns the window that ends now, or that of a moment ago.
func (n *node) measure(ctx context.Context, s *Source, of *corev1.Node) (*window, error) {
	select {
	case n.turn <- struct{}{}:
		defer func() { <-n.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	now := s.Clock.Now()
	if n.current != nil && now.Sub(n.asked) < fresh {
		return n.current, nil
	}
	if n.last == nil || now.Sub(n.asked) > longest {
		first, err := s.read(ctx, of)
		if err != nil {
			return nil, err
		}
		n.last = first
		select {
		case <-s.Clock.After(shortest):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	next, err := s.read(ctx, of)
	if err != nil {
		return nil, err
	}
	w := between(n.last, next)
	if w.node.window <= 0 {
		// A kubelet that reads its counters by the clock has not done so meanwhile; its own
		// rates are at hand.
		if w, err = s.summary(ctx, of); err != nil {
			return nil, err
		}
	}
	n.asked, n.last, n.current = s.Clock.Now(), next, w
	return w, nil
}

// address is where a node's kubelet serves. IPs come first: names need not resolve here.
func address(n *corev1.Node) (string, error) {
	port := cmp.Or(n.Status.DaemonEndpoints.KubeletEndpoint.Port, 10250)
	for _, t := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName} {
		for _, a := range n.Status.Addresses {
			if a.Type == t && a.Address != "" {
				return net.JoinHostPort(a.Address, fmt.Sprint(port)), nil
			}
		}
	}
	return "", fmt.Errorf("node %s has no address", n.Name)
}
