package images

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/internal/fakecri"
)

func dockerConfig(name, text string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name)}, Type: corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(text)}}
}

// Who has none of the credentials that an image came by does not get it from the node's disk
// (KEP-2535); images that were there before are everybody's.
func TestImagesOfSecrets(t *testing.T) {
	s := fakecri.Start(t)
	c, err := cri.New(cri.Config{RuntimeEndpoint: s.Endpoint()})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	s.AddImage("preloaded.example.com/a:1", nil, "")
	for _, n := range []string{"reg.example.com/private:1", "reg.example.com/open:1"} {
		s.Remote[n] = true
	}
	s.Auth = func(image string, a *runtimeapi.AuthConfig) error {
		if strings.Contains(image, "private") && a.GetPassword() != "right" {
			return errors.New("denied")
		}
		return nil
	}
	dir := t.TempDir()
	p := New(Config{CRI: c, RootDir: dir})
	entry := func(password string) string {
		return `{"auths":{"reg.example.com":{"username":"u","password":"` + password + `"}}}`
	}
	pulls := 0
	get := func(pod, image string, policy corev1.PullPolicy, secrets ...*corev1.Secret) string {
		t.Helper()
		before := s.Calls("PullImage")
		_, err := p.Ensure(context.Background(), Request{Pod: types.UID(pod), Image: image, Policy: policy, Secrets: secrets, Event: func(_, _, _ string) {}})
		pulls = s.Calls("PullImage") - before
		if err != nil {
			return err.Reason
		}
		return ""
	}
	right, wrong := dockerConfig("right", entry("right")), dockerConfig("wrong", entry("wrong"))
	for i, step := range []struct {
		image   string
		policy  corev1.PullPolicy
		secrets []*corev1.Secret
		reason  string
		pulls   int
	}{
		{"preloaded.example.com/a:1", corev1.PullNever, nil, "", 0},
		{"reg.example.com/private:1", corev1.PullIfNotPresent, nil, "ErrImagePull", 1},
		{"reg.example.com/private:1", corev1.PullIfNotPresent, []*corev1.Secret{right}, "", 1},
		{"reg.example.com/private:1", corev1.PullIfNotPresent, []*corev1.Secret{right}, "", 0},
		{"reg.example.com/private:1", corev1.PullNever, []*corev1.Secret{right}, "", 0},
		// The same credentials from another Secret are as good.
		{"reg.example.com/private:1", corev1.PullIfNotPresent, []*corev1.Secret{dockerConfig("copy", entry("right"))}, "", 0},
		{"reg.example.com/private:1", corev1.PullIfNotPresent, nil, "ErrImagePull", 1},
		{"reg.example.com/private:1", corev1.PullIfNotPresent, []*corev1.Secret{wrong}, "ErrImagePull", 1},
		{"reg.example.com/private:1", corev1.PullNever, []*corev1.Secret{wrong}, "ErrImageNeverPull", 0},
		{"reg.example.com/private:1", corev1.PullIfNotPresent, []*corev1.Secret{wrong, right}, "", 0},
		{"reg.example.com/open:1", corev1.PullIfNotPresent, nil, "", 1},
		{"reg.example.com/open:1", corev1.PullIfNotPresent, nil, "", 0},
	} {
		if got := get("pod"+string(rune('a'+i)), step.image, step.policy, step.secrets...); got != step.reason || pulls != step.pulls {
			t.Errorf("step %d: %q after %d pulls, want %q after %d", i, got, pulls, step.reason, step.pulls)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(dir, "image_manager", "pulling")); len(left) != 0 {
		t.Errorf("%d notes of pulls are left", len(left))
	}

	// A kubelet that starts again knows, even if it was killed during a pull.
	p = New(Config{CRI: c, RootDir: dir})
	if got := get("z", "reg.example.com/private:1", corev1.PullIfNotPresent); got != "ErrImagePull" {
		t.Errorf("after a restart: %q", got)
	}
	if err := p.records.intend("preloaded.example.com/a:1"); err != nil {
		t.Fatal(err)
	}
	if got := get("y", "preloaded.example.com/a:1", corev1.PullNever); got != "ErrImageNeverPull" {
		t.Errorf("an image that came by nobody knows whose credentials: %q", got)
	}

	// Records go with images.
	p.Keep(map[string]bool{})
	if left, err := os.ReadDir(filepath.Join(dir, "image_manager", "pulled")); err != nil || len(left) != 0 {
		t.Errorf("%v %v", left, err)
	}
}

// The rules are those of upstream's keyring.
func TestKeyring(t *testing.T) {
	for _, tt := range []struct {
		location, repository string
		fits                 bool
	}{
		{"reg.io", "reg.io/app", true},
		{"https://reg.io", "reg.io/app", true},
		{"http://reg.io/v1/", "reg.io/app", true},
		{"https://reg.io/v2/", "reg.io/app", true},
		{"reg.io/v1/team", "reg.io/team/app", true},
		{"reg.io/v1/team", "reg.io/app", false},
		{"reg.io/team", "reg.io/team/app", true},
		{"reg.io/team", "reg.io/other/app", false},
		{"reg.io:5000", "reg.io/app", false},
		{"reg.io:5000", "reg.io:5000/app", true},
		{"*.io", "reg.io/app", true},
		{"*.*.io", "a.reg.io/app", true},
		{"*.io", "a.reg.io/app", false},
		{"prefix-*.reg.io/team", "prefix-x.reg.io/team/app", true},
		{"r?g.io", "reg.io/app", false}, // a URL with a query
		{"*", "reg.io/app", false},
		{"https://index.docker.io/v1/", "docker.io/library/nginx", true},
		{"index.docker.io", "docker.io/library/nginx", true},
		{"docker.io", "docker.io/library/nginx", true},
		{"docker.io/team", "docker.io/library/nginx", false},
		{"10.0.0.1:5000", "10.0.0.1:5000/app", true},
		{"://", "reg.io/app", false},
	} {
		if got := fits(keyOf(tt.location), tt.repository); got != tt.fits {
			t.Errorf("%s for %s: %v", tt.location, tt.repository, got)
		}
	}
}

// All forms of secrets and of their auth field are read; those that are broken are told of.
func TestForms(t *testing.T) {
	cfg := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "old"}, Type: corev1.SecretTypeDockercfg, Data: map[string][]byte{corev1.DockerConfigKey: []byte(`{"reg.io":{"auth":"b2xkOnA="}}`)}}
	for _, tt := range []struct {
		secrets []*corev1.Secret
		node    string
		want    string
		broken  string
	}{
		{[]*corev1.Secret{cfg}, "", "old:p", ""},
		{[]*corev1.Secret{dockerConfig("a", `{"auths":{"reg.io":{"auth":"dTpwOnE"}}}`)}, "", "u:p:q", ""},
		{[]*corev1.Secret{dockerConfig("a", `{"auths":{"reg.io":{"auth":"dTpw","username":"x","password":"y"}}}`)}, "", "u:p", ""},
		{[]*corev1.Secret{dockerConfig("a", `{"auths":{"reg.io":{"identitytoken":"t"}}}`)}, "", "token t", ""},
		{[]*corev1.Secret{dockerConfig("a", `{"auths":{"reg.io":{"username":"a"}}}`)}, `{"auths":{"reg.io":{"username":"n","password":"p"}}}`, "a: n:p", ""},
		{[]*corev1.Secret{dockerConfig("bad", `{`), cfg}, "", "old:p", "bad"},
		{[]*corev1.Secret{dockerConfig("a", `{"auths":{"reg.io":{"auth":"!!"}}}`)}, "", "", "base64"},
		{[]*corev1.Secret{dockerConfig("a", `{"auths":{"reg.io":{"auth":"dXNlcg=="}}}`)}, "", "", "user:password"},
		{[]*corev1.Secret{{Type: corev1.SecretTypeOpaque}}, "", "", ""},
	} {
		creds, err := credentials("reg.io/app", tt.secrets, []byte(tt.node))
		var got []string
		for _, c := range creds {
			if c.auth.IdentityToken != "" {
				got = append(got, "token "+c.auth.IdentityToken)
			} else {
				got = append(got, c.auth.Username+":"+c.auth.Password)
			}
		}
		if strings.Join(got, " ") != tt.want || (err != nil) != (tt.broken != "") || err != nil && !strings.Contains(err.Error(), tt.broken) {
			t.Errorf("%q %v, want %q %q", got, err, tt.want, tt.broken)
		}
		if err != nil && strings.Contains(err.Error(), "!!") {
			t.Errorf("the error holds the secret: %v", err)
		}
	}
}
