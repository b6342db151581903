package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/keyutil"
)

// certificate makes a certificate of the cluster's CA and returns its files.
func (l *lab) certificate(name string, subject pkix.Name, hosts ...string) (certFile, keyFile string, err error) {
	caText, err := os.ReadFile(l.pki("ca.crt"))
	if err != nil {
		return "", "", err
	}
	block, _ := pem.Decode(caText)
	if block == nil {
		return "", "", fmt.Errorf("%s holds no PEM block", l.pki("ca.crt"))
	}
	ca, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", "", err
	}
	caKey, err := keyutil.PrivateKeyFromFile(l.pki("ca.key"))
	if err != nil {
		return "", "", err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return "", "", err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: subject, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca, key.Public(), caKey)
	if err != nil {
		return "", "", err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return "", "", err
	}
	certFile, keyFile = filepath.Join(l.work, name+".crt"), filepath.Join(l.work, name+".key")
	if err := os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		return "", "", err
	}
	return certFile, keyFile, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}), 0o600)
}

// kubeconfig is a kubeconfig file of a user that a certificate of the cluster's CA names.
func (l *lab) kubeconfig(user string, groups ...string) (string, error) {
	name := filepath.Base(user)
	cert, key, err := l.certificate(name, pkix.Name{CommonName: user, Organization: groups})
	if err != nil {
		return "", fmt.Errorf("certificate of %s: %w", user, err)
	}
	c := clientcmdapi.NewConfig()
	c.Clusters["swap"] = &clientcmdapi.Cluster{Server: "https://" + nodeAddress + ":6443", CertificateAuthority: l.pki("ca.crt")}
	c.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificate: cert, ClientKey: key}
	c.Contexts["swap"] = &clientcmdapi.Context{Cluster: "swap", AuthInfo: user}
	c.CurrentContext = "swap"
	path := filepath.Join(l.work, name+".kubeconfig")
	return path, clientcmd.WriteToFile(*c, path)
}
