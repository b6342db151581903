// Package streams connects clients with kubelets, pods and services: log, exec, attach,
// port-forward and proxy.
//
// Owns: finding the other end and carrying bytes to it. Must not: understand what is
// carried.
package streams

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// Config is what connections are made with.
type Config struct {
	// TLS authenticates the API server to kubelets. Without RootCAs the kubelet's
	// certificate is not verified, as upstream without --kubelet-certificate-authority.
	TLS *tls.Config
	// Caches finds a Service's endpoints.
	Caches cacher.Set
	// Authorizer decides about exec, attach and port-forward by GET, which take the
	// permission to create as well.
	Authorizer authorizer.UnconditionalAuthorizer
	Logger     *slog.Logger
}

// Streams makes the connections.
type Streams struct {
	c        Config
	kubelets *http.Transport // for kubelets
	insecure *http.Transport // for kubelets, where the client gave up on verification
	pods     *http.Transport // for pods and services, which are not verified
}

// New returns a Streams; it keeps idle connections only while it is used.
func New(c Config) *Streams {
	conf := &tls.Config{}
	if c.TLS != nil {
		conf = c.TLS.Clone()
	}
	conf.NextProtos = nil // upgrades need HTTP/1.1
	if conf.RootCAs == nil {
		conf.InsecureSkipVerify = true
	}
	insecure := conf.Clone()
	insecure.InsecureSkipVerify = true
	return &Streams{c: c, kubelets: transport(conf), insecure: transport(insecure), pods: transport(&tls.Config{InsecureSkipVerify: true})}
}

func transport(c *tls.Config) *http.Transport {
	d := &net.Dialer{Timeout: 10 * time.Second, KeepAlive: 30 * time.Second}
	return &http.Transport{
		DialContext: d.DialContext, TLSClientConfig: c, TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 4, IdleConnTimeout: 30 * time.Second,
	}
}

// Close drops idle connections.
func (s *Streams) Close() {
	for _, t := range []*http.Transport{s.kubelets, s.insecure, s.pods} {
		t.CloseIdleConnections()
	}
}

// Endpoints are the subresources served.
func (s *Streams) Endpoints() []seams.Endpoint {
	pods, services, nodes := schema.GroupResource{Resource: "pods"}, schema.GroupResource{Resource: "services"}, schema.GroupResource{Resource: "nodes"}
	kind := corev1.SchemeGroupVersion.WithKind
	proxied := []string{"create", "delete", "get", "patch", "update"}
	return []seams.Endpoint{
		{Resource: pods, Subresource: "log", Kind: kind("Pod"), Verbs: []string{"get"}, Connect: s.log},
		{Resource: pods, Subresource: "exec", Kind: kind("PodExecOptions"), Connect: s.exec, Options: execOptions},
		{Resource: pods, Subresource: "attach", Kind: kind("PodAttachOptions"), Connect: s.attach, Options: attachOptions},
		{Resource: pods, Subresource: "portforward", Kind: kind("PodPortForwardOptions"), Connect: s.portForward, Options: portForwardOptions},
		{Resource: pods, Subresource: "proxy", Kind: kind("PodProxyOptions"), Verbs: proxied, Connect: s.podProxy},
		{Resource: services, Subresource: "proxy", Kind: kind("ServiceProxyOptions"), Verbs: proxied, Connect: s.serviceProxy},
		{Resource: nodes, Subresource: "proxy", Kind: kind("NodeProxyOptions"), Verbs: proxied, Connect: s.nodeProxy},
	}
}

func get[T any](ctx context.Context, r *seams.ConnectRequest, gr schema.GroupResource, namespace, name string) (T, error) {
	var none T
	store, ok := r.Stores.Store(gr)
	if !ok {
		return none, apierrors.NewInternalError(fmt.Errorf("%s are not served", gr))
	}
	o, err := store.Get(ctx, namespace, name, "")
	if err != nil {
		return none, err
	}
	obj, ok := o.Runtime().(T)
	if !ok {
		return none, apierrors.NewInternalError(fmt.Errorf("%s %s is a %T", gr, name, o.Runtime()))
	}
	return obj, nil
}

func (s *Streams) pod(ctx context.Context, r *seams.ConnectRequest, name string) (*corev1.Pod, error) {
	return get[*corev1.Pod](ctx, r, schema.GroupResource{Resource: "pods"}, r.Namespace, name)
}

// kubelet is the address of a node's kubelet.
func (s *Streams) kubelet(ctx context.Context, r *seams.ConnectRequest, node string) (*url.URL, error) {
	n, err := get[*corev1.Node](ctx, r, schema.GroupResource{Resource: "nodes"}, "", node)
	if err != nil {
		return nil, err
	}
	host, err := nodeAddress(n)
	if err != nil {
		return nil, err
	}
	port := n.Status.DaemonEndpoints.KubeletEndpoint.Port
	if port == 0 {
		port = 10250
	}
	return &url.URL{Scheme: "https", Host: net.JoinHostPort(host, strconv.Itoa(int(port)))}, nil
}

// nodeAddress prefers IPs: names of nodes need not resolve on control planes.
func nodeAddress(n *corev1.Node) (string, error) {
	for _, t := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP, corev1.NodeHostName, corev1.NodeInternalDNS, corev1.NodeExternalDNS} {
		for _, a := range n.Status.Addresses {
			if a.Type == t && a.Address != "" {
				return a.Address, nil
			}
		}
	}
	return "", apierrors.NewInternalError(fmt.Errorf("no preferred addresses found; known addresses: %v", n.Status.Addresses))
}

// container checks the name of a container, or finds the only one.
func container(p *corev1.Pod, name string) (string, error) {
	var names []string
	for _, c := range p.Spec.InitContainers {
		names = append(names, c.Name)
	}
	for _, c := range p.Spec.Containers {
		names = append(names, c.Name)
	}
	for _, c := range p.Spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	if name != "" {
		for _, n := range names {
			if n == name {
				return name, nil
			}
		}
		return "", apierrors.NewBadRequest(fmt.Sprintf("container %s is not valid for pod %s", name, p.Name))
	}
	switch len(p.Spec.Containers) {
	case 1:
		return p.Spec.Containers[0].Name, nil
	case 0:
		return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s", p.Name))
	}
	return "", apierrors.NewBadRequest(fmt.Sprintf("a container name must be specified for pod %s, choose one of: %s", p.Name, names))
}

// endpointOf picks a ready endpoint of a Service's port.
func endpointOf(slices []*discoveryv1.EndpointSlice, port string) (string, bool) {
	for _, es := range slices {
		var number int32
		for _, p := range es.Ports {
			if p.Port != nil && (port == "" || (p.Name != nil && *p.Name == port) || strconv.Itoa(int(*p.Port)) == port) {
				number = *p.Port
				break
			}
		}
		if number == 0 {
			continue
		}
		for _, e := range es.Endpoints {
			if (e.Conditions.Ready == nil || *e.Conditions.Ready) && len(e.Addresses) > 0 {
				return net.JoinHostPort(e.Addresses[0], strconv.Itoa(int(number))), true
			}
		}
	}
	return "", false
}
