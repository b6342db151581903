package authn

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/clock"
)

// certificates verifies client certificates and remembers the result for as long as
// the connection's certificate, the CA pool and the validity hold: a chain costs some
// 100 µs to verify, and a connection carries many requests.
type certificates struct {
	pool  func() *x509.CertPool
	clock clock.PassiveClock

	mu       sync.RWMutex
	verified map[*x509.Certificate]verifiedCertificate
}

type verifiedCertificate struct {
	pool  *x509.CertPool
	until time.Time
	resp  *authenticator.Response
	// nobody says why a good certificate names no user.
	nobody error
}

// maxVerified bounds the memory of verified certificates (about 1 kB each).
const maxVerified = 4096

func newCertificates(pool func() *x509.CertPool, c clock.PassiveClock) *certificates {
	return &certificates{pool: pool, clock: c, verified: map[*x509.Certificate]verifiedCertificate{}}
}

func (c *certificates) AuthenticateRequest(req *http.Request) (*authenticator.Response, bool, error) {
	if req.TLS == nil || len(req.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	v, err := c.lookUp(req.TLS.PeerCertificates)
	if err != nil {
		return nil, false, err
	}
	if v.nobody != nil {
		return nil, false, v.nobody
	}
	return v.resp, v.resp != nil, nil
}

// verify tells whether the chain leads to the pool, whoever it names.
func (c *certificates) verify(chain []*x509.Certificate) error {
	v, err := c.lookUp(chain)
	if err == nil && v.pool == nil {
		return errors.New("no certificate authority is trusted")
	}
	return err
}

// lookUp verifies a chain, its leaf first, or remembers that it did.
func (c *certificates) lookUp(chain []*x509.Certificate) (verifiedCertificate, error) {
	pool := c.pool()
	if pool == nil {
		return verifiedCertificate{}, nil
	}
	leaf, now := chain[0], c.clock.Now()
	c.mu.RLock()
	v, ok := c.verified[leaf]
	c.mu.RUnlock()
	if ok && v.pool == pool && now.Before(v.until) {
		return v, nil
	}

	opts := x509.VerifyOptions{
		Roots:         pool,
		Intermediates: x509.NewCertPool(),
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, cert := range chain[1:] {
		opts.Intermediates.AddCert(cert)
	}
	chains, err := leaf.Verify(opts)
	if err != nil {
		return verifiedCertificate{}, fmt.Errorf("verifying certificate of %q (serial %d) failed: %w", leaf.Subject.CommonName, leaf.SerialNumber, err)
	}
	v = verifiedCertificate{pool: pool, until: leaf.NotAfter}
	for _, cert := range chains[0] {
		if cert.NotAfter.Before(v.until) {
			v.until = cert.NotAfter
		}
	}
	v.resp, v.nobody = certificateUser(leaf)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.verified) >= maxVerified {
		clear(c.verified)
	}
	c.verified[leaf] = v
	return v, nil
}

// uidAttribute is the subject attribute that carries a user's UID.
var uidAttribute = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2}

// certificateUser is nil for a certificate that names nobody.
func certificateUser(leaf *x509.Certificate) (*authenticator.Response, error) {
	if leaf.Subject.CommonName == "" {
		return nil, nil
	}
	var uids []string
	for _, name := range leaf.Subject.Names {
		if !name.Type.Equal(uidAttribute) {
			continue
		}
		uid, ok := name.Value.(string)
		if !ok || uid == "" {
			return nil, errors.New("UID of the certificate's subject is not a string of at least one character")
		}
		uids = append(uids, uid)
	}
	if len(uids) > 1 {
		return nil, fmt.Errorf("certificate's subject has %d UIDs, expected 1", len(uids))
	}
	u := &user.DefaultInfo{
		Name:   leaf.Subject.CommonName,
		Groups: leaf.Subject.Organization,
	}
	if len(uids) == 1 {
		u.UID = uids[0]
	}
	sum := sha256.Sum256(leaf.Raw)
	u.Extra = map[string][]string{user.CredentialIDKey: {"X509SHA256=" + hex.EncodeToString(sum[:])}}
	return authenticated(&authenticator.Response{User: u}), nil
}
