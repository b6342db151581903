package volumes

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/host/mount"
)

// signer answers requests, as decide says, when they are made.
func signer(client *fake.Clientset, decide func(n int, r *certificatesv1.PodCertificateRequest)) *int {
	n := 0
	client.PrependReactor("create", "podcertificaterequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
		n++
		r := a.(clienttesting.CreateAction).GetObject().(*certificatesv1.PodCertificateRequest).DeepCopy()
		r.Name = fmt.Sprint(r.GenerateName, n)
		if csr, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request); err != nil || csr.CheckSignature() != nil {
			return true, nil, fmt.Errorf("the request proves no key: %v", err)
		}
		decide(n, r)
		return true, r, client.Tracker().Add(r)
	})
	return &n
}

func certificatePod(mutate func(*corev1.PodCertificateProjection)) *corev1.Pod {
	p := &corev1.PodCertificateProjection{SignerName: "example.com/s", KeyType: "ED25519", CredentialBundlePath: "both.pem", KeyPath: "key.pem", CertificateChainPath: "chain.pem",
		MaxExpirationSeconds: ptr.To[int32](3600), UserAnnotations: map[string]string{"example.com/a": "b"}}
	if mutate != nil {
		mutate(p)
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
		Spec: corev1.PodSpec{NodeName: "n1", ServiceAccountName: "sa", Volumes: []corev1.Volume{{Name: "tls", VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{DefaultMode: ptr.To[int32](0o644), Sources: []corev1.VolumeProjection{{PodCertificate: p}}}}}}},
	}
}

func certificateClient() *fake.Clientset {
	return fake.NewClientset(
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "sa", UID: "sa-uid"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "n-uid"}})
}

func issue(r *certificatesv1.PodCertificateRequest, chain string, from time.Time) {
	r.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions:       []metav1.Condition{{Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue}},
		CertificateChain: chain, NotBefore: ptr.To(metav1.NewTime(from)),
		BeginRefreshAt: ptr.To(metav1.NewTime(from.Add(50 * time.Minute))), NotAfter: ptr.To(metav1.NewTime(from.Add(time.Hour))),
	}
}

func block(text string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)}))
}

func TestPodCertificate(t *testing.T) {
	ctx := context.Background()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	clk := testclock.NewFakeClock(start)
	client := certificateClient()
	asked := signer(client, func(n int, r *certificatesv1.PodCertificateRequest) {
		s := r.Spec
		if s.PodUID != "u" || s.ServiceAccountUID != "sa-uid" || s.NodeUID != "n-uid" || s.NodeName != "n1" || *s.MaxExpirationSeconds != 3600 || s.UnverifiedUserAnnotations["example.com/a"] != "b" {
			t.Errorf("request %+v", s)
		}
		if n != 2 { // the second stays undecided
			issue(r, "noise\n"+block(fmt.Sprint("cert", n)), clk.Now())
		}
	})
	m := manager(t, &mount.Twin{}, nil, client, clk)
	pod := certificatePod(nil)
	setup := func() time.Time {
		t.Helper()
		next, err := m.Setup(ctx, pod)
		if err != nil {
			t.Fatal(err)
		}
		return next
	}
	file := func(name string) string {
		t.Helper()
		dir, err := m.Path(pod.UID, "tls")
		if err != nil {
			t.Fatal(err)
		}
		return read(t, filepath.Join(dir, name))
	}
	next := setup()
	if after := next.Sub(start); after < 50*time.Minute || after > 55*time.Minute {
		t.Errorf("comes again after %s, want 50 to 55 minutes", after)
	}
	first := file("key.pem")
	if file("chain.pem") != block("cert1") || file("both.pem") != first+block("cert1") {
		t.Errorf("chain %q, both %q", file("chain.pem"), file("both.pem"))
	}
	if setup(); *asked != 1 {
		t.Errorf("asked %d times for one certificate", *asked)
	}

	// A signer that is slow keeps the pod on what it has.
	clk.SetTime(next)
	if again := setup(); again.Sub(next) != pendingCheck || *asked != 2 || file("key.pem") != first {
		t.Errorf("comes again after %s, asked %d times", again.Sub(next), *asked)
	}
	// The request is deleted: the next one is issued, for a new key.
	if err := client.Tracker().Delete(certificatesv1.SchemeGroupVersion.WithResource("podcertificaterequests"), "ns", "req-2"); err != nil {
		t.Fatal(err)
	}
	if setup(); *asked != 3 || file("key.pem") == first || file("chain.pem") != block("cert3") {
		t.Errorf("asked %d times, chain %q", *asked, file("chain.pem"))
	}
	if err := m.Teardown(pod.UID); err != nil {
		t.Fatal(err)
	}
	if setup(); *asked != 4 {
		t.Errorf("asked %d times; a torn down pod's certificate was kept", *asked)
	}
}

func TestPodCertificateRefused(t *testing.T) {
	for kind, want := range map[string]string{
		certificatesv1.PodCertificateRequestConditionTypeDenied: `permanently denied: reason="No" message="never"`,
		certificatesv1.PodCertificateRequestConditionTypeFailed: `permanently failed: reason="No" message="never"`,
	} {
		client := certificateClient()
		asked := signer(client, func(_ int, r *certificatesv1.PodCertificateRequest) {
			r.Status.Conditions = []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue, Reason: "No", Message: "never"}}
		})
		m := manager(t, &mount.Twin{}, nil, client, testclock.NewFakeClock(time.Now()))
		for range 2 {
			if _, err := m.Setup(t.Context(), certificatePod(nil)); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v", kind, err)
			}
		}
		if *asked != 1 {
			t.Errorf("%s: asked %d times; a refusal is final", kind, *asked)
		}
	}
}

func TestNewKey(t *testing.T) {
	for kind, want := range map[string]x509.PublicKeyAlgorithm{"ECDSAP256": x509.ECDSA, "ECDSAP384": x509.ECDSA, "ECDSAP521": x509.ECDSA, "ED25519": x509.Ed25519, "RSA3072": x509.RSA} {
		key, proof, err := newKey(kind)
		if err != nil {
			t.Fatal(err)
		}
		csr, err := x509.ParseCertificateRequest(proof)
		if err != nil || csr.PublicKeyAlgorithm != want || !strings.HasPrefix(string(key), "-----BEGIN PRIVATE KEY") {
			t.Errorf("%s: %v, %v", kind, csr, err)
		}
	}
	if _, _, err := newKey("DSA"); err == nil {
		t.Error("an unknown type of key was made")
	}
}
