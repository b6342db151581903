package streams

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/proxy"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// forward proxies to a location with URL rewriting and forwarding headers.
func (s *Streams) forward(w http.ResponseWriter, req *http.Request, r *seams.ConnectRequest, u *url.URL, t *http.Transport) {
	u.Path = joinPath(u.Path, r.Path)
	proxy.NewUpgradeAwareHandler(u, t, true, false, responder{r}).ServeHTTP(w, req)
}

// joinPath keeps the difference between "" and "/", which decides about a redirect.
func joinPath(base, rest string) string {
	return strings.TrimSuffix(base, "/") + rest
}

// allowed refuses addresses that a proxy must not be talked into: loopback, link-local
// and multicast ones.
func allowed(ip string) error {
	if p := net.ParseIP(ip); p == nil || !p.IsGlobalUnicast() {
		return apierrors.NewBadRequest("address not allowed")
	}
	return nil
}

// podProxy serves pods/proxy; the name may be scheme:name:port.
func (s *Streams) podProxy(w http.ResponseWriter, req *http.Request, r *seams.ConnectRequest) {
	u, err := s.podURL(req.Context(), r)
	if err != nil {
		r.Fail(err)
		return
	}
	s.forward(w, req, r, u, s.pods)
}

func (s *Streams) podURL(ctx context.Context, r *seams.ConnectRequest) (*url.URL, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(r.Name)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid pod request %q", r.Name))
	}
	p, err := s.pod(ctx, r, name)
	if err != nil {
		return nil, err
	}
	if port == "" {
		port = firstPort(p)
	}
	ip := p.Status.PodIP
	if err := allowed(ip); err != nil {
		return nil, err
	}
	u := &url.URL{Scheme: scheme, Host: ip}
	if port != "" {
		u.Host = net.JoinHostPort(ip, port)
	} else if strings.Contains(ip, ":") {
		u.Host = "[" + ip + "]"
	}
	return u, nil
}

func firstPort(p *corev1.Pod) string {
	for _, c := range p.Spec.Containers {
		if len(c.Ports) > 0 {
			return strconv.Itoa(int(c.Ports[0].ContainerPort))
		}
	}
	return ""
}

// serviceProxy serves services/proxy by one of the Service's ready endpoints.
func (s *Streams) serviceProxy(w http.ResponseWriter, req *http.Request, r *seams.ConnectRequest) {
	u, err := s.serviceURL(req.Context(), r)
	if err != nil {
		r.Fail(err)
		return
	}
	s.forward(w, req, r, u, s.pods)
}

func (s *Streams) serviceURL(ctx context.Context, r *seams.ConnectRequest) (*url.URL, error) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(r.Name)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("invalid service request %q", r.Name))
	}
	svc, err := get[*corev1.Service](ctx, r, r.Resource.GroupResource(), r.Namespace, name)
	if apierrors.IsNotFound(err) { // nobody serves it
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", r.Name))
	}
	if err != nil {
		return nil, err
	}
	if port, err = servicePort(svc, port); err != nil {
		return nil, err
	}
	cache, ok := s.c.Caches.Resource("discovery.k8s.io/endpointslices")
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("endpointslices are not served"))
	}
	list, err := cache.List(ctx, cacher.ListOptions{ResourceVersion: "0", Selection: cacher.Selection{Namespace: r.Namespace,
		Labels: labels.SelectorFromSet(labels.Set{discoveryv1.LabelServiceName: name})}})
	if err != nil {
		return nil, err
	}
	var slices []*discoveryv1.EndpointSlice
	for _, o := range list.Items {
		if es, ok := o.Runtime().(*discoveryv1.EndpointSlice); ok {
			slices = append(slices, es)
		}
	}
	host, ok := endpointOf(slices, port)
	if !ok {
		return nil, apierrors.NewServiceUnavailable(fmt.Sprintf("no endpoints available for service %q", r.Name))
	}
	ip, _, err := net.SplitHostPort(host)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	if err := allowed(ip); err != nil {
		return nil, err
	}
	return &url.URL{Scheme: scheme, Host: host}, nil
}

// servicePort is the name, as endpoint slices have it, of a Service's port given by
// name or number; none is the first.
func servicePort(svc *corev1.Service, port string) (string, error) {
	for _, p := range svc.Spec.Ports {
		if port == "" || p.Name == port || strconv.Itoa(int(p.Port)) == port {
			return p.Name, nil
		}
	}
	return "", apierrors.NewServiceUnavailable(fmt.Sprintf("no service port %q found for service %q", port, svc.Name))
}

// nodeProxy serves nodes/proxy: the kubelet, or another port of the node.
func (s *Streams) nodeProxy(w http.ResponseWriter, req *http.Request, r *seams.ConnectRequest) {
	scheme, name, port, ok := utilnet.SplitSchemeNamePort(r.Name)
	if !ok {
		r.Fail(apierrors.NewBadRequest(fmt.Sprintf("invalid node request %q", r.Name)))
		return
	}
	u, err := s.kubelet(req.Context(), r, name)
	if err != nil {
		r.Fail(err)
		return
	}
	if port == "" || port == u.Port() {
		s.forward(w, req, r, u, s.kubelets)
		return
	}
	if err := allowed(u.Hostname()); err != nil {
		r.Fail(err)
		return
	}
	s.forward(w, req, r, &url.URL{Scheme: scheme, Host: net.JoinHostPort(u.Hostname(), port)}, s.pods)
}
