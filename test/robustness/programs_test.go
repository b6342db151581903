package robustness

import (
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
	"github.com/skiff-k8s/skiff/store"
	"github.com/skiff-k8s/skiff/store/etcd"
)

// twin is the path of an upstream program.
func twin(t *testing.T, name string) string {
	t.Helper()
	path, err := filepath.Abs(filepath.Join("..", "..", ".cache", "twins", name))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Skipf("upstream's %s is not built: make twins", name)
	}
	return path
}

func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// program is an upstream program in a process of its own.
type program struct {
	t    *testing.T
	cmd  *exec.Cmd
	done chan struct{}
}

func start(t *testing.T, bin string, args ...string) *program {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), filepath.Base(bin)+".log"))
	if err != nil {
		t.Fatal(err)
	}
	p := &program{t: t, cmd: exec.Command(bin, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		_ = p.cmd.Wait() // how it ends is the test's to say
		log.Close()
	}()
	t.Cleanup(func() {
		p.signal(syscall.SIGCONT)
		p.signal(syscall.SIGKILL)
		<-p.done
		if t.Failed() {
			text, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%.4000s", bin, text[max(0, len(text)-4000):])
		}
	})
	return p
}

func (p *program) signal(s syscall.Signal) {
	_ = p.cmd.Process.Signal(s) // it may have ended
}

// members starts an etcd of n.
func members(t *testing.T, n int) (all []*program, urls []string) {
	t.Helper()
	bin := twin(t, "etcd")
	var args [][]string
	var initial []string
	for i := range n {
		client, peer, name := "http://"+freeAddress(t), "http://"+freeAddress(t), fmt.Sprint("m", i)
		args = append(args, []string{"--name=" + name, "--data-dir=" + filepath.Join(t.TempDir(), "data"), "--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--heartbeat-interval=50", "--election-timeout=500", "--log-level=error", "--unsafe-no-fsync"})
		initial, urls = append(initial, name+"="+peer), append(urls, client)
	}
	for _, a := range args {
		all = append(all, start(t, bin, append(a, "--initial-cluster="+strings.Join(initial, ","))...))
	}
	return all, urls
}

// connect is a client of etcd as an API server has it.
func connect(t *testing.T, urls []string, compact time.Duration) store.Store {
	t.Helper()
	c, err := etcd.NewClient(etcd.ClientConfig{Endpoints: urls, CompactInterval: compact})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-c.Ready():
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	return c
}

// upstreamServer starts upstream's kube-apiserver on etcd, with the same key for tokens.
func upstreamServer(t *testing.T, urls []string, key *ecdsa.PrivateKey, address string, args ...string) (kubernetes.Interface, *program) {
	t.Helper()
	bin, dir := twin(t, "kube-apiserver"), t.TempDir()
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	keys := file("sa.key", string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})))
	tokens := file("tokens.csv", servertest.AdminToken+`,kubernetes-admin,1,"system:masters"`+"\n")
	addr := freeAddress(t)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, bin, append([]string{"--etcd-servers=" + strings.Join(urls, ","), "--bind-address=127.0.0.1", "--secure-port=" + port, "--advertise-address=" + address,
		"--cert-dir=" + filepath.Join(dir, "certs"), "--token-auth-file=" + tokens, "--authorization-mode=Node,RBAC",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local", "--service-account-key-file=" + keys, "--service-account-signing-key-file=" + keys,
		"--service-cluster-ip-range=10.96.0.0/16"}, args...)...)
	k, err := kubernetes.NewForConfig(&rest.Config{Host: "https://" + addr, BearerToken: servertest.AdminToken, QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := k.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context()); err == nil {
			return k, p
		}
		select {
		case <-p.done:
			t.Fatal("upstream's kube-apiserver ended")
		case <-t.Context().Done():
			t.Fatal("upstream's kube-apiserver does not come up")
		case <-time.After(200 * time.Millisecond):
		}
	}
}
