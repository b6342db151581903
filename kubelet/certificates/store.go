// Package certificates keeps a kubelet's certificates: it requests them from the cluster
// (certificates.k8s.io), stores them, and renews them while the kubelet runs.
//
// Owns: the files of one certificate each, when it is renewed. Must not: approve or sign
// anything; know what the certificate is used for.
package certificates

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Store keeps one certificate with its key.
type Store interface {
	// Load returns an error that is fs.ErrNotExist when there is none yet.
	Load() (*tls.Certificate, error)
	Save(cert, key []byte) error
}

// Current is a store as upstream's kubelet has it: NAME-current.pem is a link to the newest
// of NAME-DATE.pem, each with certificate and key, so that both change at one stroke.
type Current struct{ Dir, Name string }

// Path is where certificate and key are.
func (c Current) Path() string { return filepath.Join(c.Dir, c.Name+"-current.pem") }

// Load implements Store.
func (c Current) Load() (*tls.Certificate, error) { return load(c.Path(), c.Path()) }

// Save implements Store.
func (c Current) Save(cert, key []byte) error {
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return fmt.Errorf("save certificate %s: %w", c.Name, err)
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return fmt.Errorf("save certificate %s: %w", c.Name, err)
	}
	// The date names the file only; two of one second are told apart by the serial number.
	dated := fmt.Sprintf("%s-%s-%x.pem", c.Name, pair.Leaf.NotBefore.UTC().Format("2006-01-02-15-04-05"), pair.Leaf.SerialNumber)
	if err := write(filepath.Join(c.Dir, dated), bytes.Join([][]byte{cert, key}, nil), 0o600); err != nil {
		return fmt.Errorf("save certificate %s: %w", c.Name, err)
	}
	former, _ := os.Readlink(c.Path()) // none the first time
	link := filepath.Join(c.Dir, ".new-"+c.Name)
	if err := os.Remove(link); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("save certificate %s: %w", c.Name, err)
	}
	if err := errors.Join(os.Symlink(dated, link), os.Rename(link, c.Path())); err != nil {
		return fmt.Errorf("save certificate %s: %w", c.Name, err)
	}
	if former == "" || former == dated || filepath.Base(former) != former {
		return nil
	}
	if err := os.Remove(filepath.Join(c.Dir, former)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the former certificate %s: %w", c.Name, err)
	}
	return nil
}

// Pair is a store of two files.
type Pair struct{ Cert, Key string }

// Load implements Store.
func (p Pair) Load() (*tls.Certificate, error) { return load(p.Cert, p.Key) }

// Save implements Store. Who reads between the two writes finds that they don't match, and
// tries again.
func (p Pair) Save(cert, key []byte) error {
	if err := errors.Join(write(p.Key, key, 0o600), write(p.Cert, cert, 0o644)); err != nil {
		return fmt.Errorf("save certificate %s: %w", p.Cert, err)
	}
	return nil
}

func load(certFile, keyFile string) (*tls.Certificate, error) {
	cert, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		return nil, fmt.Errorf("load certificate %s: %w", certFile, err)
	}
	return &cert, nil
}

// write replaces a file durably.
func write(path string, data []byte, mode fs.FileMode) error {
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

// Due is when a certificate that was got at a time is to be renewed: after seven to nine
// tenths of its life, as chance (0 to 1) has it, so that nodes that were made together don't
// ask together. What a signer backdates is no part of the life.
func Due(cert *x509.Certificate, got time.Time, chance float64) time.Time {
	from := cert.NotBefore
	if got.After(from) {
		from = got
	}
	life := cert.NotAfter.Sub(from)
	return from.Add(time.Duration((0.7 + 0.2*chance) * float64(life)))
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
