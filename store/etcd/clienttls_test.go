package etcd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/skiff-k8s/skiff/store"
)

// authority is a CA of a test.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	file string
}

func writePEM(t *testing.T, path, kind string, der []byte) string {
	t.Helper()
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	a := &authority{t: t}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	a.key, a.file = a.sign(a.cert, t.TempDir())
	return a
}

func (a *authority) sign(template *x509.Certificate, dir string) (*ecdsa.PrivateKey, string) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	signer := a.key
	if signer == nil {
		signer = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	return key, writePEM(a.t, filepath.Join(dir, "cert"), "CERTIFICATE", der)
}

// issue makes a certificate for this process's loopback address, for servers and clients.
func (a *authority) issue(notAfter time.Time) tlsFiles {
	a.t.Helper()
	dir := a.t.TempDir()
	key, cert := a.sign(&x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "test"},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: notAfter,
		IPAddresses: []net.IP{loopback}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, dir)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	return tlsFiles{ca: a.file, cert: cert, key: writePEM(a.t, filepath.Join(dir, "key"), "EC PRIVATE KEY", der)}
}

func TestClientTLS(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	soon := time.Now().Add(time.Hour)
	server := ca.issue(soon)
	etcd := members(t, 1, &server)
	etcd[0].start()
	client := ca.issue(soon)
	good := ClientConfig{Endpoints: urls(etcd), CAFile: ca.file, CertFile: client.cert, KeyFile: client.key}
	s := dial(t, good)
	w, err := s.Watch(t.Context(), "/tls/", 0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	rev, err := s.Create(t.Context(), "/tls/a", []byte("1"), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := w.Next(t.Context()); err != nil || len(b.Events) != 1 || b.Revision != rev {
		t.Errorf("watch over TLS: %+v, %v", b, err)
	}

	plain := members(t, 1, nil)
	plain[0].start()
	dial(t, ClientConfig{Endpoints: urls(plain)}) // waits for it
	stranger := other.issue(soon)
	expired := ca.issue(time.Now().Add(-time.Hour))
	secure := func(url string) []string { return []string{strings.Replace(url, "http:", "https:", 1)} }
	for name, test := range map[string]struct {
		change func(c *ClientConfig)
		want   []string
	}{
		"wrong CA":              {func(c *ClientConfig) { c.CAFile = other.file }, []string{etcd[0].url, "signed by none of --etcd-cafile " + other.file}},
		"no CA":                 {func(c *ClientConfig) { c.CAFile = "" }, []string{"set --etcd-cafile"}},
		"no client certificate": {func(c *ClientConfig) { c.CertFile, c.KeyFile = "", "" }, []string{"wants a client certificate", "--etcd-certfile"}},
		"foreign certificate":   {func(c *ClientConfig) { c.CertFile, c.KeyFile = stranger.cert, stranger.key }, []string{"does not take --etcd-certfile " + stranger.cert}},
		"expired certificate":   {func(c *ClientConfig) { c.CertFile, c.KeyFile = expired.cert, expired.key }, []string{"does not take --etcd-certfile " + expired.cert}},
		"TLS wanted": {func(c *ClientConfig) {
			*c = ClientConfig{Endpoints: []string{strings.Replace(etcd[0].url, "https", "http", 1)}}
		}, []string{"it speaks TLS: use https://"}},
		"no TLS there": {func(c *ClientConfig) { c.Endpoints = secure(plain[0].url) }, []string{"does not speak TLS: use http://"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := good
			test.change(&c)
			wantError(t, c, test.want...)
		})
	}
}

// wantError runs a client that must fail with one line that has all parts.
func wantError(t *testing.T, c ClientConfig, parts ...string) {
	t.Helper()
	s, err := NewClient(c)
	if err == nil {
		err = s.Run(t.Context())
		if _, _, err := s.Get(t.Context(), "/a"); !errors.Is(err, store.ErrClosed) {
			t.Errorf("get after the end: %v, want ErrClosed", err)
		}
	}
	if err == nil {
		t.Fatal("no error")
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not have %q", err, p)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error of several lines: %q", err)
	}
}

func TestClientConfig(t *testing.T) {
	ca := newAuthority(t)
	files := ca.issue(time.Now().Add(time.Hour))
	junk := filepath.Join(t.TempDir(), "junk")
	if err := os.WriteFile(junk, []byte("junk"), 0o600); err != nil {
		t.Fatal(err)
	}
	https := []string{"https://127.0.0.1:2379"}
	for name, test := range map[string]struct {
		c    ClientConfig
		want []string
	}{
		"none":          {ClientConfig{}, []string{"--etcd-servers"}},
		"no scheme":     {ClientConfig{Endpoints: []string{"localhost:2379"}}, []string{"--etcd-servers", "localhost:2379", "scheme"}},
		"no port":       {ClientConfig{Endpoints: []string{"http://localhost"}}, []string{"--etcd-servers http://localhost", "port", "2379"}},
		"path":          {ClientConfig{Endpoints: []string{"http://localhost:2379/etcd"}}, []string{"--etcd-servers", "path"}},
		"mixed":         {ClientConfig{Endpoints: []string{"http://a:2379", "https://b:2379"}}, []string{"http and https cannot be mixed"}},
		"CA of none":    {ClientConfig{Endpoints: []string{"http://a:2379"}, CAFile: ca.file}, []string{"https:// only"}},
		"CA missing":    {ClientConfig{Endpoints: https, CAFile: "/none"}, []string{"--etcd-cafile", "/none"}},
		"CA junk":       {ClientConfig{Endpoints: https, CAFile: junk}, []string{"--etcd-cafile " + junk, "no certificate"}},
		"half a pair":   {ClientConfig{Endpoints: https, CertFile: files.cert}, []string{"--etcd-certfile and --etcd-keyfile"}},
		"pair missing":  {ClientConfig{Endpoints: https, CertFile: files.cert, KeyFile: "/none"}, []string{"--etcd-keyfile /none"}},
		"pair no match": {ClientConfig{Endpoints: https, CertFile: ca.file, KeyFile: files.key}, []string{"--etcd-certfile " + ca.file, "private key"}},
		"nobody there":  {ClientConfig{Endpoints: []string{"http://" + freePort(t)}, StartTimeout: time.Millisecond}, []string{"connection refused", "--etcd-servers"}},
		"no socket":     {ClientConfig{Endpoints: []string{"unix:///none.sock"}, StartTimeout: time.Millisecond}, []string{"nothing listens"}},
	} {
		t.Run(name, func(t *testing.T) { wantError(t, test.c, test.want...) })
	}
}
