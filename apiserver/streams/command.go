package streams

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	translate "k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/skiff-k8s/skiff/apiserver/authz"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// execOptions decodes the query for admission.
func execOptions(req *http.Request) runtime.Object {
	q := req.URL.Query()
	o := &corev1.PodExecOptions{Stdin: boolean(q, "stdin"), Stdout: boolean(q, "stdout"), Stderr: boolean(q, "stderr"),
		TTY: boolean(q, "tty"), Container: q.Get("container"), Command: q["command"]}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodExecOptions"))
	return o
}

func attachOptions(req *http.Request) runtime.Object {
	q := req.URL.Query()
	o := &corev1.PodAttachOptions{Stdin: boolean(q, "stdin"), Stdout: boolean(q, "stdout"), Stderr: boolean(q, "stderr"),
		TTY: boolean(q, "tty"), Container: q.Get("container")}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodAttachOptions"))
	return o
}

func portForwardOptions(req *http.Request) runtime.Object {
	o := &corev1.PodPortForwardOptions{}
	for _, p := range req.URL.Query()["ports"] {
		if n, err := strconv.ParseInt(p, 10, 32); err == nil {
			o.Ports = append(o.Ports, int32(n))
		}
	}
	o.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodPortForwardOptions"))
	return o
}

func (s *Streams) exec(w http.ResponseWriter, req *http.Request, r *seams.ConnectRequest) {
	s.command(w, req, r, "exec", req.URL.Query()["command"])
}

func (s *Streams) attach(w http.ResponseWriter, req *http.Request, r *seams.ConnectRequest) {
	s.command(w, req, r, "attach", nil)
}

// command serves exec and attach. Clients speak SPDY, which is passed through, or
// WebSocket with v5.channel.k8s.io (KEP-4006), which is translated to SPDY; older
// WebSocket protocols are the kubelet's own and pass through as well.
func (s *Streams) command(w http.ResponseWriter, req *http.Request, r *seams.ConnectRequest, what string, command []string) {
	q := req.URL.Query()
	u, err := s.commandURL(req, r, what, q, command)
	if err != nil {
		r.Fail(err)
		return
	}
	h := http.Handler(proxy.NewUpgradeAwareHandler(u, s.kubelets, false, true, responder{r}))
	h = translate.NewTranslatingHandler(h, translate.NewStreamTranslatorHandler(u, s.kubelets, 0, translate.Options{
		Stdin: boolean(q, "stdin"), Stdout: boolean(q, "stdout"), Stderr: boolean(q, "stderr"), Tty: boolean(q, "tty"),
	}), wsstream.IsWebSocketRequestWithStreamCloseProtocol)
	h.ServeHTTP(w, req)
}

func (s *Streams) commandURL(req *http.Request, r *seams.ConnectRequest, what string, q url.Values, command []string) (*url.URL, error) {
	ctx := req.Context()
	if err := s.mayCreate(ctx, r); err != nil {
		return nil, err
	}
	p, err := s.pod(ctx, r, r.Name)
	if err != nil {
		return nil, err
	}
	c, err := container(p, q.Get("container"))
	if err != nil {
		return nil, err
	}
	u, err := s.kubeletOf(ctx, r, p)
	if err != nil {
		return nil, err
	}
	out := url.Values{}
	for param, kubelets := range map[string]string{"stdin": "input", "stdout": "output", "stderr": "error", "tty": "tty"} {
		if boolean(q, param) {
			out.Set(kubelets, "1")
		}
	}
	for _, a := range command {
		out.Add("command", a)
	}
	u.Path = fmt.Sprintf("/%s/%s/%s/%s", what, p.Namespace, p.Name, c)
	u.RawQuery = out.Encode()
	return u, nil
}

func (s *Streams) kubeletOf(ctx context.Context, r *seams.ConnectRequest, p *corev1.Pod) (*url.URL, error) {
	if p.Spec.NodeName == "" {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("pod %s does not have a host assigned", p.Name))
	}
	return s.kubelet(ctx, r, p.Spec.NodeName)
}

// portForward serves pods/portforward: SPDY, or SPDY tunnelled through WebSocket.
func (s *Streams) portForward(w http.ResponseWriter, req *http.Request, r *seams.ConnectRequest) {
	ctx := req.Context()
	err := s.mayCreate(ctx, r)
	var p *corev1.Pod
	if err == nil {
		p, err = s.pod(ctx, r, r.Name)
	}
	var u *url.URL
	if err == nil {
		u, err = s.kubeletOf(ctx, r, p)
	}
	if err != nil {
		r.Fail(err)
		return
	}
	u.Path = fmt.Sprintf("/portForward/%s/%s", p.Namespace, p.Name)
	if ports := req.URL.Query()["ports"]; len(ports) > 0 {
		out := url.Values{}
		for _, port := range ports {
			out.Add("port", port)
		}
		u.RawQuery = out.Encode()
	}
	h := http.Handler(proxy.NewUpgradeAwareHandler(u, s.kubelets, false, true, responder{r}))
	h = translate.NewTranslatingHandler(h, translate.NewTunnelingHandler(h), wsstream.IsWebSocketRequestWithTunnelingProtocol)
	h.ServeHTTP(w, req)
}

// mayCreate: opening a stream by a WebSocket's GET takes the right to create too.
func (s *Streams) mayCreate(ctx context.Context, r *seams.ConnectRequest) error {
	info, ok := request.RequestInfoFrom(ctx)
	if s.c.Authorizer == nil || !ok || info.Verb == "create" {
		return nil
	}
	a := authorizer.AttributesRecord{User: r.User, Verb: "create", Namespace: info.Namespace, Name: info.Name, APIGroup: info.APIGroup,
		APIVersion: info.APIVersion, Resource: info.Resource, Subresource: info.Subresource, ResourceRequest: true, Path: info.Path}
	decision, reason, err := s.c.Authorizer.Authorize(ctx, a)
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	return authz.Forbidden(a, reason)
}

// responder answers errors of a proxy.
type responder struct{ r *seams.ConnectRequest }

func (p responder) Error(_ http.ResponseWriter, _ *http.Request, err error) { p.r.Fail(err) }
