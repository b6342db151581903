package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// server is a control plane as skiff server runs it, in this process.
type server struct {
	*Config
	paths  Paths
	client kubernetes.Interface // the administrator's
}

// newServer runs a control plane until the test ends.
func newServer(t *testing.T, change func(*Config)) *server {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "server")
	c, err := LoadOrCreate("test", dir)
	if err != nil {
		t.Fatal(err)
	}
	c.setNodeIPs([]netip.Addr{netip.MustParseAddr("127.0.0.1")})
	c.APIPort = unusedPort(t)
	if change != nil {
		change(c)
	}
	p := Paths{dir}
	creds, err := EnsureCredentials(dir, c)
	if err != nil {
		t.Fatal(err)
	}
	group, err := newControlPlane(c, p, creds, func(*APIServerConfig, map[string][]string) error { return nil }, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- group.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("control plane: %v", err)
		}
	})
	limit, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	if err := waitAPI(limit, c, p); err != nil {
		t.Fatal(err)
	}
	cfg, err := AdminConfig(p)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "what joining nodes read is published", func() error {
		_, err := client.CoreV1().ConfigMaps("kube-public").Get(t.Context(), "cluster-info", metav1.GetOptions{})
		return err
	})
	return &server{Config: c, paths: p, client: client}
}

func unusedPort(t *testing.T) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

func (s *server) token(t *testing.T, ttl time.Duration) Token {
	t.Helper()
	token, err := CreateToken(t.Context(), s.client, s.paths, ttl, t.Name())
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// options join a node of a name.
func (s *server) options(t *testing.T, node string, token Token) JoinOptions {
	return JoinOptions{
		Dir: filepath.Join(t.TempDir(), "agent"), Server: s.PublicServer(), Token: token.String(),
		NodeName: node, NodeIPs: []netip.Addr{netip.MustParseAddr("127.0.0.1")},
		Progress: io.Discard, Logger: slog.New(slog.DiscardHandler),
	}
}

// joined is a node that has joined, with its client.
type joined struct {
	*NodeConfig
	paths  Paths
	creds  *NodeCredentials
	client kubernetes.Interface
}

func (s *server) join(t *testing.T, node string) *joined {
	t.Helper()
	o := s.options(t, node, s.token(t, time.Hour))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	n, err := Join(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	return open(t, n, o.Dir)
}

// open is a node as its process starts it.
func open(t *testing.T, n *NodeConfig, dir string) *joined {
	t.Helper()
	creds, err := joinedCredentials(Paths{dir})
	if err != nil {
		t.Fatal(err)
	}
	client, err := n.client(creds)
	if err != nil {
		t.Fatal(err)
	}
	return &joined{NodeConfig: n, paths: Paths{dir}, creds: creds, client: client}
}

// register makes the Node as its kubelet does.
func (j *joined) register(t *testing.T) {
	t.Helper()
	if _, err := j.client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: j.NodeName}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var node corev1.Node
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: j.NodeName}}
	for _, ip := range j.NodeIPs {
		node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: ip.String()})
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"addresses": node.Status.Addresses, "conditions": node.Status.Conditions}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.client.CoreV1().Nodes().PatchStatus(t.Context(), j.NodeName, patch); err != nil {
		t.Fatal(err)
	}
}

// eventually waits for a condition that other goroutines bring about.
func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := poll(ctx, 20*time.Millisecond, func(context.Context) error { return try() }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// shown is the certificate that a TLS server shows, verified with a CA.
func shown(address, name string, ca []byte) (*x509.Certificate, error) {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	conn, err := tls.Dial("tcp", address, &tls.Config{RootCAs: pool, ServerName: name, MinVersion: tls.VersionTLS12})
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0], nil
}
