package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	mathrand "math/rand/v2"
	"net"
	"slices"
	"sync/atomic"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/certificate/csr"
	"k8s.io/utils/clock"
)

const (
	// look is how often it is asked whether the certificate still names what it should.
	look = 10 * time.Second
	// waitSigned is how long a request is waited for; it may need an administrator's approval.
	waitSigned = 15 * time.Minute
	// retry and retryMost are the shortest and longest pause between requests that fail.
	retry, retryMost = time.Second, 2 * time.Minute
)

// Config of a Rotator.
type Config struct {
	// Client requests, as the node.
	Client kubernetes.Interface
	Store  Store
	// Signer is who is to sign, for a Purpose: client auth or server auth.
	Signer  string
	Purpose certificatesv1.KeyUsage
	// Request is what the certificate is to be for now; nil while that is not known.
	Request func() *x509.CertificateRequest
	// Renewed is told after each change, once whoever reads the files has had Settle to find it.
	Renewed func()
	Settle  time.Duration
	// Mend is what to do once the certificate has ended and can no longer be used to renew itself.
	Mend   string
	Clock  clock.WithTicker
	Logger *slog.Logger
}

// Rotator keeps one certificate good.
type Rotator struct {
	cfg     Config
	current atomic.Pointer[tls.Certificate]
	due     time.Time
}

// New loads what is stored; nothing runs yet.
func New(cfg Config) (*Rotator, error) {
	if cfg.Client == nil || cfg.Store == nil || cfg.Request == nil || cfg.Logger == nil {
		return nil, errors.New("certificates: Client, Store, Request and Logger are required")
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	r := &Rotator{cfg: cfg}
	cert, err := cfg.Store.Load()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err == nil {
		r.set(cert, time.Time{})
	}
	return r, nil
}

func (r *Rotator) set(cert *tls.Certificate, got time.Time) {
	r.due = Due(cert.Leaf, got, mathrand.Float64())
	r.current.Store(cert)
}

// GetCertificate serves with the current certificate.
func (r *Rotator) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := r.current.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("the cluster has not signed a serving certificate yet (kubectl get csr)")
}

// Run renews until ctx ends.
func (r *Rotator) Run(ctx context.Context) error {
	pause := retry
	for {
		wait := look
		if want := r.cfg.Request(); want != nil && r.needs(want) {
			err := r.renew(ctx, want)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				r.failed(err)
				wait, pause = pause, min(2*pause, retryMost)
			} else {
				pause = retry
			}
		}
		if c := r.current.Load(); c != nil && wait == look {
			wait = max(0, min(look, r.due.Sub(r.cfg.Clock.Now())))
		}
		timer := r.cfg.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// failed tells of a renewal that came to nothing.
func (r *Rotator) failed(err error) {
	if c := r.current.Load(); c != nil && r.cfg.Mend != "" && r.cfg.Clock.Now().After(c.Leaf.NotAfter) {
		r.cfg.Logger.Error("the certificate has ended", "signer", r.cfg.Signer, "at", c.Leaf.NotAfter, "mend", r.cfg.Mend, "err", err)
		return
	}
	r.cfg.Logger.Warn("renew certificate", "signer", r.cfg.Signer, "err", err)
}

// needs says whether the certificate is missing, due or for other names.
func (r *Rotator) needs(want *x509.CertificateRequest) bool {
	c := r.current.Load()
	return c == nil || !r.cfg.Clock.Now().Before(r.due) || !covers(c.Leaf, want)
}

// covers says whether a certificate is for the subject and all names that are wanted.
func covers(have *x509.Certificate, want *x509.CertificateRequest) bool {
	for _, n := range want.DNSNames {
		if !slices.Contains(have.DNSNames, n) {
			return false
		}
	}
	for _, ip := range want.IPAddresses {
		if !slices.ContainsFunc(have.IPAddresses, func(h net.IP) bool { return h.Equal(ip) }) {
			return false
		}
	}
	return have.Subject.CommonName == want.Subject.CommonName && slices.Equal(have.Subject.Organization, want.Subject.Organization)
}

func (r *Rotator) renew(ctx context.Context, want *x509.CertificateRequest) error {
	cert, key, err := Request(ctx, r.cfg.Client, want, r.cfg.Signer, r.cfg.Purpose, r.cfg.Logger)
	if err != nil {
		return err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("use the signed certificate: %w", err)
	}
	if err := r.cfg.Store.Save(cert, key); err != nil {
		return err
	}
	r.set(&pair, r.cfg.Clock.Now())
	r.cfg.Logger.Info("certificate renewed", "signer", r.cfg.Signer, "until", pair.Leaf.NotAfter, "renewed again", r.due)
	if r.cfg.Renewed == nil {
		return nil
	}
	timer := r.cfg.Clock.NewTimer(r.cfg.Settle)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
		r.cfg.Renewed()
	}
	return nil
}

// Request makes a key, requests a certificate for it and waits until that is signed. Both
// are returned as PEM.
func Request(ctx context.Context, client kubernetes.Interface, want *x509.CertificateRequest, signer string, purpose certificatesv1.KeyUsage, log *slog.Logger) (cert, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, want, key)
	if err != nil {
		return nil, nil, fmt.Errorf("make certificate request: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, waitSigned)
	defer cancel()
	usages := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, purpose}
	name, uid, err := csr.RequestCertificateWithContext(ctx, client, encode("CERTIFICATE REQUEST", der), "", signer, nil, usages, key)
	if err != nil {
		return nil, nil, fmt.Errorf("request certificate: %w", err)
	}
	log.Debug("waiting for the certificate", "request", name, "signer", signer)
	if cert, err = csr.WaitForCertificate(ctx, client, name, uid); err != nil {
		return nil, nil, fmt.Errorf("wait for the certificate (kubectl certificate approve %s): %w", name, err)
	}
	if der, err = x509.MarshalPKCS8PrivateKey(key); err != nil {
		return nil, nil, fmt.Errorf("encode key: %w", err)
	}
	return cert, encode("PRIVATE KEY", der), nil
}
