package csr_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	k8stesting "k8s.io/client-go/testing"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
	"github.com/skiff-k8s/skiff/controllers/csr"
)

func newCA(t *testing.T) csr.CA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(100 * 24 * time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return csr.CA{Certificate: cert, Key: key}
}

func request(t *testing.T, name, signer, user, cn string, orgs []string, ip string, usages ...certificatesv1.KeyUsage) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: cn, Organization: orgs}}
	if ip != "" {
		template.IPAddresses = []net.IP{net.ParseIP(ip)}
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Now()},
		Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: signer, Username: user, Usages: usages,
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})},
	}
}

func TestApproveSignClean(t *testing.T) {
	nodes := []string{"system:nodes"}
	const node, boot = "system:node:n", "system:bootstrap:abc"
	ds, client, server := certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth, certificatesv1.UsageServerAuth
	tests := []struct {
		name             string
		csr              func(t *testing.T) *certificatesv1.CertificateSigningRequest
		approve          bool // by an admin
		approved, signed bool
		failed           string
	}{
		{"own renewal", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", certificatesv1.KubeAPIServerClientKubeletSignerName, node, node, nodes, "", ds, client)
		}, false, true, true, ""},
		{"bootstrap", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", certificatesv1.KubeAPIServerClientKubeletSignerName, boot, node, nodes, "", ds, client)
		}, false, true, true, ""},
		{"another user", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", certificatesv1.KubeAPIServerClientKubeletSignerName, "mallory", node, nodes, "", ds, client)
		}, false, false, false, ""},
		{"other's node", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", certificatesv1.KubeAPIServerClientKubeletSignerName, node, "system:node:other", nodes, "", ds, client)
		}, false, false, false, ""},
		{"serving is for admins", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", certificatesv1.KubeletServingSignerName, node, node, nodes, "10.0.0.1", ds, server)
		}, false, false, false, ""},
		{"serving approved", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", certificatesv1.KubeletServingSignerName, node, node, nodes, "10.0.0.1", ds, server)
		}, true, true, true, ""},
		{"serving without address", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", certificatesv1.KubeletServingSignerName, node, node, nodes, "", ds, server)
		}, true, true, false, "DNS or IP subject alternative name is required"},
		{"masters are not nodes", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", certificatesv1.KubeAPIServerClientKubeletSignerName, node, node, []string{"system:nodes", "system:masters"}, "", ds, client)
		}, true, true, false, "subject organization is not system:nodes"},
		{"client", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", certificatesv1.KubeAPIServerClientSignerName, "admin", "jane", []string{"dev"}, "", ds, client)
		}, true, true, true, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ca := newCA(t)
				e := controllertest.New(t)
				e.Client.PrependReactor("create", "subjectaccessreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
					r := a.(k8stesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
					sub := r.Spec.ResourceAttributes.Subresource
					r.Status.Allowed = sub == "selfnodeclient" && r.Spec.User == node || sub == "nodeclient" && r.Spec.User == boot
					return true, r, nil
				})
				approver, err := csr.NewApprover(e.Config)
				if err != nil {
					t.Fatal(err)
				}
				signer, err := csr.NewSigner(csr.SignerConfig{Config: e.Config, KubeletServing: ca, KubeletClient: ca, APIServerClient: ca})
				if err != nil {
					t.Fatal(err)
				}
				cleaner, err := csr.NewCleaner(e.Config)
				if err != nil {
					t.Fatal(err)
				}
				e.Start(approver, signer, cleaner)
				client := e.Client.CertificatesV1().CertificateSigningRequests()
				c := tt.csr(t)
				if tt.approve {
					c.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
				}
				if _, err := client.Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				e.Settle()
				got, err := client.Get(t.Context(), "c", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				approved, failed := false, ""
				for _, cond := range got.Status.Conditions {
					switch cond.Type {
					case certificatesv1.CertificateApproved:
						approved = true
					case certificatesv1.CertificateFailed:
						failed = cond.Message
					}
				}
				if approved != tt.approved || (len(got.Status.Certificate) > 0) != tt.signed || failed != tt.failed {
					t.Fatalf("approved %v signed %v failed %q; want %v %v %q", approved, len(got.Status.Certificate) > 0, failed, tt.approved, tt.signed, tt.failed)
				}
				if tt.signed {
					verify(t, got, ca)
				}
				e.After(25 * time.Hour)
				if _, err := client.Get(t.Context(), "c", metav1.GetOptions{}); err == nil {
					t.Error("not cleaned up after a day")
				}
			})
		})
	}
}

func verify(t *testing.T, c *certificatesv1.CertificateSigningRequest, ca csr.CA) {
	t.Helper()
	block, _ := pem.Decode(c.Status.Certificate)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca.Certificate)
	if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: time.Now(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
		t.Error(err)
	}
	if cert.NotAfter.After(ca.Certificate.NotAfter) || cert.IsCA {
		t.Errorf("certificate until %s, CA %v", cert.NotAfter, cert.IsCA)
	}
}
