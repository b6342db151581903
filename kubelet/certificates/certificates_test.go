package certificates

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io/fs"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"
)

// pair is a certificate that signs itself, with its key.
func pair(t *testing.T, serial int64, from, to time.Time) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "system:node:n"}, NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	kder, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return encode("CERTIFICATE", der), encode("PRIVATE KEY", kder)
}

func TestStores(t *testing.T) {
	dir := t.TempDir()
	current := Current{Dir: filepath.Join(dir, "pki"), Name: "kubelet-client"}
	now := time.Now()
	for name, s := range map[string]Store{"current": current, "pair": Pair{Cert: filepath.Join(dir, "c.crt"), Key: filepath.Join(dir, "c.key")}} {
		if _, err := s.Load(); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: nothing is there: %v", name, err)
		}
		for serial := range int64(3) { // two of them in one second
			cert, key := pair(t, serial+1, now.Add(time.Duration(serial/2)*time.Second), now.Add(time.Hour))
			if err := s.Save(cert, key); err != nil {
				t.Fatal(err)
			}
			got, err := s.Load()
			if err != nil || got.Leaf.SerialNumber.Int64() != serial+1 {
				t.Fatalf("%s: saved %d, loaded %+v, %v", name, serial+1, got, err)
			}
		}
	}
	entries, err := os.ReadDir(current.Dir)
	if err != nil || len(entries) != 2 {
		t.Errorf("in %s are %v (%v), want the link and what it leads to", current.Dir, entries, err)
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().IsRegular() && info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v (%v)", e.Name(), info.Mode(), err)
		}
	}
	// Another link, as upstream makes it, is followed; what it leads to stays.
	cert, key := pair(t, 9, now, now.Add(time.Hour))
	foreign := filepath.Join(dir, "foreign.pem")
	if err := errors.Join(os.WriteFile(foreign, append(cert, key...), 0o600), os.Remove(current.Path()), os.Symlink(foreign, current.Path())); err != nil {
		t.Fatal(err)
	}
	if got, err := current.Load(); err != nil || got.Leaf.SerialNumber.Int64() != 9 {
		t.Fatalf("through another's link: %+v, %v", got, err)
	}
	cert, key = pair(t, 10, now, now.Add(time.Hour))
	if err := current.Save(cert, key); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("a file elsewhere was taken away: %v", err)
	}
	other, _ := pair(t, 11, now, now.Add(time.Hour))
	if err := current.Save(other, key); err == nil {
		t.Error("a key that is not the certificate's is saved")
	}
	if got, err := current.Load(); err != nil || got.Leaf.SerialNumber.Int64() != 10 {
		t.Errorf("after that: %+v, %v", got, err)
	}
}

func TestDue(t *testing.T) {
	from := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	c := &x509.Certificate{NotBefore: from, NotAfter: from.Add(100 * time.Hour)}
	for _, tt := range []struct {
		got    time.Time
		chance float64
		want   time.Duration // after from
	}{
		{time.Time{}, 0, 70 * time.Hour}, {time.Time{}, 1, 90 * time.Hour}, {time.Time{}, 0.5, 80 * time.Hour},
		{from.Add(50 * time.Hour), 0, 85 * time.Hour}, // half was backdated
		{from.Add(-time.Hour), 0, 70 * time.Hour},     // the signer's clock is ahead
	} {
		if due := Due(c, tt.got, tt.chance).Sub(from).Round(time.Second); due != tt.want {
			t.Errorf("got at %s, chance %v: due after %s, want %s", tt.got, tt.chance, due, tt.want)
		}
	}
}

func TestCovers(t *testing.T) {
	name := pkix.Name{CommonName: "system:node:n", Organization: []string{"system:nodes"}}
	have := &x509.Certificate{Subject: name, DNSNames: []string{"n", "m"}, IPAddresses: []net.IP{net.ParseIP("192.0.2.1")}}
	for what, c := range map[string]struct {
		want x509.CertificateRequest
		is   bool
	}{
		"the same":        {x509.CertificateRequest{Subject: name, DNSNames: []string{"n", "m"}, IPAddresses: []net.IP{net.ParseIP("192.0.2.1").To4()}}, true},
		"less":            {x509.CertificateRequest{Subject: name}, true},
		"another address": {x509.CertificateRequest{Subject: name, IPAddresses: []net.IP{net.ParseIP("192.0.2.2")}}, false},
		"another name":    {x509.CertificateRequest{Subject: name, DNSNames: []string{"x"}}, false},
		"another node":    {x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:x", Organization: name.Organization}}, false},
		"another group":   {x509.CertificateRequest{Subject: pkix.Name{CommonName: name.CommonName}}, false},
	} {
		if got := covers(have, &c.want); got != c.is {
			t.Errorf("%s: %v", what, got)
		}
	}
}

// A store that cannot be read is an error, not a reason to ask for another certificate.
func TestDamagedStore(t *testing.T) {
	dir := t.TempDir()
	store := Current{Dir: dir, Name: "x"}
	if err := os.WriteFile(store.Path(), []byte("nonsense"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.Load(); err == nil || errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), store.Path()) {
		t.Errorf("%v, want one that names the file", err)
	}
}

// While a certificate is good a renewal that fails is a warning; once it has ended, nothing but
// joining again helps, and that is said.
func TestEnded(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	store := Current{Dir: t.TempDir(), Name: "x"}
	cert, key := pair(t, 1, now.Add(-time.Hour), now.Add(time.Hour))
	if err := store.Save(cert, key); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	clk := clocktesting.NewFakeClock(now)
	r, err := New(Config{
		Client: fake.NewClientset(), Store: store, Request: func() *x509.CertificateRequest { return nil },
		Mend: "join again", Clock: clk, Logger: slog.New(slog.NewTextHandler(&log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.failed(errors.New("no route"))
	if got := log.String(); !strings.Contains(got, "level=WARN") || strings.Contains(got, "join again") {
		t.Errorf("while it is good: %q", got)
	}
	log.Reset()
	clk.Step(2 * time.Hour)
	r.failed(errors.New("Unauthorized"))
	if got := log.String(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, `mend="join again"`) || strings.Count(got, "\n") != 1 {
		t.Errorf("once it has ended: %q", got)
	}
}
