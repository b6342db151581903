package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// binaries are the programs under test.
type binaries struct{ etcd, upstream, skiff string }

// world is one etcd with the API servers on it.
type world struct {
	dir  string
	bin  binaries
	pki  *pki
	etcd *clientv3.Client
	url  string
	ends []func()
}

// server is an API server with a client of it.
type server struct {
	name string
	url  string
	http *http.Client
	stop func()
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// start runs a program whose output goes to a file of dir; stop ends it and waits.
func start(dir, name string, args ...string) (stop func(), ended <-chan struct{}, err error) {
	log, err := os.Create(filepath.Join(dir, filepath.Base(name)+".log"))
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, nil, fmt.Errorf("start %s: %w", name, err)
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // how it ended stands in its log
		log.Close()
		close(done)
	}()
	return func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
		select {
		case <-done:
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-done
		}
	}, done, nil
}

func newWorld(ctx context.Context, parent, name string, bin binaries) (*world, error) {
	w := &world{dir: filepath.Join(parent, name), bin: bin}
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		return nil, err
	}
	var err error
	if w.pki, err = newPKI(w.dir); err != nil {
		return nil, err
	}
	client, err := freePort()
	if err != nil {
		return nil, err
	}
	peer, err := freePort()
	if err != nil {
		return nil, err
	}
	w.url = fmt.Sprintf("http://127.0.0.1:%d", client)
	peers := fmt.Sprintf("http://127.0.0.1:%d", peer)
	stop, _, err := start(w.dir, bin.etcd, "--data-dir="+filepath.Join(w.dir, "etcd"), "--name=m", "--listen-client-urls="+w.url,
		"--advertise-client-urls="+w.url, "--listen-peer-urls="+peers, "--initial-advertise-peer-urls="+peers, "--initial-cluster=m="+peers, "--log-level=warn")
	if err != nil {
		return nil, err
	}
	w.ends = append(w.ends, stop)
	if w.etcd, err = clientv3.New(clientv3.Config{Endpoints: []string{w.url}, DialTimeout: time.Minute}); err != nil {
		return nil, err
	}
	return w, wait(ctx, func() error {
		_, err := w.etcd.Get(ctx, "/")
		return err
	})
}

func (w *world) close() {
	if w.etcd != nil {
		w.etcd.Close()
	}
	for i := len(w.ends) - 1; i >= 0; i-- {
		w.ends[i]()
	}
}

// wait repeats try until it works; what it asks is another process.
func wait(ctx context.Context, try func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// upstream and skiff start an API server on the world's etcd; both are given the same flags.
func (w *world) upstream(ctx context.Context) (*server, error) {
	return w.serve(ctx, "upstream", "192.0.2.1", w.bin.upstream)
}

func (w *world) skiff(ctx context.Context) (*server, error) {
	return w.serve(ctx, "skiff", "192.0.2.2", w.bin.skiff, "kube-apiserver")
}

func (w *world) named(ctx context.Context, name string) (*server, error) {
	if name == "skiff" {
		return w.skiff(ctx)
	}
	return w.upstream(ctx)
}

func (w *world) serve(ctx context.Context, name, advertise, bin string, args ...string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	s := &server{name: name, url: fmt.Sprintf("https://127.0.0.1:%d", port)}
	s.http = &http.Client{Timeout: 70 * time.Second, Transport: &http.Transport{TLSClientConfig: w.pki.client, ForceAttemptHTTP2: true}}
	args = append(args, "--etcd-servers="+w.url, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port), "--advertise-address="+advertise,
		"--tls-cert-file="+w.pki.cert, "--tls-private-key-file="+w.pki.key, "--client-ca-file="+w.pki.ca, "--authorization-mode=Node,RBAC",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+w.pki.tokens, "--service-account-signing-key-file="+w.pki.tokens,
		"--service-cluster-ip-range=10.96.0.0/16", "--allow-privileged=true")
	stop, ended, err := start(w.dir, bin, args...)
	if err != nil {
		return nil, err
	}
	s.stop = func() { s.http.CloseIdleConnections(); stop() }
	w.ends = append(w.ends, s.stop)
	return s, wait(ctx, func() error {
		select {
		case <-ended:
			return fmt.Errorf("%s ended: see its log in %s", name, w.dir)
		default:
		}
		return s.ready(ctx)
	})
}

func (s *server) ready(ctx context.Context) error {
	code, body, err := s.raw(ctx, http.MethodGet, "/readyz", "", nil)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("/readyz of %s: %d %.300s", s.name, code, body)
	}
	return err
}

// raw makes a request and returns the whole answer.
func (s *server) raw(ctx context.Context, method, path, contentType string, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, s.url+path, bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Accept", "application/json")
	if body != nil {
		if contentType == "" {
			contentType = "application/json"
		}
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, text, err
}

// object is a decoded JSON object.
type object = map[string]any

var errStatus = errors.New("request failed")

// do makes a request that must succeed and decodes the answer.
func (s *server) do(ctx context.Context, method, path, contentType string, body any) (object, error) {
	var text []byte
	var err error
	switch b := body.(type) {
	case nil:
	case string:
		text = []byte(b)
	default:
		if text, err = json.Marshal(b); err != nil {
			return nil, err
		}
	}
	code, answer, err := s.raw(ctx, method, path, contentType, text)
	if err != nil {
		return nil, fmt.Errorf("%s %s %s: %w", s.name, method, path, err)
	}
	if code/100 != 2 {
		return nil, fmt.Errorf("%w: %s %s %s: %d %s", errStatus, s.name, method, path, code, strings.TrimSpace(string(answer)))
	}
	d := json.NewDecoder(bytes.NewReader(answer))
	d.UseNumber()
	var out object
	if err := d.Decode(&out); err != nil {
		return nil, fmt.Errorf("%s %s %s: %w", s.name, method, path, err)
	}
	return out, nil
}

func (s *server) get(ctx context.Context, path string) (object, error) {
	return s.do(ctx, http.MethodGet, path, "", nil)
}
