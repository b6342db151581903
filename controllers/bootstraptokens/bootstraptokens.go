// Package bootstraptokens serves joining nodes: it signs the ConfigMap
// kube-public/cluster-info with each bootstrap token, by which a node that has a token knows
// that the CA in it is the cluster's, and deletes tokens that have expired.
package bootstraptokens

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

const (
	tokenType corev1.SecretType = "bootstrap.kubernetes.io/token"

	tokenPrefix = "bootstrap-token-"
	clusterInfo = "cluster-info"
	kubeConfig  = "kubeconfig"
	sigPrefix   = "jws-kubeconfig-"
)

// token is what a Secret says of one.
type token struct {
	id, secret string
	signs      bool
	expires    time.Time // zero: never
}

// parse reads a bootstrap token; false when the Secret is none.
func parse(s *corev1.Secret) (token, bool) {
	if s.Type != tokenType || s.Namespace != metav1.NamespaceSystem || !strings.HasPrefix(s.Name, tokenPrefix) {
		return token{}, false
	}
	t := token{id: string(s.Data["token-id"]), secret: string(s.Data["token-secret"]), signs: string(s.Data["usage-bootstrap-signing"]) == "true"}
	if t.id == "" || t.secret == "" || s.Name != tokenPrefix+t.id {
		return token{}, false
	}
	if e := string(s.Data["expiration"]); e != "" {
		at, err := time.Parse(time.RFC3339, e)
		if err != nil {
			at = time.Unix(1, 0) // nonsense has expired, as upstream has it
		}
		t.expires = at
	}
	return t, true
}

func (t token) expired(now time.Time) bool { return !t.expires.IsZero() && !t.expires.After(now) }

// Cleaner deletes expired tokens.
type Cleaner struct {
	cfg     controller.Config
	loop    *controller.Loop[controller.Key]
	secrets corelisters.SecretLister
}

// NewCleaner makes the cleaning controller.
func NewCleaner(cfg controller.Config) (*Cleaner, error) {
	secrets := cfg.Informers.Core().V1().Secrets()
	c := &Cleaner{cfg: cfg, secrets: secrets.Lister()}
	c.loop = controller.NewLoop("token-cleaner-controller", 1, cfg.Clock, cfg.Logger, c.reconcile)
	note := func(s *corev1.Secret) {
		if t, ok := parse(s); ok && !t.expires.IsZero() {
			c.loop.Add(controller.KeyOf(s))
		}
	}
	return c, controller.Watch(c.loop, secrets.Informer(), controller.Handlers[*corev1.Secret]{Added: note, Updated: func(_, s *corev1.Secret) { note(s) }})
}

// Run reconciles until ctx ends.
func (c *Cleaner) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Cleaner) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	s, err := c.secrets.Secrets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading secret: %w", err)
	}
	t, ok := parse(s)
	if !ok || t.expires.IsZero() {
		return 0, nil
	}
	if now := c.cfg.Clock.Now(); !t.expired(now) {
		return t.expires.Sub(now), nil
	}
	err = c.cfg.Client.CoreV1().Secrets(s.Namespace).Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(s.UID), ResourceVersion: ptr.To(s.ResourceVersion)}})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("deleting expired token: %w", err)
	}
	return 0, nil
}

// Signer signs cluster-info.
type Signer struct {
	cfg        controller.Config
	loop       *controller.Loop[struct{}]
	secrets    corelisters.SecretLister
	configMaps corelisters.ConfigMapLister
}

// NewSigner makes the signing controller.
func NewSigner(cfg controller.Config) (*Signer, error) {
	core := cfg.Informers.Core().V1()
	s := &Signer{cfg: cfg, secrets: core.Secrets().Lister(), configMaps: core.ConfigMaps().Lister()}
	s.loop = controller.NewLoop("bootstrap-signer-controller", 1, cfg.Clock, cfg.Logger, s.reconcile)
	return s, errors.Join(
		controller.Watch(s.loop, core.Secrets().Informer(), controller.OnEach(func(o *corev1.Secret) {
			if o.Type == tokenType {
				s.loop.Add(struct{}{})
			}
		})),
		controller.Watch(s.loop, core.ConfigMaps().Informer(), controller.OnEach(func(o *corev1.ConfigMap) {
			if o.Namespace == metav1.NamespacePublic && o.Name == clusterInfo {
				s.loop.Add(struct{}{})
			}
		})),
	)
}

// Run reconciles until ctx ends.
func (s *Signer) Run(ctx context.Context) error { return s.loop.Run(ctx) }

func (s *Signer) reconcile(ctx context.Context, _ struct{}) (time.Duration, error) {
	cm, err := s.configMaps.ConfigMaps(metav1.NamespacePublic).Get(clusterInfo)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading ConfigMap: %w", err)
	}
	content, ok := cm.Data[kubeConfig]
	if !ok {
		return 0, nil
	}
	secrets, err := s.secrets.Secrets(metav1.NamespaceSystem).List(labels.Everything())
	if err != nil {
		return 0, fmt.Errorf("listing secrets: %w", err)
	}
	now := s.cfg.Clock.Now()
	data := map[string]string{}
	for k, v := range cm.Data {
		if !strings.HasPrefix(k, sigPrefix) {
			data[k] = v
		}
	}
	for _, o := range secrets {
		if t, ok := parse(o); ok && t.signs && !t.expired(now) {
			if data[sigPrefix+t.id], err = Sign(content, t.id, t.secret); err != nil {
				return 0, err
			}
		}
	}
	if maps.Equal(data, cm.Data) {
		return 0, nil
	}
	next := cm.DeepCopy()
	next.Data = data
	if _, err := s.cfg.Client.CoreV1().ConfigMaps(metav1.NamespacePublic).Update(ctx, next, metav1.UpdateOptions{}); err != nil {
		return 0, fmt.Errorf("updating %s: %w", clusterInfo, err)
	}
	return 0, nil
}

// Sign makes a detached JWS (RFC 7515, appendix F) over content, keyed by a token.
func Sign(content, id, secret string) (string, error) {
	header, err := json.Marshal(map[string]string{"alg": "HS256", "kid": id})
	if err != nil {
		return "", fmt.Errorf("encoding signature header: %w", err)
	}
	enc := base64.RawURLEncoding
	head := enc.EncodeToString(header)
	mac := hmac.New(sha256.New, []byte(secret))
	_, _ = mac.Write([]byte(head + "." + enc.EncodeToString([]byte(content)))) // a hash never fails to write
	return head + ".." + enc.EncodeToString(mac.Sum(nil)), nil
}
