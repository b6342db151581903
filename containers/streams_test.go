package containers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/client-go/transport/spdy"
	utilexec "k8s.io/client-go/util/exec"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// transports are the executors of client-go, which kubectl and crictl use: v5.channel.k8s.io
// over WebSocket (KEP-4006), and SPDY.
var transports = map[string]func(u *url.URL) (remotecommand.Executor, error){
	"spdy": func(u *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewSPDYExecutor(&rest.Config{Host: u.Host}, "POST", u)
	},
	"websocket": func(u *url.URL) (remotecommand.Executor, error) {
		return remotecommand.NewWebSocketExecutor(&rest.Config{Host: u.Host}, "GET", u.String())
	},
}

// stream joins the streams behind a URL.
func stream(t *testing.T, transport, target string, o remotecommand.StreamOptions) error {
	t.Helper()
	u, err := url.Parse(target)
	if err != nil {
		t.Fatal(err)
	}
	e, err := transports[transport](u)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	return e.StreamWithContext(ctx, o)
}

type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	sz, ok := <-s
	if !ok {
		return nil
	}
	return &sz
}

func TestStreams(t *testing.T) {
	for transport := range transports {
		t.Run(transport, func(t *testing.T) { testStreams(t, transport) })
	}
}

func testStreams(t *testing.T, transport string) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	sb, cfg := h.sandbox(nil)
	ctx := context.Background()
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Command = []string{"sh", "-c", "while read line; do echo got $line; echo err $line >&2; done; echo end of input; sleep 1000"}
		c.Stdin, c.StdinOnce = true, true
	})
	h.start(id)

	t.Run("exec", func(t *testing.T) {
		got, err := h.Runtime.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"sh", "-c", "cat; echo err >&2; exit 6"}, Stdin: true, Stdout: true, Stderr: true})
		if err != nil {
			t.Fatal(err)
		}
		var out, errOut bytes.Buffer
		err = stream(t, transport, got.GetUrl(), remotecommand.StreamOptions{Stdin: strings.NewReader("in\n"), Stdout: &out, Stderr: &errOut})
		var exit utilexec.CodeExitError
		if !errors.As(err, &exit) || exit.Code != 6 || out.String() != "in\n" || errOut.String() != "err\n" {
			t.Errorf("%q %q %v", &out, &errOut, err)
		}
		if err := stream(t, transport, got.GetUrl(), remotecommand.StreamOptions{Stdout: &out}); err == nil {
			t.Error("a URL was good twice")
		}
	})
	t.Run("exec with a terminal", func(t *testing.T) {
		got, err := h.Runtime.Exec(ctx, &runtimeapi.ExecRequest{ContainerId: id, Cmd: []string{"sh", "-c", "tty; read x; stty size; echo $TERM"}, Stdin: true, Stdout: true, Tty: true})
		if err != nil {
			t.Fatal(err)
		}
		in, feed := io.Pipe()
		resize := make(sizes, 1)
		resize <- remotecommand.TerminalSize{Width: 123, Height: 45}
		var out bytes.Buffer
		seen := &notifying{Writer: &out, want: "/dev/pts", seen: make(chan struct{})}
		go func() {
			<-seen.seen
			time.Sleep(200 * time.Millisecond) // the size has no acknowledgement
			_, _ = feed.Write([]byte("go\n"))
		}()
		err = stream(t, transport, got.GetUrl(), remotecommand.StreamOptions{Stdin: in, Stdout: seen, Tty: true, TerminalSizeQueue: resize})
		close(resize)
		_ = feed.Close()
		if err != nil || !strings.Contains(out.String(), "45 123") {
			t.Errorf("%q %v", &out, err)
		}
	})
	t.Run("attach", func(t *testing.T) {
		got, err := h.Runtime.Attach(ctx, &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Stderr: true})
		if err != nil {
			t.Fatal(err)
		}
		var out, errOut bytes.Buffer
		ended := &notifying{Writer: &out, want: "end of input", seen: make(chan struct{})}
		done := make(chan error, 1)
		go func() {
			done <- stream(t, transport, got.GetUrl(), remotecommand.StreamOptions{Stdin: strings.NewReader("a\nb\n"), Stdout: ended, Stderr: &errOut})
		}()
		select {
		case <-ended.seen:
		case <-time.After(time.Minute):
			t.Fatalf("nothing came: %q", h.output(id))
		}
		if _, err := h.Runtime.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: id}); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if out.String() != "got a\ngot b\nend of input\n" || errOut.String() != "err a\nerr b\n" {
			t.Errorf("%q %q", &out, &errOut)
		}
		if log := h.output(id); !strings.Contains(log, "got b\n") {
			t.Errorf("log %q", log)
		}
	})
}

// notifying closes seen once want has been written.
type notifying struct {
	io.Writer
	want string
	text string
	seen chan struct{}
	done bool
}

func (n *notifying) Write(p []byte) (int, error) {
	n.text += string(p)
	if !n.done && strings.Contains(n.text, n.want) {
		n.done = true
		defer close(n.seen)
	}
	return n.Writer.Write(p)
}

func TestAttachToATerminal(t *testing.T) {
	for transport := range transports {
		t.Run(transport, func(t *testing.T) { testAttachToATerminal(t, transport) })
	}
}

func testAttachToATerminal(t *testing.T, transport string) {
	h := newHarness(t)
	img := h.pull("busybox", busyboxImage(t, nil))
	sb, cfg := h.sandbox(nil)
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Command, c.Stdin, c.Tty = []string{"sh", "-c", "tty; read x; echo got $x; exit 2"}, true, true
	})
	h.start(id)
	got, err := h.Runtime.Attach(context.Background(), &runtimeapi.AttachRequest{ContainerId: id, Stdin: true, Stdout: true, Tty: true})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := stream(t, transport, got.GetUrl(), remotecommand.StreamOptions{Stdin: strings.NewReader("hello\n"), Stdout: &out, Tty: true}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "got hello") {
		t.Errorf("output %q", &out)
	}
	if st := h.wait(id); st.GetExitCode() != 2 {
		t.Errorf("status %v", st)
	}
	if log := h.output(id); !strings.Contains(log, "/dev/pts/0") || !strings.Contains(log, "got hello") {
		t.Errorf("log %q", log)
	}
}

// dialers are those of ports: SPDY, and SPDY inside of WebSocket.
var dialers = map[string]func(u *url.URL) (httpstream.Dialer, error){
	"spdy": func(u *url.URL) (httpstream.Dialer, error) {
		transport, upgrader, err := spdy.RoundTripperFor(&rest.Config{Host: u.Host})
		return spdy.NewDialer(upgrader, &http.Client{Transport: transport}, "POST", u), err
	},
	"websocket": func(u *url.URL) (httpstream.Dialer, error) {
		return portforward.NewSPDYOverWebsocketDialer(u, &rest.Config{Host: u.Host})
	},
}

func TestPortForwardToHello(t *testing.T) {
	for transport, dialer := range dialers {
		t.Run(transport, func(t *testing.T) { testPortForwardToHello(t, dialer) })
	}
}

func testPortForwardToHello(t *testing.T, dialer func(u *url.URL) (httpstream.Dialer, error)) {
	h := newHarness(t)
	sb, cfg := h.sandbox(nil)
	id := h.create(sb, cfg, "skiff.local/hello:v1", func(c *runtimeapi.ContainerConfig) {})
	h.start(id)
	h.eventually("hello to listen", func() error {
		if out := h.output(id); !strings.Contains(out, "serves port 8080") {
			return fmt.Errorf("output %q", out)
		}
		return nil
	})
	got, err := h.Runtime.PortForward(context.Background(), &runtimeapi.PortForwardRequest{PodSandboxId: sb, Port: []int32{8080}})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(got.GetUrl())
	if err != nil {
		t.Fatal(err)
	}
	d, err := dialer(u)
	if err != nil {
		t.Fatal(err)
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	f, err := portforward.NewOnAddresses(d, []string{"127.0.0.1"}, []string{"0:8080"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- f.ForwardPorts() }()
	<-ready
	ports, err := f.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	base := "http://" + net.JoinHostPort("127.0.0.1", fmt.Sprint(ports[0].Local))
	client := &http.Client{Timeout: time.Minute}
	h.eventually("hello to answer", func() error {
		resp, err := client.Get(base + "/some/path")
		if err != nil {
			return err
		}
		defer func() { _ = resp.Body.Close() }()
		b, err := io.ReadAll(resp.Body)
		if err != nil {
			return err
		}
		if want := "Hello from skiff\nversion: v1\nhostname: pod-host\npath: /some/path\n"; string(b) != want {
			return fmt.Errorf("got %q", b)
		}
		return nil
	})
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
