package images

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/distribution/reference"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
)

// records are the credentials with which images on the node were pulled (KEP-2535): who has
// none of them must not use an image that another pod's secret got. Directory and format are
// upstream's, so that a node can change kubelets.
//
// Images without a record were there before the kubelet, or put there past it, and are free
// to all (policy NeverVerifyPreloadedImages, upstream's default).
type records struct {
	dir string // empty: none are kept, all images are free
	mu  sync.Mutex
}

const recordVersion = "kubelet.config.k8s.io/v1beta1"

func (r *records) path(kind, of string) string {
	return filepath.Join(r.dir, kind, fmt.Sprintf("sha256-%x", sha256.Sum256([]byte(of))))
}

// intend notes that an image is about to be pulled: should the kubelet end before it knows
// by whose credentials it came, it is not taken for one that was there before.
func (r *records) intend(image string) error {
	if r.dir == "" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.write("pulling", image, kubeletv1beta1.ImagePullIntent{
		TypeMeta: metav1.TypeMeta{APIVersion: recordVersion, Kind: "ImagePullIntent"}, Image: image,
	})
}

// failed takes the note back.
func (r *records) failed(image string) error {
	if r.dir == "" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return removed(os.Remove(r.path("pulling", image)))
}

// pulled notes by which credential an image came; nil: by none, or the node's own.
func (r *records) pulled(image, ref string, c *credential) error {
	if r.dir == "" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, err := r.read(ref)
	if err != nil || rec == nil {
		rec = &kubeletv1beta1.ImagePulledRecord{ImageRef: ref} // what cannot be read is made anew
	}
	rec.TypeMeta = metav1.TypeMeta{APIVersion: recordVersion, Kind: "ImagePulledRecord"}
	rec.LastUpdatedTime = metav1.NewTime(time.Now())
	if rec.CredentialMapping == nil {
		rec.CredentialMapping = map[string]kubeletv1beta1.ImagePullCredentials{}
	}
	name := untagged(image)
	m := rec.CredentialMapping[name]
	switch {
	case m.NodePodsAccessible:
	case c == nil || c.from == nil:
		m = kubeletv1beta1.ImagePullCredentials{NodePodsAccessible: true}
	default:
		s := kubeletv1beta1.ImagePullSecret{UID: c.from.uid, Namespace: c.from.namespace, Name: c.from.name, CredentialHash: c.hash}
		m.KubernetesSecrets = slices.DeleteFunc(m.KubernetesSecrets, func(o kubeletv1beta1.ImagePullSecret) bool { return o.UID == s.UID })
		m.KubernetesSecrets = append(m.KubernetesSecrets, s)
	}
	rec.CredentialMapping[name] = m
	if err := r.write("pulled", ref, rec); err != nil {
		return err
	}
	return removed(os.Remove(r.path("pulling", image)))
}

// free tells whether a pod with these credentials may use an image that is there.
func (r *records) free(image, ref string, creds []credential) (bool, error) {
	if r.dir == "" {
		return true, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rec, err := r.read(ref)
	if err != nil {
		return false, err
	}
	if rec == nil {
		_, err := os.Stat(r.path("pulling", image))
		return errors.Is(err, fs.ErrNotExist), nil
	}
	m, known := rec.CredentialMapping[untagged(image)]
	if !known || m.NodePodsAccessible {
		return known, nil
	}
	for _, c := range creds {
		for _, s := range m.KubernetesSecrets {
			if c.from != nil && s.CredentialHash == c.hash {
				return true, nil
			}
		}
	}
	return false, nil
}

// keep forgets the records of images that are gone.
func (r *records) keep(refs map[string]bool) error {
	if r.dir == "" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	entries, err := os.ReadDir(filepath.Join(r.dir, "pulled"))
	if err != nil {
		return removed(err)
	}
	names := map[string]bool{}
	for ref := range refs {
		names[filepath.Base(r.path("pulled", ref))] = true
	}
	var errs []error
	for _, e := range entries {
		if !names[e.Name()] {
			errs = append(errs, removed(os.Remove(filepath.Join(r.dir, "pulled", e.Name()))))
		}
	}
	return errors.Join(errs...)
}

func (r *records) read(ref string) (*kubeletv1beta1.ImagePulledRecord, error) {
	raw, err := os.ReadFile(r.path("pulled", ref))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read record of image: %w", err)
	}
	rec := &kubeletv1beta1.ImagePulledRecord{}
	if err := json.Unmarshal(raw, rec); err != nil {
		return nil, fmt.Errorf("parse %s: %w", r.path("pulled", ref), err)
	}
	return rec, nil
}

func (r *records) write(kind, of string, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode record of image: %w", err)
	}
	path := r.path(kind, of)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("record of image: %w", err)
	}
	if err := os.WriteFile(path+".tmp", raw, 0o600); err != nil {
		return fmt.Errorf("write record of image: %w", err)
	}
	if err := os.Rename(path+".tmp", path); err != nil {
		return fmt.Errorf("write record of image: %w", err)
	}
	return nil
}

// removed is the error of a removal, if what was to go may have been gone.
func removed(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// untagged is an image's name without tag and digest, as records have it.
func untagged(image string) string {
	named, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return image
	}
	return reference.TrimNamed(named).String()
}

// hashOf tells credentials apart without keeping them.
func hashOf(location string, a *runtimeapi.AuthConfig) string {
	raw, err := json.Marshal([]string{location, a.Username, a.Password, a.IdentityToken, a.RegistryToken})
	if err != nil {
		panic(err) // strings always encode
	}
	return fmt.Sprintf("%x", sha256.Sum256(raw))
}
