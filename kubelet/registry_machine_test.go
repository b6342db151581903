package kubelet

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"crypto/tls"

	"github.com/google/go-containerregistry/pkg/registry"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// Images come from a registry over TLS whose authority is the test's, that wants a token,
// behind a mirror that is down: with imagePullSecrets, with the node's configuration, or not.
func TestRegistryOnEachRuntime(t *testing.T) {
	eachRuntime(t, func(m *machine) {
		t := m.T
		inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
		plain := httptest.NewServer(inner)
		defer plain.Close()
		for _, n := range []string{"private", "team/app"} {
			m.push(strings.TrimPrefix(plain.URL, "http://")+"/"+n+":1", busybox(t, n))
		}
		var srv *httptest.Server
		srv = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/token" {
				if u, p, _ := r.BasicAuth(); u != "bob" || p != "secret" {
					w.WriteHeader(http.StatusUnauthorized)
					return
				}
				_ = json.NewEncoder(w).Encode(map[string]string{"token": "good"})
				return
			}
			if r.Header.Get("Authorization") != "Bearer good" {
				w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="reg"`, srv.URL))
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			inner.ServeHTTP(w, r)
		}))
		srv.Config.ErrorLog = log.New(io.Discard, "", 0)
		srv.TLS = &tls.Config{Certificates: []tls.Certificate{m.certificate("registry", nil, "127.0.0.1")}}
		srv.StartTLS()
		defer srv.Close()
		host := strings.TrimPrefix(srv.URL, "https://")
		ca := m.dir + "/ca.pem"
		if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: m.ca.Raw}), 0o644); err != nil {
			t.Fatal(err)
		}
		switch r := m.runtime.(type) {
		case *builtin:
			r.kill()
			r.reg.Mirrors, r.reg.CAFiles = map[string][]string{host: {"http://127.0.0.1:9"}}, map[string]string{host: ca}
			r.start()
		case *containerd:
			dir := m.dir + "/containerd/certs.d/" + host
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			text := fmt.Sprintf("server = %q\nca = %q\n[host.\"http://127.0.0.1:9\"]\n  capabilities = [\"pull\", \"resolve\"]\n", srv.URL, ca)
			if err := os.WriteFile(dir+"/hosts.toml", []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		secret := func(name, location, password string) {
			t.Helper()
			auth := base64.StdEncoding.EncodeToString([]byte("bob:" + password))
			_, err := m.api.CoreV1().Secrets("default").Create(context.Background(), &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-secret-" + name)}, Type: corev1.SecretTypeDockerConfigJson,
				Data: map[string][]byte{corev1.DockerConfigJsonKey: []byte(fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, location, auth))},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
		}
		secret("good", "https://"+host+"/v2/", "secret")
		secret("bad", host, "wrong")
		secret("team", host+"/team", "secret")
		m.startKubelet()
		run := func(name, repository string, secrets ...string) {
			t.Helper()
			m.pod(name, func(p *corev1.Pod) {
				p.Spec.Containers[0].Image = host + "/" + repository + ":1"
				for _, s := range secrets {
					p.Spec.ImagePullSecrets = append(p.Spec.ImagePullSecrets, corev1.LocalObjectReference{Name: s})
				}
			})
		}
		refused := func(name string) {
			t.Helper()
			p := m.wait("told why", name, func(p *corev1.Pod) bool {
				return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil && strings.HasSuffix(p.Status.ContainerStatuses[0].State.Waiting.Reason, "ImagePullBackOff")
			})
			if why := p.Status.ContainerStatuses[0].State.Waiting.Message; !strings.Contains(why, "401") && !strings.Contains(why, "failed to resolve") { // containerd tells of the first host only

				t.Errorf("%s: %s", name, why)
			}
			m.eventually(name+" has events", func() bool {
				return m.event(name, "Failed", "Failed to pull image") && m.event(name, "BackOff", "Back-off pulling image")
			})
		}
		run("with", "private", "bad", "good")
		m.wait("ready", "with", ready)
		m.eventually("an event tells of the pull", func() bool { return m.event("with", "Pulled", "Successfully pulled image") })
		run("team", "team/app", "team")
		m.wait("ready", "team", ready)
		// On the node's disk by now, but not for everybody (KEP-2535).
		run("without", "private")
		run("other", "private", "team", "bad")
		refused("without")
		refused("other")
		// What the node itself may have all its pods may.
		auth := base64.StdEncoding.EncodeToString([]byte("bob:secret"))
		if err := os.WriteFile(m.dir+"/kubelet/config.json", []byte(fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, auth)), 0o600); err != nil {
			t.Fatal(err)
		}
		run("bynode", "private")
		m.wait("ready", "bynode", ready)

		// An image as a volume, where the runtime has them.
		m.pod("volume", func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Image: &corev1.ImageVolumeSource{Reference: host + "/team/app:1", PullPolicy: corev1.PullIfNotPresent}}}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v", ReadOnly: true}}
			p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1)
		})
		if strings.Contains(m.Name(), "containerd-1.6") {
			m.eventually("refused with the reason", func() bool {
				p := m.get("volume")
				return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil && strings.Contains(p.Status.ContainerStatuses[0].State.Waiting.Message, "image volume")
			})
			return
		}
		m.wait("ready", "volume", ready)
		if got, err := m.exec("volume", "c", "cat", "/v/etc/mark"); err != nil || got != "team/app" {
			t.Errorf("%q %v", got, err)
		}
	})
}
