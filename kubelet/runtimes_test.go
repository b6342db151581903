package kubelet

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/ptr"
)

// What pods are made of works on each runtime: volumes, init containers and sidecars,
// probes of all kinds, exec, logs, restarts, last words.
func TestPodsOnEachRuntime(t *testing.T) {
	eachRuntime(t, func(m *machine) {
		t := m.T
		ctx := context.Background()
		if _, err := m.api.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm", Namespace: "default"}, Data: map[string]string{"a": "from the map"}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := m.api.CoreV1().Secrets("default").Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default"}, Data: map[string][]byte{"k": []byte("hidden")}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		m.startKubelet()
		m.pod("all", func(p *corev1.Pod) {
			sidecar := m.container("side", "sleep 100000")
			sidecar.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			one, two := m.container("one", "echo one >> /data/order"), m.container("two", "echo two >> /data/order")
			web := m.container("web", "echo hello from $NAME >&2; echo out; echo index > /tmp/index.html; httpd -f -p 8080 -h /tmp & echo $! > /tmp/pid; sleep 100000")
			web.Env = []corev1.EnvVar{{Name: "NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.name"}}}}
			web.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}}
			web.ReadinessProbe = probe(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/index.html", Port: intstr.FromString("http"), Scheme: corev1.URISchemeHTTP}})
			web.LivenessProbe = probe(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}})
			web.StartupProbe = probe(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"cat", "/tmp/index.html"}}})
			web.Resources = corev1.ResourceRequirements{Limits: corev1.ResourceList{"memory": resource.MustParse("64Mi"), "cpu": resource.MustParse("500m")}, Requests: corev1.ResourceList{"memory": resource.MustParse("64Mi"), "cpu": resource.MustParse("100m")}}
			p.Spec.InitContainers, p.Spec.Containers = []corev1.Container{one, sidecar, two}, []corev1.Container{web}
			p.Spec.Volumes = []corev1.Volume{
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "mem", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
				{Name: "cm", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, DefaultMode: ptr.To[int32](0o644)}}},
				{Name: "s", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s", DefaultMode: ptr.To[int32](0o400)}}},
				{Name: "host", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: m.dir + "/hostpath", Type: ptr.To(corev1.HostPathDirectoryOrCreate)}}},
			}
			mounts := []corev1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "mem", MountPath: "/mem"}, {Name: "cm", MountPath: "/cm", ReadOnly: true}, {Name: "s", MountPath: "/secret", ReadOnly: true}, {Name: "host", MountPath: "/host"}}
			for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
				for i := range list {
					list[i].VolumeMounts = mounts
				}
			}
		})
		p := m.wait("ready", "all", ready)
		if s := p.Status.InitContainerStatuses; len(s) != 3 || s[0].State.Terminated == nil || s[2].State.Terminated == nil || s[1].State.Running == nil {
			t.Errorf("init containers: %+v", s)
		}
		for command, want := range map[string]string{
			"cat /data/order":                       "one\ntwo\n",
			"cat /cm/a":                             "from the map",
			"cat /secret/k":                         "hidden",
			"mount | grep ' /mem ' | grep -c tmpfs": "1\n",
			"echo x > /host/x; cat /host/x":         "x\n",
			"hostname":                              "all\n",
			"grep -c 'all$' /etc/hosts":             "1\n",
		} {
			if got, err := m.exec("all", "web", "/bin/sh", "-c", command); got != want || err != nil {
				t.Errorf("exec %s: %q %v", command, got, err)
			}
		}
		if _, err := os.Stat(m.dir + "/hostpath/x"); err != nil {
			t.Error(err)
		}
		if _, err := m.exec("all", "web", "/bin/sh", "-c", "exit 7"); err == nil || !strings.Contains(err.Error(), "exit code 7") {
			t.Errorf("exec tells the exit code wrongly: %v", err)
		}
		if out := m.fetch("/containerLogs/default/all/web"); !strings.Contains(out, "hello from all\n") || !strings.Contains(out, "out\n") {
			t.Errorf("logs: %q", out)
		}
		if out := m.fetch("/stats/summary"); !strings.Contains(out, `"name":"all"`) && !strings.Contains(out, `"name": "all"`) {
			t.Errorf("stats without the pod: %.2000s", out)
		}

		// A failing liveness probe restarts the container, its sidecar and pod stay.
		if _, err := m.exec("all", "web", "/bin/sh", "-c", "kill -9 $(cat /tmp/pid)"); err != nil {
			t.Error(err)
		}
		p = m.wait("restarted by its probe and ready again", "all", func(p *corev1.Pod) bool { return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
		if n := p.Status.InitContainerStatuses[1].RestartCount; n != 0 {
			t.Errorf("the sidecar was restarted %d times", n)
		}
		m.delete("all")
		m.eventually("nothing is left of the pod", func() bool {
			rt, err := m.cri.Pods(ctx)
			return err == nil && rt[p.UID] == nil
		})

		// Exit codes, last words and policies.
		for name, want := range map[string]struct {
			policy  corev1.RestartPolicy
			command string
			phase   corev1.PodPhase
			code    int32
		}{
			"done":   {corev1.RestartPolicyNever, "echo bye > /dev/termination-log", corev1.PodSucceeded, 0},
			"failed": {corev1.RestartPolicyNever, "echo bye > /dev/termination-log; exit 3", corev1.PodFailed, 3},
			"once":   {corev1.RestartPolicyOnFailure, "echo bye > /dev/termination-log", corev1.PodSucceeded, 0},
		} {
			m.pod(name, func(p *corev1.Pod) {
				p.Spec.RestartPolicy, p.Spec.Containers = want.policy, []corev1.Container{m.container("c", want.command)}
			})
			p := m.wait("over", name, func(p *corev1.Pod) bool { return p.Status.Phase == want.phase })
			if term := p.Status.ContainerStatuses[0].State.Terminated; term == nil || term.ExitCode != want.code || term.Message != "bye\n" || term.StartedAt.IsZero() || term.FinishedAt.IsZero() {
				t.Errorf("%s: %+v", name, term)
			}
		}
		m.pod("crash", func(p *corev1.Pod) { p.Spec.Containers = []corev1.Container{m.container("c", "exit 1")} })
		p = m.wait("restarted", "crash", func(p *corev1.Pod) bool {
			return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].RestartCount >= 1
		})
		if last := p.Status.ContainerStatuses[0].LastTerminationState.Terminated; last == nil || last.ExitCode != 1 {
			t.Errorf("last state %+v", last)
		}
		m.pod("cannot", func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"/no/such/file"} })
		m.wait("waits with the reason", "cannot", func(p *corev1.Pod) bool {
			if len(p.Status.ContainerStatuses) == 0 {
				return false
			}
			s := p.Status.ContainerStatuses[0]
			why := ""
			if s.State.Waiting != nil {
				why += s.State.Waiting.Message
			}
			if x := s.LastTerminationState.Terminated; x != nil {
				why += x.Message
			}
			return strings.Contains(why, "/no/such/file")
		})
	})
}

// Restarts of the kubelet and of the runtime change nothing for pods; meanwhile the node
// says why it is not ready.
func TestRestartsOnEachRuntime(t *testing.T) {
	eachRuntime(t, func(m *machine) {
		t := m.T
		m.startKubelet()
		m.pod("web", func(p *corev1.Pod) {
			p.Spec.Containers[0].ReadinessProbe = probe(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}})
			p.Spec.Containers[0].LivenessProbe = p.Spec.Containers[0].ReadinessProbe
		})
		m.pod("job", func(p *corev1.Pod) {
			p.Spec.RestartPolicy, p.Spec.Containers = corev1.RestartPolicyNever, []corev1.Container{m.container("c", "exit 0")}
		})
		before := m.wait("ready", "web", ready)
		m.wait("over", "job", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
		same := func(what string) {
			t.Helper()
			after := m.get("web")
			if a, b := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]; !ready(after) || a.ContainerID != b.ContainerID || b.RestartCount != 0 || after.Status.PodIP != before.Status.PodIP {
				t.Errorf("%s: before\n%+v\nafter\n%+v", what, before.Status, after.Status)
			}
			if p := m.get("job"); p.Status.Phase != corev1.PodSucceeded || p.Status.ContainerStatuses[0].RestartCount != 0 {
				t.Errorf("%s: job %+v", what, p.Status)
			}
		}
		m.stopKubelet()
		m.startKubelet()
		m.proven("after a restart of the kubelet")
		same("restart of the kubelet")

		m.runtime.kill()
		m.eventually("the node says why it is not ready", func() bool {
			ok, why := m.nodeReady()
			return !ok && strings.Contains(why, "container runtime is down")
		})
		m.pod("later", func(p *corev1.Pod) {
			p.Spec.Containers = []corev1.Container{m.container("c", "sleep 100001 & echo $! > /tmp/pid; wait")}
		})
		if p := m.get("web"); p.Status.Phase != corev1.PodRunning || p.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("without the runtime: %+v", p.Status)
		}
		m.runtime.start()
		m.eventually("the node is ready again", func() bool { ok, _ := m.nodeReady(); return ok })
		m.wait("starts once the runtime is back", "later", ready)
		m.wait("is ready still", "web", ready)
		same("restart of the runtime")

		// Both at once, and what ended meanwhile is seen.
		m.stopKubelet()
		m.runtime.kill()
		m.runtime.start()
		m.startKubelet()
		m.proven("after a restart of both")
		same("restart of both")
		_, _ = m.exec("later", "c", "/bin/sh", "-c", "kill -9 $(cat /tmp/pid)") // ends with the container
		m.wait("is restarted", "later", func(p *corev1.Pod) bool { return ready(p) && p.Status.ContainerStatuses[0].RestartCount == 1 })
	})
}

// proven waits until a pod that is made now is ready: the kubelet is at work.
func (m *machine) proven(why string) {
	m.Helper()
	name := "proof-" + fmt.Sprint(time.Now().UnixNano())
	m.pod(name, nil)
	m.wait("ready "+why, name, ready)
	m.delete(name)
}

func (m *machine) delete(name string) {
	m.Helper()
	if err := m.api.CoreV1().Pods("default").Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
		m.Fatal(err)
	}
}

func probe(h corev1.ProbeHandler) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, TimeoutSeconds: 5, SuccessThreshold: 1, FailureThreshold: 3}
}

func (m *machine) tls() *tls.Config {
	pool := x509.NewCertPool()
	pool.AddCert(m.ca)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{m.certificate("admin", []string{"system:masters"})}}
}

// fetch reads from the kubelet's API.
func (m *machine) fetch(path string) string {
	m.Helper()
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: m.tls()}}).Get(fmt.Sprintf("https://%s:%d%s", machineIP, m.port, path))
	if err != nil {
		m.Fatal(err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		m.Fatalf("GET %s: %s %s %v", path, resp.Status, raw, err)
	}
	return string(raw)
}

// exec runs a command by way of the kubelet's API and returns its output.
func (m *machine) exec(pod, container string, command ...string) (string, error) {
	m.Helper()
	cert := m.certificate("admin", []string{"system:masters"})
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		m.Fatal(err)
	}
	encode := func(kind string, raw []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: raw}) }
	caPEM, certPEM, keyPEM := encode("CERTIFICATE", m.ca.Raw), encode("CERTIFICATE", cert.Certificate[0]), encode("PRIVATE KEY", der)
	cfg := &rest.Config{Host: fmt.Sprintf("https://%s:%d", machineIP, m.port), TLSClientConfig: rest.TLSClientConfig{CAData: caPEM, CertData: certPEM, KeyData: keyPEM}}
	client, err := rest.UnversionedRESTClientFor(&rest.Config{Host: cfg.Host, TLSClientConfig: cfg.TLSClientConfig, ContentConfig: rest.ContentConfig{NegotiatedSerializer: scheme.Codecs.WithoutConversion()}})
	if err != nil {
		m.Fatal(err)
	}
	req := client.Post().AbsPath("/exec/default/"+pod+"/"+container).Param("output", "1").Param("error", "1")
	for _, c := range command {
		req = req.Param("command", c)
	}
	e, err := remotecommand.NewSPDYExecutor(cfg, http.MethodPost, req.URL())
	if err != nil {
		m.Fatal(err)
	}
	var out, errOut bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = e.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut})
	if err != nil {
		err = fmt.Errorf("%w: %s", err, errOut.String())
	}
	return out.String(), err
}
