package certs

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

func bundle() Bundle {
	b := Bundle{Files: map[string][]byte{}, Settings: []byte(`{"a":1}`)}
	for _, name := range append(files[:len(files):len(files)], etcdFiles...) {
		b.Files[name] = []byte("text of " + name)
	}
	return b
}

func TestRoundTrip(t *testing.T) {
	client, key, want := fake.NewClientset(), NewKey(), bundle()
	now := time.Now()
	for range 2 { // a second upload replaces the first
		if err := Upload(t.Context(), client, key, want, "joining", now); err != nil {
			t.Fatal(err)
		}
	}
	raw, err := ParseKey(key)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Download(t.Context(), client, raw)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := got.Write(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(dir, "ca.crt"), 0o644); err != nil {
		t.Fatal(err)
	}
	back, err := Read(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range want.Files {
		if !bytes.Equal(back[name], text) {
			t.Errorf("%s became %q", name, back[name])
		}
	}
	if !bytes.Equal(got.Settings, want.Settings) {
		t.Errorf("settings became %s", got.Settings)
	}
	if st, err := os.Stat(filepath.Join(dir, "etcd", "ca.key")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("etcd/ca.key: %v %v", st, err)
	}
	s, err := client.CoreV1().Secrets("kube-system").Get(t.Context(), SecretName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// As kubeadm reads it: 12 bytes of nonce, then AES-256-GCM.
	k, _ := hex.DecodeString(key)
	block, _ := aes.NewCipher(k)
	gcm, _ := cipher.NewGCM(block)
	if text, err := gcm.Open(nil, s.Data["etcd-ca.key"][:12], s.Data["etcd-ca.key"][12:], nil); err != nil || string(text) != "text of etcd/ca.key" {
		t.Errorf("etcd-ca.key is %q (%v)", text, err)
	}
	owner := s.OwnerReferences[0]
	token, err := client.CoreV1().Secrets("kube-system").Get(t.Context(), owner.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if ends := token.StringData["expiration"]; ends != now.Add(2*time.Hour).UTC().Format(time.RFC3339) {
		t.Errorf("it ends at %s", ends)
	}
	if token.StringData["usage-bootstrap-authentication"] != "" {
		t.Error("the token that ends it lets machines in")
	}
}

func TestBadInput(t *testing.T) {
	client := fake.NewClientset()
	raw, _ := ParseKey(NewKey())
	if _, err := Download(t.Context(), client, raw); err == nil || !strings.Contains(err.Error(), "lives for 2h") {
		t.Errorf("a Secret that is gone: %v", err)
	}
	if err := Upload(t.Context(), client, NewKey(), bundle(), "joining", time.Now()); err != nil {
		t.Fatal(err)
	}
	if _, err := Download(t.Context(), client, raw); err == nil || !strings.Contains(err.Error(), "--certificate-key is not the one") {
		t.Errorf("another key: %v", err)
	}
	for _, bad := range []string{"", "xyz", strings.Repeat("0", 62), strings.Repeat("g", 64)} {
		if _, err := ParseKey(bad); err == nil {
			t.Errorf("key %q was taken", bad)
		}
	}
}
