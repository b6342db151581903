package kubelet

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"math/big"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/host/mount"
	"github.com/skiff-k8s/skiff/kubelet/internal/fakeapi"
	"github.com/skiff-k8s/skiff/kubelet/internal/fakecri"
)

func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	raw, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}

// The whole kubelet on a fake runtime: a node, a pod, events, and a clean end.
func TestKubelet(t *testing.T) {
	before := goleak.IgnoreCurrent()
	rt := fakecri.Start(t)
	rt.AddImage("img:1", nil, "")
	client := fakeapi.New()
	cert := certificate(t)
	dir := t.TempDir()
	k, err := New(Config{
		NodeName: "n1", Client: client, RuntimeEndpoint: rt.Endpoint(), RootDir: filepath.Join(dir, "kubelet"), PodLogsDir: filepath.Join(dir, "pods"), ContainerLogsDir: filepath.Join(dir, "containers"),
		NodeIPs: []string{"192.0.2.1"}, ListenAddr: "127.0.0.1:0", GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil },
		CgroupMount: "-", ClusterDNS: []string{"10.96.0.10"}, Mounts: &mount.Twin{}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	select {
	case <-k.Ready():
	case <-time.After(time.Minute):
		t.Fatal("the node did not get ready")
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"},
		Spec:       corev1.PodSpec{NodeName: "n1", RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst, Containers: []corev1.Container{{Name: "c", Image: "img:1", ImagePullPolicy: corev1.PullNever}}},
	}
	if _, err := client.CoreV1().Pods("ns").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	wait := func(what string, f func() bool) {
		t.Helper()
		for end := time.Now().Add(time.Minute); !f(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("waited in vain for %s", what)
			}
		}
	}
	wait("Running", func() bool {
		p, err := client.CoreV1().Pods("ns").Get(ctx, "p", metav1.GetOptions{})
		return err == nil && p.Status.Phase == corev1.PodRunning
	})
	cfg := rt.Containers("c")[0].Config
	if cfg.Annotations["io.kubernetes.container.hash"] == "" || !strings.HasPrefix(cfg.LogPath, "c/") {
		t.Errorf("container config %+v", cfg)
	}
	wait("the event", func() bool {
		list, err := client.CoreV1().Events("ns").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false
		}
		for _, e := range list.Items {
			if e.Reason == "Started" && e.InvolvedObject.FieldPath == "spec.containers{c}" && e.Source.Component == "kubelet" {
				return true
			}
		}
		return false
	})
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if !rt.Running(rt.Containers("c")[0]) {
		t.Error("the container ended with the kubelet")
	}
	rt.Down()
	goleak.VerifyNone(t, before)
}

func TestConfigErrors(t *testing.T) {
	good := Config{NodeName: "n", NodeIPs: []string{"1.2.3.4"}, RuntimeEndpoint: "/x.sock", CgroupMount: "-"}
	for want, edit := range map[string]func(*Config){
		"NodeName is empty":                   func(c *Config) { c.NodeName = "" },
		"NodeIPs is empty":                    func(c *Config) { c.NodeIPs = nil },
		`cgroup driver "systemd"`:             func(c *Config) { c.CgroupDriver = "systemd" },
		"runtime endpoint is empty":           func(c *Config) { c.RuntimeEndpoint = "" },
		"is not a unix socket":                func(c *Config) { c.RuntimeEndpoint = "tcp://x" },
		"no cgroup hierarchy with cpu and me": func(c *Config) { c.CgroupMount = "/nowhere" },
	} {
		c := good
		edit(&c)
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
