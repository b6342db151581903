// Package pki makes and renews the certificates and keys of a cluster, in the files and
// under the names that kubeadm uses.
//
// Owns: the pki directory. Must not: talk to the API; sign anything at run time (the
// csrsigning controller does).
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"
)

const (
	caLife   = 10 * 365 * 24 * time.Hour
	leafLife = 365 * 24 * time.Hour
	// renewBefore: a leaf with less than this left is made anew at the next start.
	renewBefore = 60 * 24 * time.Hour
	// backdate forgives clocks that are a little behind.
	backdate = 5 * time.Minute
)

// Pair is a certificate and its key in PEM.
type Pair struct {
	Cert, Key []byte
}

// Authority signs certificates.
type Authority struct {
	Pair
	cert *x509.Certificate
	key  crypto.Signer
}

// Leaf says what a certificate is for.
type Leaf struct {
	CommonName    string
	Organizations []string
	Client        bool
	Server        bool
	DNSNames      []string
	IPs           []netip.Addr
}

// Dir is a directory of <name>.crt and <name>.key files.
type Dir struct {
	Path string
	Now  func() time.Time // nil: time.Now
}

// Files are where a certificate and its key are.
func (d Dir) Files(name string) (cert, key string) {
	return filepath.Join(d.Path, name+".crt"), filepath.Join(d.Path, name+".key")
}

func (d Dir) now() time.Time {
	if d.Now != nil {
		return d.Now()
	}
	return time.Now()
}

// Authority loads a CA or, where neither of its files exists, makes it.
func (d Dir) Authority(name, commonName string) (*Authority, error) {
	pair, err := d.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		if pair, err = d.newAuthority(commonName); err == nil {
			err = d.write(name, pair)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("certificate authority %s: %w", name, err)
	}
	cert, key, err := parse(pair)
	if err != nil {
		return nil, fmt.Errorf("certificate authority %s in %s: %w", name, d.Path, err)
	}
	if !cert.IsCA {
		return nil, fmt.Errorf("certificate authority %s: %s is not a CA certificate", name, filepath.Join(d.Path, name+".crt"))
	}
	return &Authority{Pair: pair, cert: cert, key: key}, nil
}

func (d Dir) newAuthority(commonName string) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: commonName},
		NotBefore: d.now().Add(-backdate), NotAfter: d.now().Add(caLife),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign | x509.KeyUsageKeyEncipherment,
		IsCA:     true, BasicConstraintsValid: true, DNSNames: []string{commonName},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		return Pair{}, err
	}
	return encode(der, key)
}

// Leaf loads a certificate; it is made (anew) when missing, near its end, signed by another
// CA, or for other names than asked for.
func (d Dir) Leaf(ca *Authority, name string, want Leaf) (Pair, error) {
	pair, err := d.read(name)
	if err == nil {
		if cert, _, perr := parse(pair); perr == nil && d.serves(cert, ca, want) {
			return pair, nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Pair{}, fmt.Errorf("certificate %s: %w", name, err)
	}
	if pair, err = ca.Sign(want, d.now(), leafLife); err == nil {
		err = d.write(name, pair)
	}
	if err != nil {
		return Pair{}, fmt.Errorf("certificate %s: %w", name, err)
	}
	return pair, nil
}

func (d Dir) serves(cert *x509.Certificate, ca *Authority, want Leaf) bool {
	return ca.Serves(cert, want, d.now())
}

// Serves tells whether a certificate is the authority's, for all that is wanted, and good for a while.
func (a *Authority) Serves(cert *x509.Certificate, want Leaf, now time.Time) bool {
	if cert.CheckSignatureFrom(a.cert) != nil || now.Add(renewBefore).After(cert.NotAfter) || now.Before(cert.NotBefore) {
		return false
	}
	if cert.Subject.CommonName != want.CommonName || !slices.Equal(cert.Subject.Organization, want.Organizations) {
		return false
	}
	for _, n := range want.DNSNames {
		if !slices.Contains(cert.DNSNames, n) {
			return false
		}
	}
	for _, ip := range want.IPs {
		if !slices.ContainsFunc(cert.IPAddresses, func(have net.IP) bool { return have.Equal(ip.AsSlice()) }) {
			return false
		}
	}
	return true
}

// Sign makes a key and a certificate for it.
func (a *Authority) Sign(l Leaf, now time.Time, life time.Duration) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	tmpl := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: l.CommonName, Organization: l.Organizations},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment, BasicConstraintsValid: true,
		DNSNames: l.DNSNames,
	}
	if tmpl.NotAfter.After(a.cert.NotAfter) {
		tmpl.NotAfter = a.cert.NotAfter
	}
	for _, ip := range l.IPs {
		tmpl.IPAddresses = append(tmpl.IPAddresses, ip.AsSlice())
	}
	if l.Client {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	if l.Server {
		tmpl.ExtKeyUsage = append(tmpl.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, err
	}
	return encode(der, key)
}

// Signer is the CA's certificate and key for a controller that signs.
func (a *Authority) Signer() (*x509.Certificate, crypto.Signer) { return a.cert, a.key }

// SigningKey loads or makes the key pair <name>.key, <name>.pub that signs ServiceAccount
// tokens; it returns the private key.
func (d Dir) SigningKey(name string) (crypto.Signer, error) {
	path := filepath.Join(d.Path, name+".key")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key, kerr := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if kerr != nil {
			return nil, fmt.Errorf("make signing key: %w", kerr)
		}
		if text, err = encodeKey(key); err == nil {
			err = writeFile(path, text, 0o600)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("signing key %s: %w", name, err)
	}
	key, err := parseKey(text)
	if err != nil {
		return nil, fmt.Errorf("signing key %s: %w", path, err)
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return nil, fmt.Errorf("signing key %s: %w", path, err)
	}
	text = pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: pub})
	return key, writeFile(filepath.Join(d.Path, name+".pub"), text, 0o644)
}

func (d Dir) read(name string) (Pair, error) {
	certFile, keyFile := d.Files(name)
	cert, errC := os.ReadFile(certFile)
	key, errK := os.ReadFile(keyFile)
	if errC == nil && errors.Is(errK, fs.ErrNotExist) {
		return Pair{}, fmt.Errorf("%s.crt is there but %s.key is missing; put it back or remove both", name, name)
	}
	if errors.Is(errC, fs.ErrNotExist) && errK == nil {
		return Pair{}, fs.ErrNotExist // the key is written first: a crash may leave it alone
	}
	return Pair{Cert: cert, Key: key}, errors.Join(errC, errK)
}

func (d Dir) write(name string, p Pair) error {
	cert, key := d.Files(name)
	if err := os.MkdirAll(filepath.Dir(key), 0o700); err != nil { // a name may be in a folder, as etcd/ca
		return err
	}
	if err := writeFile(key, p.Key, 0o600); err != nil {
		return err
	}
	return writeFile(cert, p.Cert, 0o644)
}

// writeFile replaces a file durably: a key that is lost takes the cluster with it.
func writeFile(path string, data []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

func encode(der []byte, key crypto.Signer) (Pair, error) {
	k, err := encodeKey(key)
	return Pair{Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), Key: k}, err
}

func encodeKey(key crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func parse(p Pair) (*x509.Certificate, crypto.Signer, error) {
	block, _ := pem.Decode(p.Cert)
	if block == nil {
		return nil, nil, errors.New("the certificate file holds no PEM block")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, nil, fmt.Errorf("parse certificate: %w", err)
	}
	key, err := parseKey(p.Key)
	return cert, key, err
}

// parseKey reads PKCS #8, and the PKCS #1 and SEC 1 forms that kubeadm writes.
func parseKey(text []byte) (crypto.Signer, error) {
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, errors.New("the key file holds no PEM block")
	}
	if k, err := x509.ParsePKCS1PrivateKey(block.Bytes); err == nil {
		return k, nil
	}
	if k, err := x509.ParseECPrivateKey(block.Bytes); err == nil {
		return k, nil
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse key: %w", err)
	}
	s, ok := k.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("a %T cannot sign", k)
	}
	return s, nil
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic("crypto/rand: " + err.Error()) // cannot happen since Go 1.24
	}
	return n.Add(n, big.NewInt(1))
}
