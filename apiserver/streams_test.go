package apiserver_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	clientportforward "k8s.io/client-go/tools/portforward"
	clientremote "k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	"k8s.io/client-go/util/exec"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

// fakeKubelet streams as kubelets do, by the library that they use.
type fakeKubelet struct{}

func (fakeKubelet) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	if len(req.TLS.PeerCertificates) == 0 {
		http.Error(w, "no client certificate", http.StatusUnauthorized)
		return
	}
	parts := strings.Split(strings.Trim(req.URL.Path, "/"), "/")
	switch parts[0] {
	case "containerLogs":
		if parts[3] == "silent" {
			http.Error(w, "container is waiting to start", http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "%s?%s\n", strings.Join(parts[1:], "/"), req.URL.RawQuery)
	case "exec":
		o, err := remotecommand.NewOptions(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		remotecommand.ServeExec(w, req, fakeKubelet{}, parts[2], "", parts[3], req.URL.Query()["command"], o, time.Minute, time.Minute, remotecommand.SupportedStreamingProtocols)
	case "portForward":
		o, err := portforward.NewV4Options(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		portforward.ServePortForward(w, req, fakeKubelet{}, parts[2], "", o, time.Minute, time.Minute, portforward.SupportedProtocols)
	case "stats":
		fmt.Fprintf(w, "stats %s", req.URL.RawQuery)
	default:
		http.NotFound(w, req)
	}
}

// ExecInContainer copies its input to its output, tells its command, and fails with 3.
func (fakeKubelet) ExecInContainer(_ context.Context, name, _, container string, cmd []string, in io.Reader, out, errw io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if in != nil {
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%s %s %v", name, container, cmd)
	if cmd[0] == "fail" {
		fmt.Fprint(errw, "failed")
		return exec.CodeExitError{Err: fmt.Errorf("exit 3"), Code: 3}
	}
	return nil
}

// PortForward echoes in upper case.
func (fakeKubelet) PortForward(_ context.Context, _, _ string, port int32, s io.ReadWriteCloser) error {
	defer s.Close()
	b := make([]byte, 5)
	if _, err := io.ReadFull(s, b); err != nil {
		return err
	}
	_, err := fmt.Fprintf(s, "%d %s", port, bytes.ToUpper(b))
	return err
}

// streaming is a server with a node whose kubelet is fake, and a pod on it.
func streaming(t *testing.T) (*servertest.Server, kubernetes.Interface) {
	t.Helper()
	kubelet := httptest.NewUnstartedServer(fakeKubelet{})
	kubelet.TLS = &tls.Config{ClientAuth: tls.RequestClientCert}
	kubelet.StartTLS()
	t.Cleanup(kubelet.Close)
	roots := x509.NewCertPool()
	roots.AddCert(kubelet.Certificate())
	s := servertest.New(t, func(c *apiserver.Config) {
		c.KubeletTLS = &tls.Config{RootCAs: roots, Certificates: kubelet.TLS.Certificates}
	})
	k, err := kubernetes.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(kubelet.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	namespace(t, k, "default")
	n, err := k.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
	if _, err = k.CoreV1().Nodes().UpdateStatus(ctx, n, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, node := range map[string]string{"p": "n", "unscheduled": ""} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: node,
			Containers: []corev1.Container{{Name: "c", Image: "i"}, {Name: "silent", Image: "i"}}}}
		if _, err := k.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return s, k
}

func TestLog(t *testing.T) {
	_, k := streaming(t)
	ten := int64(10)
	for _, c := range []struct {
		pod  string
		o    corev1.PodLogOptions
		want string
		err  string
	}{
		{"p", corev1.PodLogOptions{Container: "c", Follow: true, TailLines: &ten, Timestamps: true}, "default/p/c?follow=true&stream=All&tailLines=10&timestamps=true\n", ""},
		{"p", corev1.PodLogOptions{}, "", "a container name must be specified for pod p, choose one of: [c silent]"},
		{"p", corev1.PodLogOptions{Container: "x"}, "", "container x is not valid for pod p"},
		{"p", corev1.PodLogOptions{Container: "silent"}, "", "container is waiting to start\n"},
		{"unscheduled", corev1.PodLogOptions{Container: "c"}, "", ""},
		{"none", corev1.PodLogOptions{}, "", `pods "none" not found`},
	} {
		var got []byte
		text := ""
		if r, err := k.CoreV1().Pods("default").GetLogs(c.pod, &c.o).Stream(t.Context()); err != nil {
			text = err.Error()
		} else if got, err = io.ReadAll(r); err != nil {
			t.Error(err)
		}
		if string(got) != c.want && c.err == "" || text != c.err {
			t.Errorf("%s %+v: %q %q, want %q %q", c.pod, c.o, got, text, c.want, c.err)
		}
	}
}

func TestExec(t *testing.T) {
	s, k := streaming(t)
	conf := s.Config()
	for _, c := range []struct {
		name    string
		execute func(u *url.URL) (clientremote.Executor, error)
	}{
		{"SPDY", func(u *url.URL) (clientremote.Executor, error) { return clientremote.NewSPDYExecutor(conf, "POST", u) }},
		{"WebSocket", func(u *url.URL) (clientremote.Executor, error) {
			return clientremote.NewWebSocketExecutor(conf, "GET", u.String())
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			run := func(in io.Reader, cmd ...string) (string, string, error) {
				req := k.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name("p").SubResource("exec").
					VersionedParams(&corev1.PodExecOptions{Container: "c", Command: cmd, Stdin: in != nil, Stdout: true, Stderr: true}, scheme.ParameterCodec)
				e, err := c.execute(req.URL())
				if err != nil {
					t.Fatal(err)
				}
				var out, errw bytes.Buffer
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err = e.StreamWithContext(ctx, clientremote.StreamOptions{Stdin: in, Stdout: &out, Stderr: &errw})
				return out.String(), errw.String(), err
			}
			out, _, err := run(strings.NewReader("hello "), "cat", "-")
			if err != nil || out != "hello p c [cat -]" {
				t.Errorf("cat: %q %v", out, err)
			}
			out, errw, err := run(nil, "fail")
			code, ok := err.(exec.CodeExitError)
			if !ok || code.Code != 3 || out != "p c [fail]" || errw != "failed" {
				t.Errorf("fail: %q %q %v", out, errw, err)
			}
		})
	}
}

func TestPortForward(t *testing.T) {
	s, k := streaming(t)
	conf := s.Config()
	u := k.CoreV1().RESTClient().Post().Resource("pods").Namespace("default").Name("p").SubResource("portforward").URL()
	rt, upgrader, err := spdy.RoundTripperFor(conf)
	if err != nil {
		t.Fatal(err)
	}
	tunnel, err := clientportforward.NewSPDYOverWebsocketDialer(u, conf)
	if err != nil {
		t.Fatal(err)
	}
	spdyDialer := spdy.NewDialer(upgrader, &http.Client{Transport: rt}, "POST", u)
	for i := range 2 {
		stop, ready := make(chan struct{}), make(chan struct{})
		var fw *clientportforward.PortForwarder
		if i == 0 {
			fw, err = clientportforward.New(spdyDialer, []string{"0:80"}, stop, ready, io.Discard, io.Discard)
		} else {
			fw, err = clientportforward.New(tunnel, []string{"0:80"}, stop, ready, io.Discard, io.Discard)
		}
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- fw.ForwardPorts() }()
		select {
		case <-ready:
		case err := <-done:
			t.Fatalf("dialer %d: %v", i, err)
		}
		ports, err := fw.GetPorts()
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprint(c, "hello")
		got, err := io.ReadAll(c)
		if err != nil || string(got) != "80 HELLO" {
			t.Errorf("dialer %d: %q %v", i, got, err)
		}
		c.Close()
		close(stop)
		<-done
	}
}

func TestProxy(t *testing.T) {
	_, k := streaming(t)
	got, err := k.CoreV1().RESTClient().Get().Resource("nodes").Name("n").SubResource("proxy").Suffix("stats/summary").Param("x", "y").DoRaw(t.Context())
	if err != nil || string(got) != "stats x=y" {
		t.Errorf("node: %q %v", got, err)
	}
	_, err = k.CoreV1().RESTClient().Get().Namespace("default").Resource("pods").Name("p").SubResource("proxy").DoRaw(t.Context())
	if !apierrors.IsBadRequest(err) {
		t.Errorf("pod without address: %v", err)
	}
	// Every method goes through, OPTIONS too, which has no verb in Kubernetes.
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		got, err := k.CoreV1().RESTClient().Verb(method).Resource("nodes").Name("n").SubResource("proxy").Suffix("stats/summary").DoRaw(t.Context())
		if want := "stats "; err != nil || string(got) != want && method != "HEAD" {
			t.Errorf("%s: %q %v", method, got, err)
		}
	}
	var code int
	k.CoreV1().RESTClient().Verb("OPTIONS").Namespace("default").Resource("pods").Name("p").SubResource("exec").Do(t.Context()).StatusCode(&code)
	if code != http.StatusMethodNotAllowed {
		t.Errorf("OPTIONS of exec: status %d", code)
	}
}
