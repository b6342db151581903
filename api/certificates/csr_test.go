package certificates

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/apitest"
)

func key(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func requestPEM(t *testing.T) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:n1"}}, key(t))
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func certificatePEM(t *testing.T, ca bool) []byte {
	t.Helper()
	k := key(t)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), IsCA: ca, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func csr(t *testing.T, change func(*certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
	c := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", CreationTimestamp: metav1.Unix(1000, 0)},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request: requestPEM(t), SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
	if change != nil {
		change(c)
	}
	return c
}

var resource = certificateSigningRequests(func() metav1.Time { return metav1.Unix(2000, 0) })

func TestRequesterIsRecorded(t *testing.T) {
	c := csr(t, func(c *certificatesv1.CertificateSigningRequest) {
		c.Spec.Username, c.Spec.Groups = "system:admin", []string{"system:masters"}
		c.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: "Approved", Status: "True"}}
	})
	ctx := request.WithUser(context.Background(), &user.DefaultInfo{Name: "jane", UID: "1", Groups: []string{"devs"}, Extra: map[string][]string{"k": {"v"}}})
	resource.PrepareCreate(ctx, c)
	if c.Spec.Username != "jane" || c.Spec.UID != "1" || len(c.Spec.Groups) != 1 || c.Spec.Groups[0] != "devs" || c.Spec.Extra["k"][0] != "v" {
		t.Errorf("%+v", c.Spec)
	}
	if len(c.Status.Conditions) != 0 {
		t.Error("created approved")
	}
}

func TestCSRValidation(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*certificatesv1.CertificateSigningRequest)
		errs   []string
	}{
		"fine":   {nil, nil},
		"no PEM": {func(c *certificatesv1.CertificateSigningRequest) { c.Spec.Request = []byte("x") }, []string{"spec.request: Invalid value"}},
		"tampered": {func(c *certificatesv1.CertificateSigningRequest) {
			block, _ := pem.Decode(c.Spec.Request)
			block.Bytes = bytes.Replace(block.Bytes, []byte("system:node:n1"), []byte("system:node:n2"), 1)
			c.Spec.Request = pem.EncodeToMemory(block)
		}, []string{"spec.request: Invalid value"}},
		"usages": {func(c *certificatesv1.CertificateSigningRequest) { c.Spec.Usages = nil }, []string{"spec.usages: Required value"}},
		"unknown usage": {func(c *certificatesv1.CertificateSigningRequest) {
			c.Spec.Usages = []certificatesv1.KeyUsage{"fun", "client auth", "client auth"}
		}, []string{`spec.usages[0]: Unsupported value: "fun": supported values: "any", "cert sign"`, `spec.usages[2]: Duplicate value: "client auth"`}},
		"signer": {func(c *certificatesv1.CertificateSigningRequest) { c.Spec.SignerName = "me" }, []string{`spec.signerName: Invalid value: "me": must be a fully qualified domain and path`}},
		"signer parts": {func(c *certificatesv1.CertificateSigningRequest) { c.Spec.SignerName = "Me/a_b" }, []string{
			`spec.signerName: Invalid value: "Me": validating label "Me": `, `spec.signerName: Invalid value: "Me": should be a domain with at least two segments`,
			`spec.signerName: Invalid value: "a_b": validating label "a_b": `}},
		"legacy":     {func(c *certificatesv1.CertificateSigningRequest) { c.Spec.SignerName = "kubernetes.io/legacy-unknown" }, []string{`spec.signerName: Invalid value: "kubernetes.io/legacy-unknown": the legacy signerName is not allowed via this API version`}},
		"expiration": {func(c *certificatesv1.CertificateSigningRequest) { c.Spec.ExpirationSeconds = ptr.To[int32](599) }, []string{"spec.expirationSeconds: Invalid value: 599: may not specify a duration less than 600 seconds (10 minutes)"}},
	} {
		t.Run(name, func(t *testing.T) { apitest.Want(t, apitest.Create(resource, csr(t, c.change)), c.errs...) })
	}
}

func TestApprovalAndSigning(t *testing.T) {
	old := csr(t, nil)
	approved := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: "True", Reason: "r"}

	next := old.DeepCopy()
	next.Spec.SignerName = "x.y/z"
	next.Status.Certificate = []byte("x")
	apitest.Want(t, apitest.Update(resource, next, old))
	if next.Spec.SignerName != old.Spec.SignerName || next.Status.Certificate != nil {
		t.Error("the object itself can be changed")
	}

	next = old.DeepCopy()
	next.Status.Conditions = append(next.Status.Conditions, approved)
	apitest.Want(t, apitest.UpdateSub(t, resource, "status", next, old), `status.conditions: Forbidden: updates may not add a condition of type "Approved"`)

	next = old.DeepCopy()
	next.Status.Conditions = append(next.Status.Conditions, approved)
	next.Status.Certificate = certificatePEM(t, false)
	apitest.Want(t, apitest.UpdateSub(t, resource, "approval", next, old))
	if next.Status.Certificate != nil || next.Status.Conditions[0].LastUpdateTime.Unix() != 2000 || next.Status.Conditions[0].LastTransitionTime.Unix() != 2000 {
		t.Errorf("%+v", next.Status)
	}
	accepted := next

	next = accepted.DeepCopy()
	next.Status.Conditions = append(next.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: "Denied", Status: "False"})
	apitest.Want(t, apitest.UpdateSub(t, resource, "approval", next, accepted),
		`status.conditions: Invalid value: "Denied": Approved and Denied conditions are mutually exclusive`,
		`status.conditions[1].status: Unsupported value: "False": supported values: "True"`)
	next = accepted.DeepCopy()
	next.Status.Conditions = nil
	apitest.Want(t, apitest.UpdateSub(t, resource, "approval", next, accepted), `status.conditions: Forbidden: updates may not remove a condition of type "Approved"`)

	issued := accepted.DeepCopy()
	issued.Status.Certificate = certificatePEM(t, false)
	issued.Status.Conditions[0].Reason = "changed"
	apitest.Want(t, apitest.UpdateSub(t, resource, "status", issued, accepted))
	if issued.Status.Conditions[0].Reason != "r" {
		t.Error("status updates change the approval")
	}
	next = issued.DeepCopy()
	next.Status.Certificate = []byte("rubbish")
	apitest.Want(t, apitest.UpdateSub(t, resource, "status", next, issued),
		`status.certificate: Invalid value: "<certificate data>": must contain at least one CERTIFICATE PEM block`,
		"status.certificate: Forbidden: updates may not modify existing certificate content")

	apitest.Row(t, resource.Row(issued, time.Unix(1060, 0)), "n1", "60s", "kubernetes.io/kube-apiserver-client-kubelet", "", "<none>", "Approved,Issued")
	if f := resource.Fields(issued); f["spec.signerName"] != issued.Spec.SignerName {
		t.Error(f)
	}
}

func TestClusterTrustBundle(t *testing.T) {
	r := clusterTrustBundles()
	ca, leaf := string(certificatePEM(t, true)), string(certificatePEM(t, false))
	bundle := func(name, signer, anchors string) *certificatesv1.ClusterTrustBundle {
		return &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: anchors}}
	}
	apitest.Want(t, apitest.Create(r, bundle("b", "", ca)))
	apitest.Want(t, apitest.Create(r, bundle("a.b:c:b", "a.b/c", ca)))
	apitest.Want(t, apitest.Create(r, bundle("b", "a.b/c", ca)), `metadata.name: Invalid value: "b": ClusterTrustBundle for signerName a.b/c must be named with prefix a.b:c:`)
	apitest.Want(t, apitest.Create(r, bundle("b", "", leaf)), `spec.trustBundle: Invalid value: "<value omitted>": entry 0 does not have the CA bit set`)
	apitest.Want(t, apitest.Create(r, bundle("b", "", "")), `spec.trustBundle: Invalid value: "<value omitted>": at least one trust anchor must be provided`)
	apitest.Want(t, apitest.Create(r, bundle("b", "", ca+ca)), `spec.trustBundle: Invalid value: "<value omitted>": duplicate trust anchor (indices [0 1])`)
	apitest.Want(t, apitest.Create(r, bundle("b", "", strings.Repeat("x", 1<<20+1))), "spec.trustBundle: Too long")
	apitest.Want(t, apitest.Update(r, bundle("b", "", leaf), bundle("b", "", leaf)))
	apitest.Want(t, apitest.Update(r, bundle("a.b:c:b", "a.b/c", ca), bundle("a.b:c:b", "a.b/d", ca)), "spec.signerName: Invalid value")
}
