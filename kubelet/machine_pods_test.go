package kubelet

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pod makes a pod's object, bound to the node.
func (m *machine) pod(name string, edit func(*corev1.Pod)) *corev1.Pod {
	m.Helper()
	grace := int64(1)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name + "-" + fmt.Sprint(time.Now().UnixNano())), CreationTimestamp: metav1.Now()},
		Spec: corev1.PodSpec{
			NodeName: "n1", RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSDefault, TerminationGracePeriodSeconds: &grace,
			SecurityContext: &corev1.PodSecurityContext{}, Containers: []corev1.Container{m.container("c", "sleep 100000")},
		},
	}
	if edit != nil {
		edit(p)
	}
	out, err := m.api.CoreV1().Pods("default").Create(context.Background(), p, metav1.CreateOptions{})
	if err != nil {
		m.Fatal(err)
	}
	return out
}

// container runs a shell command that ends on SIGTERM.
func (m *machine) container(name, command string) corev1.Container {
	return corev1.Container{
		Name: name, Image: m.registry + "/busybox:1", ImagePullPolicy: corev1.PullIfNotPresent,
		Command:                []string{"/bin/sh", "-c", "trap exit TERM; " + strings.ReplaceAll(command, "sleep 100000", "sleep 100000 & wait")},
		TerminationMessagePath: corev1.TerminationMessagePathDefault, TerminationMessagePolicy: corev1.TerminationMessageReadFile,
	}
}

func (m *machine) get(name string) *corev1.Pod {
	p, err := m.api.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return &corev1.Pod{}
	}
	return p
}

// wait until a pod is as wanted.
func (m *machine) wait(what, name string, ok func(*corev1.Pod) bool) *corev1.Pod {
	m.Helper()
	var p *corev1.Pod
	m.eventually(name+" "+what, func() bool { p = m.get(name); return p.Name != "" && ok(p) })
	return p
}

func (m *machine) eventually(what string, ok func() bool) {
	m.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			m.Fatalf("waited in vain: %s", what)
		}
	}
}

func ready(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (m *machine) nodeReady() (bool, string) {
	n, err := m.api.CoreV1().Nodes().Get(context.Background(), "n1", metav1.GetOptions{})
	if err != nil {
		return false, err.Error()
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue, c.Message
		}
	}
	return false, "no condition"
}

func (m *machine) push(ref string, img v1.Image, opts ...remote.Option) {
	m.Helper()
	r, err := name.ParseReference(ref, name.Insecure)
	if err != nil {
		m.Fatal(err)
	}
	if err := remote.Write(r, img, opts...); err != nil {
		m.Fatalf("push %s: %v", ref, err)
	}
}

// busybox is an image of the host's static busybox; mark makes it differ from others.
func busybox(t testing.TB, mark string) v1.Image {
	t.Helper()
	raw, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatalf("install what the tests need with .ci/host: %v", err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	add := func(h *tar.Header, body []byte) {
		h.Size = int64(len(body))
		if err := errors.Join(w.WriteHeader(h), func() error { _, err := w.Write(body); return err }()); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"bin", "etc", "tmp", "proc", "sys", "dev", "data"} {
		add(&tar.Header{Name: d + "/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	}
	add(&tar.Header{Name: "bin/busybox", Mode: 0o755}, raw)
	for _, l := range []string{"sh", "sleep", "cat", "echo", "nc", "httpd", "wget", "id", "touch", "true", "false", "ls", "rm", "kill", "ps", "mount", "date", "test", "hostname", "grep"} {
		add(&tar.Header{Name: "bin/" + l, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
	}
	add(&tar.Header{Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n"))
	add(&tar.Header{Name: "etc/mark", Mode: 0o644}, []byte(mark))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromReader(&b)
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	return configured(t, img, func(c *v1.ConfigFile) { c.Config.Env = []string{"PATH=/bin"} })
}

func configured(t testing.TB, img v1.Image, edit func(*v1.ConfigFile)) v1.Image {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", "amd64"
	edit(c)
	if img, err = mutate.ConfigFile(img, c); err != nil {
		t.Fatal(err)
	}
	return img
}

func pause(t testing.TB) v1.Image {
	return configured(t, busybox(t, "pause"), func(c *v1.ConfigFile) { c.Config.Entrypoint = []string{"/bin/busybox", "sleep", "1000000"} })
}

func authority(t testing.TB) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	raw, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(raw); err != nil {
		t.Fatal(err)
	}
	return key, c
}

// certificate is signed by the machine's authority, for clients and servers.
func (m *machine) certificate(cn string, groups []string, ips ...string) tls.Certificate {
	m.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		m.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: cn, Organization: groups}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.ParseIP(machineIP)}}
	for _, ip := range ips {
		c.IPAddresses = append(c.IPAddresses, netip.MustParseAddr(ip).AsSlice())
	}
	raw, err := x509.CreateCertificate(rand.Reader, c, m.ca, &key.PublicKey, m.caKey)
	if err != nil {
		m.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: key}
}

// lockedBuffer is a log that is read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func (b *lockedBuffer) tail(n int) string {
	lines := strings.Split(b.String(), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
