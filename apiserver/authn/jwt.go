package authn

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	_ "crypto/sha256" // registers the hashes of ES256 and RS256 …
	_ "crypto/sha512" // … and of ES384 and ES512
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"strings"
)

// JSON Web Signatures in the compact serialization (RFC 7515, RFC 7518 §3), with the
// algorithms that ServiceAccount tokens use.

type algorithm struct {
	name  string
	hash  crypto.Hash
	curve elliptic.Curve // nil: RSA PKCS #1 v1.5
}

// algorithmOf names the algorithm a public key signs with.
func algorithmOf(key crypto.PublicKey) (algorithm, error) {
	switch k := key.(type) {
	case *rsa.PublicKey:
		return algorithm{name: "RS256", hash: crypto.SHA256}, nil
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return algorithm{name: "ES256", hash: crypto.SHA256, curve: k.Curve}, nil
		case elliptic.P384():
			return algorithm{name: "ES384", hash: crypto.SHA384, curve: k.Curve}, nil
		case elliptic.P521():
			return algorithm{name: "ES512", hash: crypto.SHA512, curve: k.Curve}, nil
		}
		return algorithm{}, fmt.Errorf("ECDSA key on curve %s, want P-256, P-384 or P-521", k.Curve.Params().Name)
	}
	return algorithm{}, fmt.Errorf("key of type %T, want RSA or ECDSA", key)
}

// keyID is derived from the public key irreversibly, the same way as upstream's, so that tokens and key sets fit together.
func keyID(key crypto.PublicKey) (string, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return "", fmt.Errorf("encode public key: %w", err)
	}
	h := crypto.SHA256.New()
	h.Write(der)
	return encodeSegment(h.Sum(nil)), nil
}

func encodeSegment(b []byte) string          { return base64.RawURLEncoding.EncodeToString(b) }
func decodeSegment(s string) ([]byte, error) { return base64.RawURLEncoding.Strict().DecodeString(s) }

type tokenHeader struct {
	Algorithm string   `json:"alg"`
	KeyID     string   `json:"kid,omitempty"`
	Critical  []string `json:"crit,omitempty"`
}

// signer signs with one key.
type signer struct {
	key    crypto.Signer
	alg    algorithm
	header string
}

func newSigner(key crypto.Signer) (*signer, error) {
	alg, err := algorithmOf(key.Public())
	if err != nil {
		return nil, err
	}
	kid, err := keyID(key.Public())
	if err != nil {
		return nil, err
	}
	h, err := json.Marshal(tokenHeader{Algorithm: alg.name, KeyID: kid})
	if err != nil {
		return nil, fmt.Errorf("encode token header: %w", err)
	}
	return &signer{key: key, alg: alg, header: encodeSegment(h)}, nil
}

func (s *signer) sign(payload []byte) (string, error) {
	input := s.header + "." + encodeSegment(payload)
	h := s.alg.hash.New()
	h.Write([]byte(input))
	digest := h.Sum(nil)
	var sig []byte
	switch key := s.key.(type) {
	case *ecdsa.PrivateKey:
		r, v, err := ecdsa.Sign(rand.Reader, key, digest)
		if err != nil {
			return "", fmt.Errorf("sign token: %w", err)
		}
		n := (s.alg.curve.Params().BitSize + 7) / 8
		sig = make([]byte, 2*n)
		r.FillBytes(sig[:n])
		v.FillBytes(sig[n:])
	case *rsa.PrivateKey:
		var err error
		if sig, err = rsa.SignPKCS1v15(rand.Reader, key, s.alg.hash, digest); err != nil {
			return "", fmt.Errorf("sign token: %w", err)
		}
	default:
		return "", fmt.Errorf("sign token: private key of type %T, want RSA or ECDSA", s.key)
	}
	return input + "." + encodeSegment(sig), nil
}

// parts are the pieces of a compact token whose signature nobody has verified.
type parts struct {
	header    tokenHeader
	payload   []byte
	input     string
	signature []byte
}

var errNotToken = errors.New("not a JSON Web Token")

func parseToken(token string) (*parts, error) {
	i := strings.IndexByte(token, '.')
	j := strings.LastIndexByte(token, '.')
	if i <= 0 || j <= i || strings.IndexByte(token[i+1:j], '.') >= 0 {
		return nil, errNotToken
	}
	p := &parts{input: token[:j]}
	head, err := decodeSegment(token[:i])
	if err != nil {
		return nil, errNotToken
	}
	if err := json.Unmarshal(head, &p.header); err != nil {
		return nil, errNotToken
	}
	if p.payload, err = decodeSegment(token[i+1 : j]); err != nil {
		return nil, errNotToken
	}
	if p.signature, err = decodeSegment(token[j+1:]); err != nil {
		return nil, errNotToken
	}
	return p, nil
}

var errSignature = errors.New("invalid signature")

// verify checks the signature with a key. The algorithm is the key's, never one that
// the token asks for.
func (p *parts) verify(key crypto.PublicKey) error {
	alg, err := algorithmOf(key)
	if err != nil {
		return err
	}
	if p.header.Algorithm != alg.name {
		return fmt.Errorf("token is signed with algorithm %q, the key is for %q", p.header.Algorithm, alg.name)
	}
	if len(p.header.Critical) > 0 {
		return fmt.Errorf("token has critical header parameters %q, which are not supported", p.header.Critical)
	}
	h := alg.hash.New()
	h.Write([]byte(p.input))
	digest := h.Sum(nil)
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		n := (alg.curve.Params().BitSize + 7) / 8
		if len(p.signature) != 2*n {
			return errSignature
		}
		r := new(big.Int).SetBytes(p.signature[:n])
		v := new(big.Int).SetBytes(p.signature[n:])
		if !ecdsa.Verify(k, digest, r, v) {
			return errSignature
		}
	case *rsa.PublicKey:
		if rsa.VerifyPKCS1v15(k, alg.hash, digest, p.signature) != nil {
			return errSignature
		}
	}
	return nil
}
