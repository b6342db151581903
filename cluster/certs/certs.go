// Package certs carries a cluster's keys from one control plane to the next: in the Secret
// kube-system/kubeadm-certs, encrypted as kubeadm's --upload-certs does, for two hours.
//
// Owns: that Secret and who may read it. Must not: make certificates (pki does), know what a
// control plane does with them.
package certs

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// SecretName and its role are kubeadm's.
	SecretName = "kubeadm-certs"
	roleName   = "kubeadm:kubeadm-certs"
	// Life is how long the Secret is there.
	Life = 2 * time.Hour
	// keySize is that of AES-256.
	keySize = 32
	manager = "skiff"
)

// files are those that every control plane of a cluster has the same, below its pki directory.
var files = []string{"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.pub", "sa.key"}

// etcdFiles are there too where the control planes are etcd's members.
var etcdFiles = []string{"etcd/ca.crt", "etcd/ca.key"}

// secretKey is a file's name in the Secret.
func secretKey(file string) string { return strings.ReplaceAll(file, "/", "-") }

// NewKey makes a certificate key: what decrypts the Secret, in hexadecimal digits.
func NewKey() string {
	key := make([]byte, keySize)
	rand.Read(key) // never fails
	return hex.EncodeToString(key)
}

// ParseKey reads a certificate key.
func ParseKey(s string) ([]byte, error) {
	key, err := hex.DecodeString(s)
	if err != nil || len(key) != keySize {
		return nil, errors.New("is no key of 64 hexadecimal digits; skiff token create --control-plane prints one")
	}
	return key, nil
}

func sealer(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(block)
}

// seal encrypts: a nonce, then what AES-GCM makes of the text.
func seal(aead cipher.AEAD, text []byte) []byte {
	nonce := make([]byte, aead.NonceSize())
	rand.Read(nonce)
	return aead.Seal(nonce, nonce, text, nil)
}

func open(aead cipher.AEAD, sealed []byte) ([]byte, error) {
	if len(sealed) < aead.NonceSize() {
		return nil, errors.New("too short")
	}
	return aead.Open(nil, sealed[:aead.NonceSize()], sealed[aead.NonceSize():], nil)
}

// Bundle is what a further control plane needs.
type Bundle struct {
	// Files by their path below the pki directory.
	Files map[string][]byte
	// Settings are skiff's own, which kubeadm leaves alone.
	Settings []byte
}

// settingsKey holds them in the Secret.
const settingsKey = "skiff.json"

// Read collects the files of a pki directory, etcd's if withEtcd.
func Read(dir string, withEtcd bool) (map[string][]byte, error) {
	names := files
	if withEtcd {
		names = append(names[:len(names):len(names)], etcdFiles...)
	}
	out := map[string][]byte{}
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("read the cluster's keys: %w", err)
		}
		out[name] = text
	}
	return out, nil
}

// Upload puts the bundle, encrypted by key, where a machine finds it that bears a bootstrap
// token of the group; it replaces one from before.
func Upload(ctx context.Context, client kubernetes.Interface, key string, b Bundle, group string, now time.Time) error {
	raw, err := ParseKey(key)
	if err != nil {
		return fmt.Errorf("certificate key %w", err)
	}
	aead, err := sealer(raw)
	if err != nil {
		return fmt.Errorf("encrypt the cluster's keys: %w", err)
	}
	data := map[string][]byte{settingsKey: seal(aead, b.Settings)}
	for name, text := range b.Files {
		data[secretKey(name)] = seal(aead, text)
	}
	owner, err := keeper(ctx, client, now)
	if err != nil {
		return err
	}
	secrets := client.CoreV1().Secrets(metav1.NamespaceSystem)
	want := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: SecretName, OwnerReferences: []metav1.OwnerReference{*owner}},
		Data:       data,
	}
	if err := secrets.Delete(ctx, SecretName, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("replace secret %s: %w", SecretName, err)
	}
	if _, err := secrets.Create(ctx, want, metav1.CreateOptions{FieldManager: manager}); err != nil {
		return fmt.Errorf("create secret %s: %w", SecretName, err)
	}
	return allow(ctx, client, group)
}

// keeper makes the token that ends with the Secret's life: its cleaner takes it away, and
// garbage collection the Secret that it owns.
func keeper(ctx context.Context, client kubernetes.Interface, now time.Time) (*metav1.OwnerReference, error) {
	id, secret := letters(6), letters(16)
	token := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id},
		Type:       "bootstrap.kubernetes.io/token",
		StringData: map[string]string{
			"token-id": id, "token-secret": secret,
			"description": "ends the life of the secret " + SecretName,
			"expiration":  now.Add(Life).UTC().Format(time.RFC3339),
		},
	}
	made, err := client.CoreV1().Secrets(token.Namespace).Create(ctx, token, metav1.CreateOptions{FieldManager: manager})
	if err != nil {
		return nil, fmt.Errorf("create the token that ends secret %s: %w", SecretName, err)
	}
	return metav1.NewControllerRef(made, corev1.SchemeGroupVersion.WithKind("Secret")), nil
}

// letters is n of a bootstrap token's.
func letters(n int) string {
	const of = "abcdefghijklmnopqrstuvwxyz012345" // 32 of them: each byte chooses evenly
	out := make([]byte, n)
	rand.Read(out)
	for i := range out {
		out[i] = of[out[i]%32]
	}
	return string(out)
}

func allow(ctx context.Context, client kubernetes.Interface, group string) error {
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: roleName},
		Rules:      []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{SecretName}}},
	}
	if _, err := client.RbacV1().Roles(role.Namespace).Create(ctx, role, metav1.CreateOptions{FieldManager: manager}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create role %s: %w", roleName, err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: roleName},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: roleName},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: group}},
	}
	if _, err := client.RbacV1().RoleBindings(binding.Namespace).Create(ctx, binding, metav1.CreateOptions{FieldManager: manager}); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create role binding %s: %w", roleName, err)
	}
	return nil
}

// Download reads the bundle as whoever has the key.
func Download(ctx context.Context, client kubernetes.Interface, key []byte) (Bundle, error) {
	aead, err := sealer(key)
	if err != nil {
		return Bundle{}, fmt.Errorf("--certificate-key: %w", err)
	}
	secret, err := client.CoreV1().Secrets(metav1.NamespaceSystem).Get(ctx, SecretName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return Bundle{}, fmt.Errorf("the cluster's keys are not there for this machine (Secret kube-system/%s lives for %s): make a new command on a control plane: skiff token create --control-plane", SecretName, Life)
	}
	if err != nil {
		return Bundle{}, fmt.Errorf("read secret %s: %w", SecretName, err)
	}
	b := Bundle{Files: map[string][]byte{}}
	for _, name := range append(files[:len(files):len(files)], etcdFiles...) {
		sealed := secret.Data[secretKey(name)]
		if len(sealed) == 0 {
			continue
		}
		if b.Files[name], err = open(aead, sealed); err != nil {
			return Bundle{}, errWrongKey
		}
	}
	for _, name := range files {
		if b.Files[name] == nil {
			return Bundle{}, fmt.Errorf("secret kube-system/%s lacks %s: make it anew on a control plane: skiff token create --control-plane", SecretName, secretKey(name))
		}
	}
	if sealed := secret.Data[settingsKey]; len(sealed) > 0 {
		if b.Settings, err = open(aead, sealed); err != nil {
			return Bundle{}, errWrongKey
		}
	}
	return b, nil
}

var errWrongKey = errors.New("--certificate-key is not the one that the cluster's keys were last encrypted with; each skiff token create --control-plane makes a new one: use the last")

// Write puts the files below a pki directory.
func (b Bundle) Write(dir string) error {
	for name, text := range b.Files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return fmt.Errorf("write the cluster's keys: %w", err)
		}
		mode := fs.FileMode(0o644)
		if strings.HasSuffix(name, ".key") {
			mode = 0o600
		}
		if err := os.WriteFile(path, text, mode); err != nil {
			return fmt.Errorf("write the cluster's keys: %w", err)
		}
	}
	return nil
}
