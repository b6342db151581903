package volumes

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"os"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

const (
	// issueWait is how long set-up of a volume waits for a signer; then it fails and is
	// tried again.
	issueWait = 10 * time.Second
	// pendingCheck is how often a request for a successor is looked at.
	pendingCheck = 30 * time.Second
	// maxRefreshJitter keeps pods that started together from asking together ever after.
	maxRefreshJitter = 5 * time.Minute
)

// certificates asks for certificates of pods by PodCertificateRequests (KEP-4317) and
// for their successors in time. Nothing outlives the process: a new one asks again.
type certificates struct {
	client kubernetes.Interface
	clock  clock.PassiveClock

	mu    sync.Mutex
	cache map[types.UID]map[string]*certificate
}

// certificate is what is known of one source of one volume of a pod.
type certificate struct {
	key, chain       []byte
	refresh, expires time.Time
	// request that is under way, and the key that it is for.
	request    string
	requestKey []byte
	// refused is final: signers do not change their mind.
	refused error
}

func newCertificates(client kubernetes.Interface, clk clock.PassiveClock) *certificates {
	return &certificates{client: client, clock: clk, cache: map[types.UID]map[string]*certificate{}}
}

func (c *certificates) forget(uid types.UID) {
	c.mu.Lock()
	delete(c.cache, uid)
	c.mu.Unlock()
}

// of is the entry of a source; calls for one pod do not overlap.
func (c *certificates) of(uid types.UID, source string) *certificate {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cache[uid] == nil {
		c.cache[uid] = map[string]*certificate{}
	}
	have := c.cache[uid][source]
	if have == nil {
		have = &certificate{}
		c.cache[uid][source] = have
	}
	return have
}

// get returns the key and the chain of a source, as PEM, and when to come again.
func (c *certificates) get(ctx context.Context, pod *corev1.Pod, source string, p *corev1.PodCertificateProjection) (*certificate, time.Time, error) {
	if c.client == nil {
		return nil, time.Time{}, errors.New("a kubelet without API server cannot get pod certificates")
	}
	have := c.of(pod.UID, source)
	now := c.clock.Now()
	if have.refused != nil || have.chain != nil && now.Before(have.refresh) {
		return have, have.refresh, have.refused
	}
	err := c.advance(ctx, pod, have, p)
	switch {
	case have.refused != nil:
		return nil, time.Time{}, have.refused
	case have.chain != nil && c.clock.Now().Before(have.refresh):
		return have, have.refresh, nil
	case have.chain != nil:
		// A signer or control plane that is away must not break a pod that runs.
		return have, now.Add(pendingCheck), nil
	case err != nil:
		return nil, time.Time{}, err
	}
	return nil, time.Time{}, fmt.Errorf("PodCertificateRequest %s/%s is not issued yet", pod.Namespace, have.request)
}

// advance makes the request, or looks what became of it.
func (c *certificates) advance(ctx context.Context, pod *corev1.Pod, have *certificate, p *corev1.PodCertificateProjection) error {
	requests := c.client.CertificatesV1().PodCertificateRequests(pod.Namespace)
	var r *certificatesv1.PodCertificateRequest
	var err error
	if have.request != "" {
		r, err = requests.Get(ctx, have.request, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("read PodCertificateRequest %s/%s: %w", pod.Namespace, have.request, err)
		}
		if apierrors.IsNotFound(err) {
			have.request = ""
		}
	}
	if have.request == "" {
		if r, err = c.ask(ctx, pod, have, p); err != nil {
			return err
		}
	}
	if have.settle(r) || have.chain != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, issueWait)
	defer cancel()
	w, err := requests.Watch(ctx, metav1.ListOptions{ResourceVersion: r.ResourceVersion, FieldSelector: fields.AndSelectors(
		fields.OneTermEqualSelector("metadata.name", r.Name), fields.OneTermEqualSelector("spec.nodeName", pod.Spec.NodeName)).String()})
	if err != nil {
		return fmt.Errorf("watch PodCertificateRequest %s/%s: %w", pod.Namespace, r.Name, err)
	}
	defer w.Stop()
	for {
		select {
		case e, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			if r, is := e.Object.(*certificatesv1.PodCertificateRequest); is && have.settle(r) {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// ask makes a key and a request for it.
func (c *certificates) ask(ctx context.Context, pod *corev1.Pod, have *certificate, p *corev1.PodCertificateProjection) (*certificatesv1.PodCertificateRequest, error) {
	account, err := c.client.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, pod.Spec.ServiceAccountName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read service account %s/%s: %w", pod.Namespace, pod.Spec.ServiceAccountName, err)
	}
	node, err := c.client.CoreV1().Nodes().Get(ctx, pod.Spec.NodeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", pod.Spec.NodeName, err)
	}
	key, proof, err := newKey(p.KeyType)
	if err != nil {
		return nil, err
	}
	r, err := c.client.CertificatesV1().PodCertificateRequests(pod.Namespace).Create(ctx, &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: p.SignerName, PodName: pod.Name, PodUID: pod.UID,
			ServiceAccountName: account.Name, ServiceAccountUID: account.UID,
			NodeName: types.NodeName(node.Name), NodeUID: node.UID,
			MaxExpirationSeconds: p.MaxExpirationSeconds, StubPKCS10Request: proof, UnverifiedUserAnnotations: p.UserAnnotations,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create PodCertificateRequest of signer %s: %w", p.SignerName, err)
	}
	have.request, have.requestKey = r.Name, key
	return r, nil
}

// settle takes up what a signer decided, if it did.
func (have *certificate) settle(r *certificatesv1.PodCertificateRequest) bool {
	for _, cond := range r.Status.Conditions {
		switch cond.Type {
		case certificatesv1.PodCertificateRequestConditionTypeDenied, certificatesv1.PodCertificateRequestConditionTypeFailed:
			verdict := map[string]string{certificatesv1.PodCertificateRequestConditionTypeDenied: "denied", certificatesv1.PodCertificateRequestConditionTypeFailed: "failed"}[cond.Type]
			have.refused = fmt.Errorf("PodCertificateRequest %s/%s was permanently %s: reason=%q message=%q", r.Namespace, r.Name, verdict, cond.Reason, cond.Message)
			return true
		case certificatesv1.PodCertificateRequestConditionTypeIssued:
			if r.Status.NotAfter == nil || r.Status.BeginRefreshAt == nil {
				continue // validation requires both
			}
			jitter := min(maxRefreshJitter, r.Status.NotAfter.Sub(r.Status.BeginRefreshAt.Time)/2)
			*have = certificate{
				key: have.requestKey, chain: certificateBlocks([]byte(r.Status.CertificateChain)),
				refresh: r.Status.BeginRefreshAt.Add(mathrand.N(max(jitter, 1))), expires: r.Status.NotAfter.Time,
			}
			return true
		}
	}
	return false
}

// certificateBlocks leaves out what stands between or in PEM blocks besides certificates.
func certificateBlocks(chain []byte) []byte {
	out := []byte{}
	for {
		var b *pem.Block
		if b, chain = pem.Decode(chain); b == nil {
			return out
		}
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: b.Type, Bytes: b.Bytes})...)
	}
}

// newKey makes a private key, as PEM, and a PKCS #10 request without content that proves
// its possession.
func newKey(kind string) (key, proof []byte, err error) {
	var private crypto.Signer
	switch kind {
	case "RSA3072":
		private, err = rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		private, err = rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		private, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		private, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, private, err = ed25519.GenerateKey(rand.Reader)
	default:
		return nil, nil, fmt.Errorf("keyType %q of podCertificate is unknown; use RSA3072, RSA4096, ECDSAP256, ECDSAP384, ECDSAP521 or ED25519", kind)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("generate %s key: %w", kind, err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("encode %s key: %w", kind, err)
	}
	if proof, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, private); err != nil {
		return nil, nil, fmt.Errorf("prove possession of %s key: %w", kind, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), proof, nil
}

// podCertificate writes key and chain where the source wants them.
func (m *Manager) podCertificate(ctx context.Context, pod *corev1.Pod, files map[string]File, source string, p *corev1.PodCertificateProjection, perm os.FileMode) (time.Time, error) {
	c, next, err := m.certificates.get(ctx, pod, source, p)
	if err != nil {
		return next, err
	}
	perm, user := secretMode(pod, perm)
	for path, data := range map[string][]byte{
		p.CredentialBundlePath: append(append([]byte{}, c.key...), c.chain...), p.KeyPath: c.key, p.CertificateChainPath: c.chain,
	} {
		if path != "" {
			files[path] = File{Data: data, Mode: perm, UID: user}
		}
	}
	return next, nil
}

// secretMode is the mode and the owner of a credential: with a single reader nobody else
// needs to read it.
func secretMode(pod *corev1.Pod, perm os.FileMode) (os.FileMode, *int64) {
	user := commonUser(pod)
	if user != nil || pod.Spec.SecurityContext != nil && pod.Spec.SecurityContext.FSGroup != nil {
		perm = 0o600
	}
	return perm, user
}
