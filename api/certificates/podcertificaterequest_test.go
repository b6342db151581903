package certificates

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func podRequest(t *testing.T, k *ecdsa.PrivateKey) *certificatesv1.PodCertificateRequest {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, k)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: "default"},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: "example.com/mesh", PodName: "p", PodUID: "1", ServiceAccountName: "default", ServiceAccountUID: "2",
			NodeName: "n", NodeUID: "3", StubPKCS10Request: der, UnverifiedUserAnnotations: map[string]string{"example.com/a": "b"},
		},
	}
}

func TestPodCertificateRequest(t *testing.T) {
	r := podCertificateRequests(metav1.Now)
	c := podRequest(t, key(t))
	apitest.Want(t, apitest.Create(r, c))
	if *c.Spec.MaxExpirationSeconds != 86400 {
		t.Errorf("default lifetime: %d", *c.Spec.MaxExpirationSeconds)
	}
	apitest.Row(t, r.Row(c, time.Now()), "r", "p", "default", "n", "example.com/mesh", "Pending", "example.com/a=b")
	if f := r.Fields(c); f["spec.signerName"] != "example.com/mesh" || f["spec.podName"] != "p" || f["spec.nodeName"] != "n" {
		t.Errorf("fields: %v", f)
	}

	bad := c.DeepCopy()
	bad.Spec.SignerName = "kubernetes.io/own"
	bad.Spec.MaxExpirationSeconds = ptr.To[int32](86401)
	bad.Spec.UnverifiedUserAnnotations = map[string]string{"plain": ""}
	bad.Spec.PodName, bad.Spec.PodUID, bad.Spec.StubPKCS10Request = "", "", nil
	apitest.Want(t, apitest.Create(r, bad),
		"spec.unverifiedUserAnnotations: Invalid value: \"plain\"",
		`spec.podName: Invalid value: ""`, `spec.podUID: Invalid value: "": must not be empty`,
		"spec.maxExpirationSeconds: Invalid value: 86401: must be in the range [3600, 86400]",
		"spec: Invalid value: exactly one of (stubPKCS10Request)")
	for _, stub := range []struct {
		curve  elliptic.Curve
		broken bool
		want   string
	}{
		{elliptic.P224(), false, `spec.stubPKCS10Request: Invalid value: "curve P-224": elliptic public keys must use`},
		{elliptic.P256(), true, "spec.stubPKCS10Request: Invalid value: invalid signature"},
	} {
		k, err := ecdsa.GenerateKey(stub.curve, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		c := podRequest(t, k)
		if stub.broken {
			// The signature's last byte: still DER, but of another number.
			c.Spec.StubPKCS10Request[len(c.Spec.StubPKCS10Request)-1] ^= 1
		}
		apitest.Want(t, apitest.Create(r, c), stub.want)
	}
	c2 := c.DeepCopy()
	c2.Spec.StubPKCS10Request = []byte("no")
	apitest.Want(t, apitest.Create(r, c2), "spec.stubPKCS10Request: Invalid value: must be a valid PKCS#10 CSR")
	c2.Spec.StubPKCS10Request = make([]byte, 11<<10)
	apitest.Want(t, apitest.Create(r, c2), "spec.stubPKCS10Request: Too long")
	apitest.Want(t, apitest.Update(r, c2, c), "spec: Invalid value")
}

func issue(t *testing.T, k *ecdsa.PrivateKey, start, end time.Time, dns ...string) string {
	t.Helper()
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: start, NotAfter: end, DNSNames: dns}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func TestPodCertificateRequestStatus(t *testing.T) {
	now := metav1.Unix(1_700_000_000, 0)
	r := podCertificateRequests(func() metav1.Time { return now })
	k := key(t)
	old := podRequest(t, k)
	apitest.Want(t, apitest.Create(r, old))
	ok := certificatesv1.PodCertificateRequestStatus{
		Conditions:       []metav1.Condition{{Type: "Issued", Status: "True", Reason: "R", LastTransitionTime: now}},
		CertificateChain: issue(t, k, now.Time, now.Add(2*time.Hour)) + string(certificatePEM(t, true)),
		NotBefore:        &now, NotAfter: ptr.To(metav1.NewTime(now.Add(2 * time.Hour))), BeginRefreshAt: ptr.To(metav1.NewTime(now.Add(time.Hour))),
	}
	issued := old.DeepCopy()
	issued.Status = ok
	issued.Labels = map[string]string{"not": "kept"}
	apitest.Want(t, apitest.UpdateSub(t, r, "status", issued, old))
	if issued.Labels != nil {
		t.Error("labels changed through status")
	}
	apitest.Row(t, r.Row(issued, now.Time), "r", "p", "default", "n", "example.com/mesh", "Issued", "example.com/a=b")

	const chain = "status.certificateChain: "
	at := func(d time.Duration) *metav1.Time { return ptr.To(metav1.NewTime(now.Add(d))) }
	for _, c := range []struct {
		change func(*certificatesv1.PodCertificateRequestStatus)
		want   []string
	}{
		{func(s *certificatesv1.PodCertificateRequestStatus) { *s = certificatesv1.PodCertificateRequestStatus{} }, nil},
		{func(s *certificatesv1.PodCertificateRequestStatus) { s.Conditions = nil }, []string{"status: Invalid value: status is immutable unless transitioning"}},
		{func(s *certificatesv1.PodCertificateRequestStatus) { s.Conditions[0].Type = "Denied" }, []string{"status: Invalid value: non-condition status fields must be empty"}},
		{func(s *certificatesv1.PodCertificateRequestStatus) {
			s.Conditions = append(s.Conditions, metav1.Condition{Type: "Failed", Status: "False", Reason: "R", LastTransitionTime: now}, metav1.Condition{Type: "Odd", Status: "True", Reason: "R", LastTransitionTime: now})
		}, []string{`status.conditions.[1].type: Invalid value: "Failed": There may be at most one`, `status.conditions.[1].status: Unsupported value: "False"`, `status.conditions.[2].type: Unsupported value: "Odd"`}},
		{func(s *certificatesv1.PodCertificateRequestStatus) { s.CertificateChain = strings.Repeat("x", 101<<10) }, []string{chain + "Too long"}},
		{func(s *certificatesv1.PodCertificateRequestStatus) { s.CertificateChain = "x" }, []string{chain + `Invalid value: "x": issued certificate chain must contain at least one certificate`}},
		{func(s *certificatesv1.PodCertificateRequestStatus) { s.CertificateChain = string(requestPEM(t)) }, []string{chain + "Invalid value"}},
		{func(s *certificatesv1.PodCertificateRequestStatus) {
			s.CertificateChain = issue(t, key(t), now.Time, now.Add(2*time.Hour))
		}, []string{chain + "Invalid value"}},
		{func(s *certificatesv1.PodCertificateRequestStatus) { s.CertificateChain += string(requestPEM(t)) }, []string{chain + "Invalid value"}},
		{func(s *certificatesv1.PodCertificateRequestStatus) {
			s.NotBefore, s.NotAfter, s.BeginRefreshAt = nil, nil, nil
		}, []string{"status.notBefore: Required value", "status.notAfter: Required value", "status.beginRefreshAt: Required value"}},
		{func(s *certificatesv1.PodCertificateRequestStatus) { s.NotBefore = at(time.Second) }, []string{"status.notBefore: Invalid value"}},
		{func(s *certificatesv1.PodCertificateRequestStatus) { s.NotAfter = at(time.Second) }, []string{"status.notAfter: Invalid value"}},
		{func(s *certificatesv1.PodCertificateRequestStatus) { s.BeginRefreshAt = at(time.Minute) }, []string{"status.beginRefreshAt: Invalid value"}},
		{func(s *certificatesv1.PodCertificateRequestStatus) { s.BeginRefreshAt = at(119 * time.Minute) }, []string{"status.beginRefreshAt: Invalid value"}},
		{func(s *certificatesv1.PodCertificateRequestStatus) {
			s.CertificateChain, s.NotAfter = issue(t, k, now.Time, now.Add(time.Minute)), at(time.Minute)
		}, []string{chain + "Invalid value: "}},
		{func(s *certificatesv1.PodCertificateRequestStatus) {
			s.CertificateChain, s.NotAfter = issue(t, k, now.Time, now.Add(25*time.Hour)), at(25*time.Hour)
		}, []string{chain + "Invalid value: "}},
		{func(s *certificatesv1.PodCertificateRequestStatus) {
			s.CertificateChain, s.NotBefore = issue(t, k, now.Add(-time.Hour), now.Add(2*time.Hour)), at(-time.Hour)
		}, []string{"status.notBefore: Invalid value"}},
		{func(s *certificatesv1.PodCertificateRequestStatus) {
			s.CertificateChain = issue(t, k, now.Time, now.Add(2*time.Hour), ".a..b")
		}, []string{chain + `Invalid value: ".a..b": leaf certificate's DNSName should not contain '..'`, chain + `Invalid value: ".a..b": leaf certificate's DNSName should not start or end with '.'`}},
	} {
		next := old.DeepCopy()
		next.Status = *ok.DeepCopy()
		c.change(&next.Status)
		apitest.Want(t, apitest.UpdateSub(t, r, "status", next, old), c.want...)
	}
	gone := issued.DeepCopy()
	gone.Status.Conditions = nil
	apitest.Want(t, apitest.UpdateSub(t, r, "status", gone, issued), "status: Invalid value: immutable after PodCertificateRequest is issued, denied, or failed")
}
