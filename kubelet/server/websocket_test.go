package server

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	clientforward "k8s.io/client-go/tools/portforward"
	client "k8s.io/client-go/tools/remotecommand"
	clientexec "k8s.io/client-go/util/exec"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"
)

// spdyRuntime is a runtime's streaming server by the library that containerd and CRI-O use: SPDY
// and the older WebSocket protocols.
type spdyRuntime struct{}

func (spdyRuntime) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o := &remotecommand.Options{Stdin: true, Stdout: true, Stderr: true}
	switch r.URL.Path {
	case "/exec/t":
		remotecommand.ServeExec(w, r, spdyRuntime{}, "", "", "c", nil, o, time.Minute, time.Minute, remotecommand.SupportedStreamingProtocols)
	case "/attach/t":
		remotecommand.ServeAttach(w, r, spdyRuntime{}, "", "", "c", o, time.Minute, time.Minute, remotecommand.SupportedStreamingProtocols)
	case "/portforward/t":
		portforward.ServePortForward(w, r, spdyRuntime{}, "p", "", &portforward.V4Options{}, time.Minute, time.Minute, portforward.SupportedProtocols)
	}
}

// ExecInContainer echoes until the input ends, then exits with 7.
func (spdyRuntime) ExecInContainer(_ context.Context, _, _, _ string, _ []string, in io.Reader, out, errOut io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	fmt.Fprint(errOut, "end of input")
	return utilexec.CodeExitError{Err: errors.New("exit 7"), Code: 7}
}

// AttachContainer echoes.
func (spdyRuntime) AttachContainer(_ context.Context, _, _, _ string, in io.Reader, out, errOut io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	_, err := io.Copy(out, in)
	return err
}

// PortForward answers what it reads and the port.
func (spdyRuntime) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	b := make([]byte, 3)
	if _, err := io.ReadFull(stream, b); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stream, "%s at %d", b, port)
	return err
}

// A client of WebSocket that KEP-4006 describes, which API servers pass on to nodes that declare
// ExtendWebSocketsToKubelet, comes through to runtimes that know only SPDY.
func TestWebSocketStreams(t *testing.T) {
	f := setup(t)
	runtime := httptest.NewServer(spdyRuntime{})
	defer runtime.Close()
	f.rt.Set(func() { f.rt.StreamURL = runtime.URL })
	admin := f.issue("root", "system:masters")
	key, err := x509.MarshalPKCS8PrivateKey(admin.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &rest.Config{Host: f.url, TLSClientConfig: rest.TLSClientConfig{
		CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: admin.Certificate[0]}),
		KeyData:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}),
		CAData:   f.caPEM,
	}}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	run := func(path string) (out, errOut string, err error) {
		e, err := client.NewWebSocketExecutor(cfg, "GET", f.url+path)
		if err != nil {
			t.Fatal(err)
		}
		var o, eo bytes.Buffer
		err = e.StreamWithContext(ctx, client.StreamOptions{Stdin: strings.NewReader("in"), Stdout: &o, Stderr: &eo})
		return o.String(), eo.String(), err
	}
	out, errOut, err := run("/exec/ns/p/c?command=x&input=1&output=1&error=1")
	var exit clientexec.CodeExitError
	if !errors.As(err, &exit) || exit.Code != 7 || out != "in" || errOut != "end of input" {
		t.Errorf("exec: %q %q %v", out, errOut, err)
	}
	if out, _, err := run("/attach/ns/p/c?input=1&output=1&error=1"); out != "in" || err != nil {
		t.Errorf("attach: %q %v", out, err)
	}

	u, err := url.Parse(f.url + "/portForward/ns/p")
	if err != nil {
		t.Fatal(err)
	}
	d, err := clientforward.NewSPDYOverWebsocketDialer(u, cfg)
	if err != nil {
		t.Fatal(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	fw, err := clientforward.NewOnAddresses(d, []string{"127.0.0.1"}, []string{"0:80"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- fw.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := fw.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprint(conn, "hey")
	if b, err := io.ReadAll(conn); string(b) != "hey at 80" || err != nil {
		t.Errorf("port: %q %v", b, err)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
