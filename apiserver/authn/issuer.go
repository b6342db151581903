package authn

import (
	"crypto"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/utils/clock"
)

// LegacyIssuer is the issuer in tokens kept in Secrets.
const LegacyIssuer = "kubernetes/serviceaccount"

// DefaultIssuer is both the issuer and the API server's own audience.
const DefaultIssuer = "https://kubernetes.default.svc.cluster.local"

// IssuerConfig configures an Issuer.
type IssuerConfig struct {
	// Key signs; its public half verifies too.
	Key crypto.Signer
	// Keys are further public keys that verify (rotation).
	Keys []crypto.PublicKey
	// URL is the issuer; DefaultIssuer when empty. Former issuers in AcceptURLs still verify.
	URL        string
	AcceptURLs []string
	// Audiences that the API server answers to; the URL when empty.
	Audiences []string
	// Clock defaults to the real one.
	Clock clock.PassiveClock
}

// Issuer signs ServiceAccount tokens and holds the keys that verify them.
type Issuer struct {
	url       string
	accepted  []string
	audiences authenticator.Audiences
	signer    *signer
	keys      []verifyKey
	clock     clock.PassiveClock
}

type verifyKey struct {
	id  string
	alg algorithm
	key crypto.PublicKey
}

// NewIssuer builds an Issuer.
func NewIssuer(c IssuerConfig) (*Issuer, error) {
	if c.Key == nil {
		return nil, errors.New("authn: a key is needed to sign ServiceAccount tokens")
	}
	s, err := newSigner(c.Key)
	if err != nil {
		return nil, fmt.Errorf("authn: ServiceAccount signing key: %w", err)
	}
	if c.URL == "" {
		c.URL = DefaultIssuer
	}
	if len(c.Audiences) == 0 {
		c.Audiences = []string{c.URL}
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	i := &Issuer{
		url:       c.URL,
		accepted:  append([]string{c.URL}, c.AcceptURLs...),
		audiences: c.Audiences,
		signer:    s,
		clock:     c.Clock,
	}
	for _, key := range append([]crypto.PublicKey{c.Key.Public()}, c.Keys...) {
		alg, err := algorithmOf(key)
		if err != nil {
			return nil, fmt.Errorf("authn: ServiceAccount verification key: %w", err)
		}
		id, err := keyID(key)
		if err != nil {
			return nil, fmt.Errorf("authn: ServiceAccount verification key: %w", err)
		}
		if !slices.ContainsFunc(i.keys, func(k verifyKey) bool { return k.id == id }) {
			i.keys = append(i.keys, verifyKey{id: id, alg: alg, key: key})
		}
	}
	return i, nil
}

// URL is the issuer that new tokens name.
func (i *Issuer) URL() string { return i.url }

// Audiences are those that the API server answers to.
func (i *Issuer) Audiences() []string { return i.audiences }

// Bound says what a token is bound to, at most one of them besides Node, which goes with Pod or alone.
type Bound struct {
	Pod    *corev1.Pod
	Secret *corev1.Secret
	Node   *corev1.Node
}

// Sign issues a bound token (KEP-1205) and returns it with its credential ID. warnAfter 0:
// none; else the token is used in earnest until then and tolerated until expiration.
func (i *Issuer) Sign(sa *corev1.ServiceAccount, b Bound, audiences []string, expiration, warnAfter time.Duration) (token, jti string, err error) {
	if b.Secret != nil && (b.Pod != nil || b.Node != nil) {
		return "", "", errors.New("a token can be bound to one object only")
	}
	now := i.clock.Now()
	c := claims{
		Issuer:    i.url,
		Subject:   serviceaccount.MakeUsername(sa.Namespace, sa.Name),
		Audience:  audiences,
		IssuedAt:  numericDate(now),
		NotBefore: numericDate(now),
		Expiry:    numericDate(now.Add(expiration)),
		ID:        uuid.NewString(),
		Kubernetes: &boundClaims{
			Namespace:      sa.Namespace,
			ServiceAccount: objectClaim{Name: sa.Name, UID: string(sa.UID)},
		},
	}
	if b.Pod != nil {
		c.Kubernetes.Pod = &objectClaim{Name: b.Pod.Name, UID: string(b.Pod.UID)}
	}
	if b.Secret != nil {
		c.Kubernetes.Secret = &objectClaim{Name: b.Secret.Name, UID: string(b.Secret.UID)}
	}
	if b.Node != nil {
		c.Kubernetes.Node = &objectClaim{Name: b.Node.Name, UID: string(b.Node.UID)}
	}
	if warnAfter > 0 {
		c.Kubernetes.WarnAfter = numericDate(now.Add(warnAfter))
	}
	payload, err := json.Marshal(c)
	if err != nil {
		return "", "", fmt.Errorf("encode token of %s: %w", c.Subject, err)
	}
	token, err = i.signer.sign(payload)
	return token, c.ID, err
}

// SignLegacy issues the token that a Secret of type kubernetes.io/service-account-token holds.
func (i *Issuer) SignLegacy(sa *corev1.ServiceAccount, secret *corev1.Secret) (string, error) {
	payload, err := json.Marshal(claims{
		Issuer:          LegacyIssuer,
		Subject:         serviceaccount.MakeUsername(sa.Namespace, sa.Name),
		LegacyNamespace: sa.Namespace,
		LegacyName:      sa.Name,
		LegacyUID:       string(sa.UID),
		LegacySecret:    secret.Name,
	})
	if err != nil {
		return "", fmt.Errorf("encode token of %s/%s: %w", sa.Namespace, sa.Name, err)
	}
	return i.signer.sign(payload)
}

// verify returns the claims of a token signed by one of the keys. ours is false for tokens of
// other issuers, which are somebody else's to judge.
func (i *Issuer) verify(token string) (c *claims, ours bool, err error) {
	p, err := parseToken(token)
	if err != nil {
		return nil, false, nil
	}
	c = new(claims)
	if err := json.Unmarshal(p.payload, c); err != nil {
		return nil, false, nil
	}
	if c.Issuer != LegacyIssuer && !slices.Contains(i.accepted, c.Issuer) {
		return nil, false, nil
	}
	var errs []error
	for _, k := range i.keys {
		if p.header.KeyID != "" && p.header.KeyID != k.id {
			continue
		}
		err := p.verify(k.key)
		if err == nil {
			return c, true, nil
		}
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		return nil, true, errors.New("invalid signature, no keys found")
	}
	return nil, true, errors.Join(errs...)
}
