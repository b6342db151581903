package probes

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// maxOutput of a probe that is kept.
const maxOutput = 10 << 10

// UserAgent of HTTP and gRPC probes; programs recognise it by the prefix.
const UserAgent = "kube-probe/1.37"

// Exec runs a command in a container and returns its output and exit code.
type Exec func(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (output []byte, code int32, err error)

// Runner carries out probes for Config.Run.
func Runner(exec Exec) func(context.Context, *corev1.Pod, string, Target, *corev1.Probe) (bool, string, error) {
	return func(ctx context.Context, pod *corev1.Pod, podIP string, t Target, p *corev1.Probe) (bool, string, error) {
		switch {
		case p.Exec != nil:
			timeout := max(time.Duration(p.TimeoutSeconds)*time.Second, time.Second)
			out, code, err := exec(ctx, t.ID, p.Exec.Command, timeout)
			if status.Code(err) == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded) {
				return false, fmt.Sprintf("command timed out: %q timed out after %v", strings.Join(p.Exec.Command, " "), timeout), nil
			}
			if err != nil {
				return false, "", err
			}
			return code == 0, limit(string(out)), nil
		case p.HTTPGet != nil:
			u, header, err := HTTPTarget(t.Container, podIP, p.HTTPGet)
			if err != nil {
				return false, "", err
			}
			ok, out := Get(ctx, u, header)
			return ok, out, nil
		case p.TCPSocket != nil:
			port, err := ResolvePort(p.TCPSocket.Port, t.Container)
			if err != nil {
				return false, "", err
			}
			host := p.TCPSocket.Host
			if host == "" {
				host = podIP
			}
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(port)))
			if err != nil {
				return false, err.Error(), nil
			}
			_ = conn.Close()
			return true, "", nil
		case p.GRPC != nil:
			ok, out := health(ctx, net.JoinHostPort(podIP, strconv.Itoa(int(p.GRPC.Port))), p.GRPC.Service, time.Duration(p.TimeoutSeconds)*time.Second)
			return ok, out, nil
		}
		return false, "", fmt.Errorf("missing probe handler for %s_%s:%s", pod.Name, pod.Namespace, t.Container.Name)
	}
}

// ResolvePort turns a port number or the name of a container's port into a number.
func ResolvePort(p intstr.IntOrString, c *corev1.Container) (int, error) {
	port := p.IntValue()
	if p.Type == intstr.String {
		found := false
		for _, cp := range c.Ports {
			if cp.Name == p.StrVal {
				port, found = int(cp.ContainerPort), true
			}
		}
		if !found {
			n, err := strconv.Atoi(p.StrVal)
			if err != nil {
				return 0, fmt.Errorf("couldn't find port: %v in container %s", p.StrVal, c.Name)
			}
			port = n
		}
	}
	if port <= 0 || port > 65535 {
		return 0, fmt.Errorf("invalid port number: %v", port)
	}
	return port, nil
}

// HTTPTarget is the URL and header of an httpGet handler.
func HTTPTarget(c *corev1.Container, podIP string, g *corev1.HTTPGetAction) (*url.URL, http.Header, error) {
	port, err := ResolvePort(g.Port, c)
	if err != nil {
		return nil, nil, err
	}
	host := g.Host
	if host == "" {
		host = podIP
	}
	scheme := strings.ToLower(string(g.Scheme))
	if scheme == "" {
		scheme = "http"
	}
	u, err := url.Parse(g.Path)
	if err != nil {
		u = &url.URL{Path: g.Path}
	}
	u.Scheme, u.Host = scheme, net.JoinHostPort(host, strconv.Itoa(port))
	if u.Path != "" && !strings.HasPrefix(u.Path, "/") {
		u.Path = "/" + u.Path
	}
	h := http.Header{}
	for _, kv := range g.HTTPHeaders {
		h.Add(kv.Name, kv.Value)
	}
	if _, ok := h["User-Agent"]; !ok {
		h.Set("User-Agent", UserAgent)
	}
	if _, ok := h["Accept"]; !ok {
		h.Set("Accept", "*/*")
	} else if h.Get("Accept") == "" {
		h.Del("Accept")
	}
	return u, h, nil
}

// Get asks a URL: 200 to 399 is success. Redirects to other hosts are success
// without being followed.
func Get(ctx context.Context, u *url.URL, h http.Header) (bool, string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return false, err.Error()
	}
	req.Header = h
	if host := h.Get("Host"); host != "" {
		req.Host = host
	}
	tr := &http.Transport{
		TLSClientConfig:    &tls.Config{InsecureSkipVerify: true}, // containers have certificates of all kinds
		DisableKeepAlives:  true,
		DisableCompression: true,
		Proxy:              nil,
	}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, CheckRedirect: func(next *http.Request, via []*http.Request) error {
		if next.URL.Hostname() != via[0].URL.Hostname() {
			return http.ErrUseLastResponse
		}
		if len(via) >= 10 {
			return errors.New("stopped after 10 redirects")
		}
		return nil
	}}
	resp, err := client.Do(req)
	if err != nil {
		return false, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
	if err != nil {
		return false, err.Error()
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 400 {
		return true, string(body)
	}
	return false, fmt.Sprintf("HTTP probe failed with statuscode: %d", resp.StatusCode)
}

func health(ctx context.Context, addr string, service *string, timeout time.Duration) (bool, string) {
	name := ""
	if service != nil {
		name = *service
	}
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithUserAgent(UserAgent))
	if err != nil {
		return false, fmt.Sprintf("error: failed to connect service at %q: %+v", addr, err)
	}
	defer conn.Close()
	resp, err := grpc_health_v1.NewHealthClient(conn).Check(metadata.NewOutgoingContext(ctx, nil), &grpc_health_v1.HealthCheckRequest{Service: name}, grpc.WaitForReady(true))
	switch status.Code(err) {
	case codes.OK:
	case codes.Unimplemented:
		return false, fmt.Sprintf("error: this server does not implement the grpc health protocol (grpc.health.v1.Health): %s", status.Convert(err).Message())
	case codes.DeadlineExceeded:
		return false, fmt.Sprintf("timeout: failed to connect service %q within %v: %s", addr, timeout, status.Convert(err).Message())
	default:
		return false, fmt.Sprintf("error: health rpc failed: %v", err)
	}
	if resp.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		return false, fmt.Sprintf("service unhealthy (responded with %q)", resp.Status)
	}
	return true, "service healthy"
}

func limit(s string) string {
	if len(s) > maxOutput {
		return s[:maxOutput]
	}
	return s
}
