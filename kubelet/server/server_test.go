package server

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/internal/fakecri"
)

type podList []*corev1.Pod

func (l podList) Pods() []*corev1.Pod { return l }
func (l podList) Find(ns, name string, uid types.UID) *corev1.Pod {
	for _, p := range l {
		if p.Namespace == ns && p.Name == name && (uid == "" || p.UID == uid) {
			return p
		}
	}
	return nil
}

type fixture struct {
	url    string
	ca     *x509.CertPool
	caPEM  []byte
	issue  func(cn string, orgs ...string) tls.Certificate
	review int // SubjectAccessReviews asked
	rt     *fakecri.Server
	id     string
	log    string
}

func setup(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{rt: fakecri.Start(t)}
	c, err := cri.New(cri.Config{RuntimeEndpoint: f.rt.Endpoint()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	// A running container with a log.
	ctx := context.Background()
	dir := t.TempDir()
	f.rt.AddImage("img", nil, "")
	labels := map[string]string{cri.PodUIDLabel: "u", cri.PodNameLabel: "p", cri.PodNamespaceLabel: "ns", cri.ContainerNameLabel: "c"}
	sb, err := c.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Name: "p", Uid: "u"}, Labels: labels, LogDirectory: dir}})
	if err != nil {
		t.Fatal(err)
	}
	ct, err := c.Runtime.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: sb.PodSandboxId, Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Labels: labels, Image: &runtimeapi.ImageSpec{Image: "img"}, LogPath: "0.log"}})
	if err != nil {
		t.Fatal(err)
	}
	f.id, f.log = ct.ContainerId, filepath.Join(dir, "0.log")
	if _, err := c.Runtime.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: f.id}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.log, []byte("2026-01-01T00:00:00Z stdout F hello\n2026-01-01T00:00:01Z stderr F oops\n"), 0o600); err != nil {
		t.Fatal(err)
	}

	client := fake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		r.Status.Authenticated = strings.HasPrefix(r.Spec.Token, "good")
		r.Status.User = authenticationv1.UserInfo{Username: r.Spec.Token}
		return true, r, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		f.review++
		r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		ra := r.Spec.ResourceAttributes
		r.Status.Allowed = ra.Resource == "nodes" && ra.Name == "n1" && (r.Spec.User == "good-admin" || r.Spec.User == "good-stats" && ra.Subresource == "stats" || r.Spec.User == "good-pods" && ra.Subresource == "pods")
		return true, r, nil
	})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}, {Name: "waits"}}},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{
			{Name: "c", ContainerID: "fake://" + f.id, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}},
			{Name: "waits", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}},
		}},
	}

	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	root := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	raw, err := x509.CreateCertificate(rand.Reader, root, root, &caKey.PublicKey, caKey)
	if err != nil {
		t.Fatal(err)
	}
	root, _ = x509.ParseCertificate(raw)
	f.ca = x509.NewCertPool()
	f.ca.AddCert(root)
	f.caPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
	f.issue = func(cn string, orgs ...string) tls.Certificate {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		leaf := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: cn, Organization: orgs}, NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
		raw, err := x509.CreateCertificate(rand.Reader, leaf, root, &key.PublicKey, caKey)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
	}
	serving := f.issue("node")
	s, err := New(Config{
		NodeName: "n1", Addr: "127.0.0.1:0", GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &serving, nil }, ClientCA: f.ca, Client: client,
		Pods: podList{pod}, CRI: c, Profiling: true, Logger: slog.New(slog.DiscardHandler),
		Stats: func(context.Context) (any, error) { return map[string]string{"a": "b"}, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	f.url = "https://" + (<-s.Addr()).String()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

func (f *fixture) do(t *testing.T, cert *tls.Certificate, token, method, path string) (int, string) {
	t.Helper()
	cfg := &tls.Config{RootCAs: f.ca}
	if cert != nil {
		cfg.Certificates = []tls.Certificate{*cert}
	}
	tr := &http.Transport{TLSClientConfig: cfg}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequest(method, f.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := (&http.Client{Transport: tr, Timeout: time.Minute}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(raw)
}

func TestAccess(t *testing.T) {
	f := setup(t)
	admin, nobody := f.issue("root", "system:masters"), f.issue("nobody")
	for _, tc := range []struct {
		cert  *tls.Certificate
		token string
		path  string
		want  int
	}{
		{nil, "", "/healthz", 401},
		{nil, "bad", "/healthz", 401},
		{nil, "good-admin", "/healthz", 200},
		{nil, "good-none", "/healthz", 403},
		{nil, "good-stats", "/stats/summary", 200},
		{nil, "good-stats", "/pods", 403},
		{nil, "good-pods", "/pods", 200},
		{nil, "good-pods", "/runningpods/", 200},
		{nil, "good-pods", "/containerLogs/ns/p/c", 403},
		{&admin, "", "/pods", 200},
		{&nobody, "", "/pods", 403},
		{&admin, "", "/nothing", 404},
		{&admin, "", "/debug/pprof/cmdline", 200},
		{&admin, "", "/debug/nothing", 404},
		{nil, "good-stats", "/debug/pprof/", 403},
	} {
		if code, body := f.do(t, tc.cert, tc.token, "GET", tc.path); code != tc.want {
			t.Errorf("%q %s: %d %s, want %d", tc.token, tc.path, code, body, tc.want)
		}
	}
	n := f.review
	f.do(t, nil, "good-stats", "GET", "/stats/summary")
	if f.review != n {
		t.Error("access was reviewed again within the time that the answer holds")
	}
	_, body := f.do(t, nil, "good-none", "POST", "/exec/ns/p/c")
	if !strings.Contains(body, "Forbidden (user=good-none, verb=create, resource=nodes, subresource(s)=[proxy])") {
		t.Errorf("%q", body)
	}
}

func TestLogsAndLists(t *testing.T) {
	f := setup(t)
	admin := f.issue("root", "system:masters")
	for path, want := range map[string]string{
		"/containerLogs/ns/p/c":                             "200 hello\noops\n",
		"/containerLogs/ns/p/c?tailLines=1&timestamps=true": "200 2026-01-01T00:00:01Z oops\n",
		"/containerLogs/ns/p/c?limitBytes=3":                "200 hel",
		"/containerLogs/ns/p/c?stream=Stderr":               "200 oops\n",
		"/containerLogs/ns/p/c?tailLines=x":                 "400 tailLines is \"x\": it must be a number that is not negative\n",
		"/containerLogs/ns/p/c?previous=true":               "400 previous terminated container \"c\" in pod \"p\" not found\n",
		"/containerLogs/ns/p/waits":                         "400 container \"waits\" in pod \"p\" is waiting to start: trying and failing to pull image\n",
		"/containerLogs/ns/p/nope":                          "404 container \"nope\" not found in pod \"p\"\n",
		"/containerLogs/ns/q/c":                             "404 pod \"q\" does not exist\n",
	} {
		code, body := f.do(t, &admin, "", "GET", path)
		if got := fmt.Sprintf("%d %s", code, body); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	_, body := f.do(t, &admin, "", "GET", "/pods")
	var list corev1.PodList
	if err := json.Unmarshal([]byte(body), &list); err != nil || list.Kind != "PodList" || len(list.Items) != 1 {
		t.Errorf("pods: %v %s", err, body)
	}
	if _, body := f.do(t, &admin, "", "GET", "/runningpods/"); !strings.Contains(body, `"name":"c"`) {
		t.Errorf("running pods: %s", body)
	}
	f.rt.Set(func() {
		f.rt.RunExec = func(_ *fakecri.Container, cmd []string) (string, int32, error) { return strings.Join(cmd, "+"), 0, nil }
	})
	if code, body := f.do(t, &admin, "", "POST", "/run/ns/p/c?cmd=a%20b"); code != 200 || body != "a+b" {
		t.Errorf("run: %d %s", code, body)
	}
}

// Streams are joined with the runtime's own server, both ways.
func TestStreams(t *testing.T) {
	f := setup(t)
	admin := f.issue("root", "system:masters")
	stream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
		rw.Flush()
		line, _ := rw.ReadString('\n')
		fmt.Fprintf(rw, "%s got %s", r.URL.Path, line)
		rw.Flush()
	}))
	defer stream.Close()
	f.rt.Set(func() { f.rt.StreamURL = stream.URL })
	u, _ := url.Parse(f.url)
	for path, want := range map[string]string{
		"/exec/ns/p/c?command=sh&output=1":   "/exec/t got hi\n",
		"/exec/ns/p/u/c?command=sh&output=1": "/exec/t got hi\n",
		"/attach/ns/p/c?output=1":            "/attach/t got hi\n",
		"/portForward/ns/p":                  "/portforward/t got hi\n",
	} {
		conn, err := tls.Dial("tcp", u.Host, &tls.Config{RootCAs: f.ca, Certificates: []tls.Certificate{admin}, NextProtos: []string{"http/1.1"}})
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nContent-Length: 0\r\n\r\n", path)
		r := bufio.NewReader(conn)
		resp, err := http.ReadResponse(r, nil)
		if err != nil || resp.StatusCode != 101 {
			t.Fatalf("%s: %v %v", path, resp, err)
		}
		fmt.Fprint(conn, "hi\n")
		if line, _ := r.ReadString('\n'); line != want {
			t.Errorf("%s: %q, want %q", path, line, want)
		}
		conn.Close()
	}
	for path, want := range map[string]int{"/exec/ns/p/c?command=sh": 400, "/exec/ns/p/waits?output=1": 404, "/exec/ns/p/x/c?output=1": 404, "/portForward/ns/p?port=0": 400, "/exec/ns": 404} {
		if code, body := f.do(t, &admin, "", "POST", path); code != want {
			t.Errorf("%s: %d %s, want %d", path, code, body, want)
		}
	}
}
