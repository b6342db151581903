package cluster

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/cluster/addons"
	"github.com/skiff-k8s/skiff/cluster/pki"
)

// Token lets a machine join: kubeadm's bootstrap token and, behind an @, the hash by which
// the machine knows the cluster's CA: abcdef.0123456789abcdef@sha256:…
type Token struct {
	ID, Secret string
	// CAHash is of the CA's public key, sha256:hex as kubeadm's --discovery-token-ca-cert-hash;
	// empty in a token of kubeadm's.
	CAHash string
}

// Bearer is what the API server knows it by.
func (t Token) Bearer() string { return t.ID + "." + t.Secret }

func (t Token) String() string {
	if t.CAHash == "" {
		return t.Bearer()
	}
	return t.Bearer() + "@" + t.CAHash
}

const hashPrefix = "sha256:"

var (
	tokenForm = regexp.MustCompile(`^([a-z0-9]{6})\.([a-z0-9]{16})$`)
	hashForm  = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
)

// ParseToken reads a token with or without its CA's hash.
func ParseToken(s string) (Token, error) {
	bearer, hash, pinned := strings.Cut(s, "@")
	m := tokenForm.FindStringSubmatch(bearer)
	if m == nil {
		return Token{}, errors.New("is no token such as abcdef.0123456789abcdef@sha256:…; skiff token create makes one")
	}
	t := Token{ID: m[1], Secret: m[2]}
	if pinned {
		var err error
		if t.CAHash, err = ParseCAHash(hash); err != nil {
			return Token{}, fmt.Errorf("what follows its @ %w", err)
		}
	}
	return t, nil
}

// ParseCAHash checks the hash of a CA.
func ParseCAHash(s string) (string, error) {
	s = strings.ToLower(s)
	if !hashForm.MatchString(s) {
		return "", errors.New("is no hash such as sha256: and 64 hexadecimal digits; skiff token create prints it")
	}
	return s, nil
}

// caHashes are those of the certificates in a PEM bundle, in its order.
func caHashes(bundle []byte) ([]string, error) {
	var out []string
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("parse CA certificate: %w", err)
		}
		sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
		out = append(out, hashPrefix+hex.EncodeToString(sum[:]))
	}
	if len(out) == 0 {
		return nil, errors.New("no CA certificate is there")
	}
	return out, nil
}

const (
	tokenType   corev1.SecretType = "bootstrap.kubernetes.io/token"
	tokenPrefix                   = "bootstrap-token-"
)

// CreateToken makes a token that lives for ttl, for ever if that is 0, of the cluster in p.
func CreateToken(ctx context.Context, client kubernetes.Interface, p Paths, ttl time.Duration, description string) (Token, error) {
	certFile, _ := pki.Dir{Path: p.PKI()}.Files("ca")
	ca, err := os.ReadFile(certFile)
	if err != nil {
		return Token{}, fmt.Errorf("read the cluster's CA: %w", err)
	}
	hashes, err := caHashes(ca)
	if err != nil {
		return Token{}, err
	}
	t := Token{ID: randomText(6), Secret: randomText(16), CAHash: hashes[0]}
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: tokenPrefix + t.ID},
		Type:       tokenType,
		StringData: map[string]string{
			"token-id": t.ID, "token-secret": t.Secret,
			"usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true",
			"auth-extra-groups": addons.BootstrapGroup,
		},
	}
	if description != "" {
		s.StringData["description"] = description
	}
	if ttl > 0 {
		s.StringData["expiration"] = time.Now().Add(ttl).UTC().Format(time.RFC3339)
	}
	if _, err := client.CoreV1().Secrets(s.Namespace).Create(ctx, s, metav1.CreateOptions{FieldManager: "skiff"}); err != nil {
		return Token{}, fmt.Errorf("create token: %w", err)
	}
	return t, nil
}

// JoinCommand is what a machine is to run that joins the cluster.
func JoinCommand(c *Config, t Token) string {
	return fmt.Sprintf("skiff agent --server %s --token %s", c.PublicServer(), t)
}

// randomText is n of a token's letters.
func randomText(n int) string {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	out := make([]byte, 0, n)
	buf := make([]byte, 1)
	for len(out) < n {
		rand.Read(buf) // never fails
		if i := int(buf[0]); i < 256/len(letters)*len(letters) {
			out = append(out, letters[i%len(letters)])
		}
	}
	return string(out)
}

// TokenInfo is what is known of a token; its secret is not told.
type TokenInfo struct {
	ID string
	// Expires is zero for one that never does.
	Expires     time.Time
	Usages      []string
	Groups      string
	Description string
}

// Tokens are the cluster's bootstrap tokens.
func Tokens(ctx context.Context, client kubernetes.Interface) ([]TokenInfo, error) {
	list, err := client.CoreV1().Secrets(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{FieldSelector: "type=" + string(tokenType)})
	if err != nil {
		return nil, fmt.Errorf("list tokens: %w", err)
	}
	var out []TokenInfo
	for _, s := range list.Items {
		t := TokenInfo{ID: string(s.Data["token-id"]), Groups: string(s.Data["auth-extra-groups"]), Description: string(s.Data["description"])}
		t.Expires, _ = time.Parse(time.RFC3339, string(s.Data["expiration"])) // nonsense has expired long ago, as its cleaner has it
		for _, u := range []string{"authentication", "signing"} {
			if string(s.Data["usage-bootstrap-"+u]) == "true" {
				t.Usages = append(t.Usages, u)
			}
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b TokenInfo) int { return strings.Compare(a.ID, b.ID) })
	return out, nil
}

// DeleteToken takes a token away, by its id or whole.
func DeleteToken(ctx context.Context, client kubernetes.Interface, token string) error {
	id, _, _ := strings.Cut(token, ".")
	err := client.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, tokenPrefix+id, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no token %s; skiff token ls lists them", id)
	}
	if err != nil {
		return fmt.Errorf("delete token %s: %w", id, err)
	}
	return nil
}
