package authn

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

var (
	serviceAccounts = schema.GroupResource{Resource: "serviceaccounts"}
	secrets         = schema.GroupResource{Resource: "secrets"}
	pods            = schema.GroupResource{Resource: "pods"}
	nodes           = schema.GroupResource{Resource: "nodes"}
)

// Labels of Secrets with tokens (KEP-2799).
const (
	lastUsedLabel     = "kubernetes.io/legacy-token-last-used"
	invalidSinceLabel = "kubernetes.io/legacy-token-invalid-since"
)

// serviceAccountTokens verifies tokens: the signature once, what they are bound to
// against the live cache each time.
type serviceAccountTokens struct {
	issuer   *Issuer
	caches   lookup.Caches
	clock    clock.PassiveClock
	markUsed func(namespace, secret, today string)
	verified *verifiedTokens
}

func (s *serviceAccountTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	hash := sha256.Sum256([]byte(token))
	c, ok := s.verified.get(hash)
	if !ok {
		var ours bool
		var err error
		if c, ours, err = s.issuer.verify(token); err != nil {
			return nil, false, err
		} else if !ours {
			return nil, false, nil
		}
		s.verified.put(hash, c)
	}
	tokenAudiences := authenticator.Audiences(c.Audience)
	if len(tokenAudiences) == 0 {
		tokenAudiences = s.issuer.audiences
	}
	wanted, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		wanted = s.issuer.audiences
	}
	audiences := tokenAudiences.Intersect(wanted)
	if len(audiences) == 0 {
		return nil, false, fmt.Errorf("token audiences %q is invalid for the target audiences %q", tokenAudiences, wanted)
	}
	var info *serviceaccount.ServiceAccountInfo
	var err error
	if c.Issuer == LegacyIssuer {
		info, err = s.legacy(ctx, token, c)
	} else {
		info, err = s.bound(ctx, c)
	}
	if err != nil {
		return nil, false, err
	}
	return &authenticator.Response{User: info.UserInfo(), Audiences: audiences}, true, nil
}

func (s *serviceAccountTokens) bound(ctx context.Context, c *claims) (*serviceaccount.ServiceAccountInfo, error) {
	now := s.clock.Now()
	switch {
	case c.NotBefore != nil && now.Add(leeway).Before(c.NotBefore.time()):
		return nil, errors.New("service account token is not valid yet")
	case c.Expiry != nil && now.Add(-leeway).After(c.Expiry.time()):
		return nil, errors.New("service account token has expired")
	case c.IssuedAt != nil && now.Add(leeway).Before(c.IssuedAt.time()):
		return nil, errors.New("service account token is issued in the future")
	}
	k := c.Kubernetes
	if k == nil || k.Validating != nil || k.Mutating != nil {
		return nil, errors.New("service account token is not bound to anything this server can check")
	}
	goneBefore := now.Add(-leeway)

	sa, err := lookup.CachedOrFresh[*corev1.ServiceAccount](ctx, s.caches, serviceAccounts, k.Namespace, k.ServiceAccount.Name)
	if err != nil {
		return nil, err
	}
	if string(sa.UID) != k.ServiceAccount.UID {
		return nil, fmt.Errorf("service account UID (%s) does not match claim (%s)", sa.UID, k.ServiceAccount.UID)
	}
	if deleted(sa, goneBefore) {
		return nil, fmt.Errorf("service account %s/%s has been deleted", k.Namespace, k.ServiceAccount.Name)
	}
	info := &serviceaccount.ServiceAccountInfo{
		Namespace: k.Namespace,
		Name:      k.ServiceAccount.Name,
		UID:       k.ServiceAccount.UID,
	}
	if c.ID != "" {
		info.CredentialID = "JTI=" + c.ID
	}
	if k.Secret != nil {
		secret, err := lookup.CachedOrFresh[*corev1.Secret](ctx, s.caches, secrets, k.Namespace, k.Secret.Name)
		if err := checkBound("secret", secret, err, k.Secret, goneBefore); err != nil {
			return nil, err
		}
	}
	if k.Pod != nil {
		pod, err := lookup.CachedOrFresh[*corev1.Pod](ctx, s.caches, pods, k.Namespace, k.Pod.Name)
		if err := checkBound("pod", pod, err, k.Pod, goneBefore); err != nil {
			return nil, err
		}
		info.PodName, info.PodUID = k.Pod.Name, k.Pod.UID
	}
	if k.Node != nil {
		// A pod's token only carries the node along; its pod's existence is what counts.
		if k.Pod == nil {
			node, err := lookup.CachedOrFresh[*corev1.Node](ctx, s.caches, nodes, "", k.Node.Name)
			if err := checkBound("node", node, err, k.Node, goneBefore); err != nil {
				return nil, err
			}
		}
		info.NodeName, info.NodeUID = k.Node.Name, k.Node.UID
	}
	if k.WarnAfter != nil && *k.WarnAfter != 0 && now.After(k.WarnAfter.time()) {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/stale-token",
			fmt.Sprintf("subject: %s, seconds after warning threshold: %d", c.Subject, now.Unix()-int64(*k.WarnAfter)))
	}
	return info, nil
}

func deleted(m metav1.Object, before time.Time) bool {
	t := m.GetDeletionTimestamp()
	return t != nil && t.Time.Before(before)
}

// checkBound says whether the object a token is bound to is still the same one.
func checkBound(kind string, m metav1.Object, err error, claim *objectClaim, goneBefore time.Time) error {
	switch {
	case apierrors.IsNotFound(err):
		return errors.New("service account token has been invalidated")
	case err != nil:
		return fmt.Errorf("look up %s that the token is bound to: %w", kind, err)
	case m.GetUID() != types.UID(claim.UID):
		return fmt.Errorf("%s UID (%s) does not match service account %s ref claim (%s)", kind, m.GetUID(), kind, claim.UID)
	case deleted(m, goneBefore):
		return errors.New("service account token has been invalidated")
	}
	return nil
}

// legacy checks a token without expiry against the Secret that holds it.
func (s *serviceAccountTokens) legacy(ctx context.Context, token string, c *claims) (*serviceaccount.ServiceAccountInfo, error) {
	for _, claim := range []struct{ name, value string }{
		{"sub", c.Subject}, {"namespace", c.LegacyNamespace}, {"secretName", c.LegacySecret},
		{"serviceAccountName", c.LegacyName}, {"serviceAccountUID", c.LegacyUID},
	} {
		if claim.value == "" {
			return nil, fmt.Errorf("%s claim is missing", claim.name)
		}
	}
	if c.Subject != serviceaccount.MakeUsername(c.LegacyNamespace, c.LegacyName) {
		return nil, errors.New("sub claim is invalid")
	}
	secret, err := lookup.CachedOrFresh[*corev1.Secret](ctx, s.caches, secrets, c.LegacyNamespace, c.LegacySecret)
	if err != nil || secret.DeletionTimestamp != nil {
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("look up the token's secret: %w", err)
		}
		return nil, errors.New("Token has been invalidated")
	}
	if subtle.ConstantTimeCompare(secret.Data[corev1.ServiceAccountTokenKey], []byte(token)) == 0 {
		return nil, errors.New("Token does not match server's copy")
	}
	sa, err := lookup.CachedOrFresh[*corev1.ServiceAccount](ctx, s.caches, serviceAccounts, c.LegacyNamespace, c.LegacyName)
	if err != nil {
		return nil, err
	}
	if sa.DeletionTimestamp != nil {
		return nil, fmt.Errorf("ServiceAccount %s/%s has been deleted", c.LegacyNamespace, c.LegacyName)
	}
	if string(sa.UID) != c.LegacyUID {
		return nil, fmt.Errorf("ServiceAccount UID (%s) does not match claim (%s)", sa.UID, c.LegacyUID)
	}
	s.noteUse(secret)
	if secret.Labels[invalidSinceLabel] != "" {
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token-invalidated", secret.Name+"/"+secret.Namespace)
		return nil, fmt.Errorf("the token in secret %s/%s for service account %s/%s has been marked invalid. Use tokens from the TokenRequest API or manually created secret-based tokens, or remove the '%s' label from the secret to temporarily allow use of this token",
			c.LegacyNamespace, c.LegacySecret, c.LegacyNamespace, c.LegacyName, invalidSinceLabel)
	}
	audit.AddAuditAnnotation(ctx, "authentication.k8s.io/legacy-token", c.Subject)
	if slices.ContainsFunc(sa.Secrets, func(r corev1.ObjectReference) bool { return r.Name == secret.Name }) {
		warning.AddWarning(ctx, "", "Use tokens from the TokenRequest API or manually created secret-based tokens instead of auto-generated secret-based tokens.")
	}
	return &serviceaccount.ServiceAccountInfo{Namespace: c.LegacyNamespace, Name: c.LegacyName, UID: c.LegacyUID}, nil
}

func (s *serviceAccountTokens) noteUse(secret *corev1.Secret) {
	if s.markUsed == nil {
		return
	}
	now := s.clock.Now().UTC()
	today, tomorrow := now.Format(time.DateOnly), now.AddDate(0, 0, 1).Format(time.DateOnly)
	if used := secret.Labels[lastUsedLabel]; used != today && used != tomorrow {
		s.markUsed(secret.Namespace, secret.Name, today)
	}
}

// verifiedTokens remembers tokens whose signature was found good, by hash. Keys never
// change while the process lives, so entries never go stale; whether the token still counts is looked up each time.
type verifiedTokens struct {
	mu     sync.Mutex
	recent map[[sha256.Size]byte]*claims
	older  map[[sha256.Size]byte]*claims
}

const maxVerifiedTokens = 2048

func newVerifiedTokens() *verifiedTokens {
	return &verifiedTokens{recent: map[[sha256.Size]byte]*claims{}}
}

func (v *verifiedTokens) get(h [sha256.Size]byte) (*claims, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if c, ok := v.recent[h]; ok {
		return c, true
	}
	c, ok := v.older[h]
	if ok {
		v.add(h, c)
	}
	return c, ok
}

func (v *verifiedTokens) put(h [sha256.Size]byte, c *claims) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.add(h, c)
}

// add keeps two generations, so that what is in use survives when one fills up.
func (v *verifiedTokens) add(h [sha256.Size]byte, c *claims) {
	if len(v.recent) >= maxVerifiedTokens {
		v.older, v.recent = v.recent, map[[sha256.Size]byte]*claims{}
	}
	v.recent[h] = c
}
