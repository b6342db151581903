package csr

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	listers "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

// How long requests are kept, as upstream does.
const (
	keepDecided = time.Hour
	keepPending = 24 * time.Hour
)

// Cleaner deletes requests that are of no use any more.
type Cleaner struct {
	cfg  controller.Config
	loop *controller.Loop[controller.Key]
	csrs listers.CertificateSigningRequestLister
}

// NewCleaner makes the cleaning controller.
func NewCleaner(cfg controller.Config) (*Cleaner, error) {
	csrs := cfg.Informers.Certificates().V1().CertificateSigningRequests()
	c := &Cleaner{cfg: cfg, csrs: csrs.Lister()}
	c.loop = controller.NewLoop("certificatesigningrequest-cleaner-controller", 1, cfg.Clock, cfg.Logger, c.reconcile)
	return c, controller.Watch(c.loop, csrs.Informer(), controller.Enqueue[*certificatesv1.CertificateSigningRequest](c.loop))
}

// Run reconciles until ctx ends.
func (c *Cleaner) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// endOf is when a request has had its time.
func endOf(csr *certificatesv1.CertificateSigningRequest) time.Time {
	end := csr.CreationTimestamp.Add(keepPending)
	for _, cond := range csr.Status.Conditions {
		at := cond.LastUpdateTime.Time
		if at.IsZero() {
			at = csr.CreationTimestamp.Time
		}
		end = at.Add(keepDecided)
	}
	if block, _ := pem.Decode(csr.Status.Certificate); block != nil {
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && cert.NotAfter.Before(end) {
			end = cert.NotAfter
		}
	}
	return end
}

func (c *Cleaner) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	csr, err := c.csrs.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading CertificateSigningRequest: %w", err)
	}
	if left := endOf(csr).Sub(c.cfg.Clock.Now()); left > 0 {
		return left + time.Second, nil
	}
	err = c.cfg.Client.CertificatesV1().CertificateSigningRequests().Delete(ctx, csr.Name,
		metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(csr.UID)}})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("deleting CertificateSigningRequest: %w", err)
	}
	return 0, nil
}
