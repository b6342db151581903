package images

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// entry is one registry of a docker configuration.
type entry struct {
	Username      string `json:"username"`
	Password      string `json:"password"`
	Auth          string `json:"auth"`
	IdentityToken string `json:"identitytoken"`
	RegistryToken string `json:"registrytoken"`
}

// secretRef is the Secret that credentials are from; nil: the node's own.
type secretRef struct{ uid, namespace, name string }

// credential is one that may get an image.
type credential struct {
	auth *runtimeapi.AuthConfig
	from *secretRef
	hash string // of the entry, to know it again
}

// candidate is an entry under its key in the form that repositories are compared with.
type candidate struct {
	key, location string
	e             entry
	from          *secretRef
}

// credentials are those that fit the repository, most specific first; those of secrets
// before the node's own. Broken configurations are passed over, others may fit; the error tells
// of them.
func credentials(repository string, secrets []*corev1.Secret, node []byte) ([]credential, error) {
	var errs []error
	var all []candidate
	for _, s := range secrets {
		var m map[string]entry
		var err error
		switch s.Type {
		case corev1.SecretTypeDockerConfigJson:
			m, err = auths(s.Data[corev1.DockerConfigJsonKey])
		case corev1.SecretTypeDockercfg:
			err = json.Unmarshal(s.Data[corev1.DockerConfigKey], &m)
		default:
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("imagePullSecret %s cannot be read: its %s is no docker configuration", s.Name, s.Type))
			continue
		}
		from := &secretRef{uid: string(s.UID), namespace: s.Namespace, name: s.Name}
		for location, e := range m {
			all = append(all, candidate{keyOf(location), location, e, from})
		}
	}
	out, err := fitting(repository, all)
	errs = append(errs, err)
	if len(node) > 0 {
		m, err := auths(node)
		if err != nil {
			errs = append(errs, errors.New("the node's docker configuration cannot be read"))
		}
		var own []candidate
		for location, e := range m {
			own = append(own, candidate{keyOf(location), location, e, nil})
		}
		more, err := fitting(repository, own)
		errs = append(errs, err)
		out = append(out, more...)
	}
	return out, errors.Join(errs...)
}

// auths reads a config.json, or the older form that is nothing but its entries.
func auths(raw []byte) (map[string]entry, error) {
	var f struct {
		Auths map[string]entry `json:"auths"`
	}
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil, err
	}
	return f.Auths, nil
}

// nodeAuth reads the node's own configuration: the first that is there of those that
// upstream's kubelet looks at.
func nodeAuth(rootDir string) []byte {
	files := []string{filepath.Join(rootDir, "config.json")}
	if home := os.Getenv("HOME"); home != "" {
		files = append(files, filepath.Join(home, ".docker", "config.json"))
	}
	for _, f := range append(files, "/.docker/config.json") {
		if raw, err := os.ReadFile(f); err == nil {
			return raw
		}
	}
	if raw, err := os.ReadFile(filepath.Join(rootDir, ".dockercfg")); err == nil {
		return append(append([]byte(`{"auths":`), raw...), '}')
	}
	return nil
}

// keyOf is what a location of a docker configuration ("registry", "*.example.com",
// "https://registry/v1/", "registry/path") covers: a host and the beginning of a path.
func keyOf(location string) string {
	l := location
	if !strings.HasPrefix(l, "https://") && !strings.HasPrefix(l, "http://") {
		l = "https://" + l
	}
	u, err := url.Parse(l)
	if err != nil {
		return ""
	}
	dir := u.Path
	if strings.HasPrefix(dir, "/v1/") || strings.HasPrefix(dir, "/v2/") {
		dir = dir[3:]
	}
	if dir == "/" || dir == "/v1" || dir == "/v2" {
		dir = ""
	}
	return u.Host + dir
}

func fitting(repository string, all []candidate) ([]credential, error) {
	// The longest of keys that begin alike comes first; what else there is keeps an order.
	sort.SliceStable(all, func(i, j int) bool {
		a, b := all[i], all[j]
		if a.key != b.key {
			return a.key > b.key
		}
		return a.location > b.location
	})
	var out []credential
	var errs []error
	for _, c := range all {
		if !fits(c.key, repository) {
			continue
		}
		// No ServerAddress, as upstream: containerd takes it for a URL and drops what has another form.
		a := &runtimeapi.AuthConfig{Username: c.e.Username, Password: c.e.Password, IdentityToken: c.e.IdentityToken, RegistryToken: c.e.RegistryToken}
		if c.e.Auth != "" {
			user, pass, err := decodeAuth(c.e.Auth)
			if err != nil {
				errs = append(errs, fmt.Errorf("credentials for %s: %w", c.location, err))
				continue
			}
			a.Username, a.Password = user, pass
		}
		out = append(out, credential{auth: a, from: c.from, hash: hashOf(c.location, a)})
	}
	return out, errors.Join(errs...)
}

// decodeAuth reads user:password in base64, padded or not.
func decodeAuth(text string) (user, password string, err error) {
	raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(text), "="))
	if err != nil {
		return "", "", errors.New("auth is not base64")
	}
	user, password, ok := strings.Cut(string(raw), ":")
	if !ok {
		return "", "", errors.New("auth is not user:password in base64")
	}
	return user, strings.TrimRight(password, "\x00"), nil
}

// dockerHub is what docker configurations call the registry of names without one.
const dockerHub = "index.docker.io"

// fits tells whether a key covers a repository: parts of the host may be globs, paths are
// beginnings.
func fits(key, repository string) bool {
	host, dir, _ := strings.Cut(key, "/")
	rhost, rdir, _ := strings.Cut(repository, "/")
	if host == dockerHub && rhost == "docker.io" {
		host = rhost
	}
	if !strings.HasPrefix(rdir, dir) {
		return false
	}
	khost, kport, _ := strings.Cut(host, ":")
	ihost, iport, _ := strings.Cut(rhost, ":")
	if kport != iport {
		return false
	}
	kp, ip := strings.Split(khost, "."), strings.Split(ihost, ".")
	if len(kp) != len(ip) {
		return false
	}
	for i := range kp {
		if ok, err := path.Match(kp[i], ip[i]); err != nil || !ok {
			return false
		}
	}
	return true
}
