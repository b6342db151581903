package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// pair is a self-signed certificate for localhost and its key, as PEM: tests of proxying
// over TLS serve it.
type pair struct{ cert, key string }

// localhostPair keeps the pair in the cache, so that the same images are made again.
func localhostPair(cache string) (pair, error) {
	certPath, keyPath := filepath.Join(cache, "localhost.crt"), filepath.Join(cache, "localhost.key")
	cert, certErr := os.ReadFile(certPath)
	key, keyErr := os.ReadFile(keyPath)
	if certErr == nil && keyErr == nil && validForAYear(cert) {
		return pair{cert: string(cert), key: string(key)}, nil
	}
	p, err := newPair()
	if err != nil {
		return pair{}, err
	}
	if err := errors.Join(os.WriteFile(certPath, []byte(p.cert), 0o644), os.WriteFile(keyPath, []byte(p.key), 0o600)); err != nil {
		return pair{}, fmt.Errorf("keep the pair of localhost: %w", err)
	}
	return p, nil
}

func validForAYear(text []byte) bool {
	block, _ := pem.Decode(text)
	if block == nil {
		return false
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	return err == nil && time.Until(cert.NotAfter) > 365*24*time.Hour
}

func newPair() (pair, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return pair{}, fmt.Errorf("make key of localhost: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "localhost"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return pair{}, fmt.Errorf("sign certificate of localhost: %w", err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return pair{}, fmt.Errorf("encode key of localhost: %w", err)
	}
	block := func(kind string, b []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}))
	}
	return pair{cert: block("CERTIFICATE", der), key: block("PRIVATE KEY", secret)}, nil
}
