package csr_test

import (
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/controllers/controllertest"
	"github.com/skiff-k8s/skiff/controllers/csr"
)

func TestServingCertificatesOfNodes(t *testing.T) {
	nodes := []string{"system:nodes"}
	const node = "system:node:n"
	ds, client, server := certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth, certificatesv1.UsageServerAuth
	serving := certificatesv1.KubeletServingSignerName
	for _, tt := range []struct {
		name     string
		csr      func(t *testing.T) *certificatesv1.CertificateSigningRequest
		groups   []string
		want     bool
		wantLate bool // once the node has the address
	}{
		{"its own address", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", serving, node, node, nodes, "10.0.0.1", ds, server)
		}, nodes, true, true},
		{"an address that it has not yet", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", serving, node, node, nodes, "10.0.0.2", ds, server)
		}, nodes, false, true},
		{"another's address", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", serving, node, node, nodes, "10.0.0.9", ds, server)
		}, nodes, false, false},
		{"another node's", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", serving, "system:node:m", node, nodes, "10.0.0.1", ds, server)
		}, nodes, false, false},
		{"a node that is not there", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", serving, "system:node:gone", "system:node:gone", nodes, "10.0.0.1", ds, server)
		}, nodes, false, false},
		{"of a user named like a node", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", serving, node, node, nodes, "10.0.0.1", ds, server)
		}, []string{"dev"}, false, false},
		{"for clients too", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", serving, node, node, nodes, "10.0.0.1", ds, server, client)
		}, nodes, false, false},
		{"of another signer", func(t *testing.T) *certificatesv1.CertificateSigningRequest {
			return request(t, "c", certificatesv1.KubeAPIServerClientKubeletSignerName, node, node, nodes, "", ds, client)
		}, nodes, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
					{Type: corev1.NodeHostName, Address: "n"}, {Type: corev1.NodeInternalIP, Address: "10.0.0.1"}}}}
				e := controllertest.New(t, n)
				approver, err := csr.NewServingApprover(e.Config)
				if err != nil {
					t.Fatal(err)
				}
				e.Start(approver)
				c := tt.csr(t)
				c.Spec.Groups = tt.groups
				all := e.Client.CertificatesV1().CertificateSigningRequests()
				if _, err := all.Create(t.Context(), c, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				approved := func() bool {
					e.Settle()
					got, err := all.Get(t.Context(), "c", metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					return slices.ContainsFunc(got.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
						return c.Type == certificatesv1.CertificateApproved
					})
				}
				if got := approved(); got != tt.want {
					t.Errorf("approved %v, want %v", got, tt.want)
				}
				n = n.DeepCopy()
				n.Status.Addresses[1].Address = "10.0.0.2"
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: "10.0.0.1"})
				if _, err := e.Client.CoreV1().Nodes().UpdateStatus(t.Context(), n, metav1.UpdateOptions{}); err != nil {
					t.Fatal(err)
				}
				if got := approved(); got != tt.wantLate {
					t.Errorf("approved %v with another address, want %v", got, tt.wantLate)
				}
			})
		})
	}
}

// As upstream: backdating takes from a long life only.
func TestLives(t *testing.T) {
	ca := newCA(t)
	now := time.Now().Truncate(time.Second)
	c := request(t, "c", "", "", "jane", nil, "")
	block, _ := pem.Decode(c.Spec.Request)
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	for life, want := range map[time.Duration]time.Duration{
		time.Minute: time.Minute, 7 * time.Hour: 7 * time.Hour,
		8 * time.Hour: 8*time.Hour - 5*time.Minute, 48 * time.Hour: 48*time.Hour - 5*time.Minute,
	} {
		text, err := csr.Sign(ca, r, []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}, life, now)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if got := cert.NotAfter.Sub(now); got != want || !cert.NotBefore.Equal(now.Add(-5*time.Minute)) {
			t.Errorf("a life of %s is good from %s to %s from now", life, cert.NotBefore.Sub(now), got)
		}
	}
}
