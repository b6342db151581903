package images

import (
	"encoding/base64"
	"encoding/json"
	"path"
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

// credentials are those that fit the repository, most specific first; secrets
// before the node's own. Broken configurations are passed over: others may fit.
func credentials(repository string, secrets []*corev1.Secret, node []byte) []*runtimeapi.AuthConfig {
	var out []*runtimeapi.AuthConfig
	for _, s := range secrets {
		switch s.Type {
		case corev1.SecretTypeDockerConfigJson:
			out = append(out, fitting(repository, auths(s.Data[corev1.DockerConfigJsonKey]))...)
		case corev1.SecretTypeDockercfg:
			var m map[string]entry
			if json.Unmarshal(s.Data[corev1.DockerConfigKey], &m) == nil {
				out = append(out, fitting(repository, m)...)
			}
		}
	}
	return append(out, fitting(repository, auths(node))...)
}

func auths(raw []byte) map[string]entry {
	var f struct {
		Auths map[string]entry `json:"auths"`
	}
	if json.Unmarshal(raw, &f) != nil {
		return nil
	}
	return f.Auths
}

func fitting(repository string, m map[string]entry) []*runtimeapi.AuthConfig {
	var keys []string
	for k := range m {
		if fits(k, repository) {
			keys = append(keys, k)
		}
	}
	sort.Sort(sort.Reverse(sort.StringSlice(keys)))
	var out []*runtimeapi.AuthConfig
	for _, k := range keys {
		e := m[k]
		a := &runtimeapi.AuthConfig{Username: e.Username, Password: e.Password, IdentityToken: e.IdentityToken, RegistryToken: e.RegistryToken, ServerAddress: k}
		if e.Auth != "" && a.Username == "" {
			if raw, err := base64.StdEncoding.DecodeString(e.Auth); err == nil {
				user, pass, _ := strings.Cut(string(raw), ":")
				a.Username, a.Password = user, strings.TrimRight(pass, "\x00")
			}
		}
		out = append(out, a)
	}
	return out
}

// fits tells whether a key of a docker configuration ("registry", "*.example.com",
// "https://registry/v1/", "registry/path") covers a repository: host parts may be
// globs, paths are prefixes.
func fits(key, repository string) bool {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	host, dir, _ := strings.Cut(key, "/")
	dir = strings.TrimSuffix(dir, "/")
	if dir == "v1" || dir == "v2" {
		dir = ""
	}
	if host == "index.docker.io" {
		host = "docker.io"
	}
	rhost, rdir, _ := strings.Cut(repository, "/")
	if dir != "" && !strings.HasPrefix(rdir, dir) {
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
