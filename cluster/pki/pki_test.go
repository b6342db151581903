package pki

import (
	"bytes"
	"crypto/tls"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestLeafIsKeptUntilItMustChange(t *testing.T) {
	now := time.Now()
	d := Dir{Path: t.TempDir(), Now: func() time.Time { return now }}
	ca, err := d.Authority("ca", "kubernetes")
	if err != nil {
		t.Fatal(err)
	}
	want := Leaf{CommonName: "kube-apiserver", Server: true, DNSNames: []string{"kubernetes"}, IPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}}
	first, err := d.Leaf(ca, "apiserver", want)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tls.X509KeyPair(first.Cert, first.Key); err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		name   string
		change func()
		anew   bool
	}{
		{"nothing changed", func() {}, false},
		{"ten months later", func() { now = now.Add(304 * 24 * time.Hour) }, false},
		{"within sixty days of the end", func() { now = now.Add(10 * 24 * time.Hour) }, true},
		{"another address", func() { want.IPs = append(want.IPs, netip.MustParseAddr("192.0.2.1")) }, true},
		{"fewer names", func() { want.DNSNames = nil }, false},
		{"another user", func() { want.CommonName = "other" }, true},
	}
	for _, s := range steps {
		s.change()
		got, err := d.Leaf(ca, "apiserver", want)
		if err != nil {
			t.Fatal(err)
		}
		if anew := !bytes.Equal(got.Cert, first.Cert); anew != s.anew {
			t.Errorf("%s: made anew %v, want %v", s.name, anew, s.anew)
		}
		first = got
	}
	again, err := d.Authority("ca", "kubernetes")
	if err != nil || !bytes.Equal(again.Cert, ca.Cert) {
		t.Fatalf("the CA changed (%v)", err)
	}
}

func TestDamagedFilesAreNamed(t *testing.T) {
	for name, damage := range map[string]func(dir string) error{
		"key missing":   func(dir string) error { return os.Remove(filepath.Join(dir, "ca.key")) },
		"not PEM":       func(dir string) error { return os.WriteFile(filepath.Join(dir, "ca.crt"), []byte("x"), 0o600) },
		"empty key":     func(dir string) error { return os.WriteFile(filepath.Join(dir, "ca.key"), nil, 0o600) },
		"leaf as an CA": func(dir string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			d := Dir{Path: t.TempDir()}
			ca, err := d.Authority("ca", "kubernetes")
			if err != nil {
				t.Fatal(err)
			}
			if name == "leaf as an CA" {
				if _, err := d.Leaf(ca, "leaf", Leaf{CommonName: "x"}); err != nil {
					t.Fatal(err)
				}
				if _, err := d.Authority("leaf", "x"); err == nil {
					t.Fatal("a leaf was taken for a CA")
				}
				return
			}
			if err := damage(d.Path); err != nil {
				t.Fatal(err)
			}
			if _, err := d.Authority("ca", "kubernetes"); err == nil {
				t.Fatal("no error")
			}
		})
	}
}

func TestSigningKey(t *testing.T) {
	d := Dir{Path: t.TempDir()}
	a, err := d.SigningKey("sa")
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.SigningKey("sa")
	if err != nil {
		t.Fatal(err)
	}
	pub, err := os.ReadFile(filepath.Join(d.Path, "sa.pub"))
	if err != nil || !bytes.Contains(pub, []byte("PUBLIC KEY")) {
		t.Fatalf("sa.pub: %q %v", pub, err)
	}
	ka, _ := encodeKey(a)
	kb, _ := encodeKey(b)
	if !bytes.Equal(ka, kb) {
		t.Fatal("the key changed")
	}
}
