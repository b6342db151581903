package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// manifests are a pod for the scheduler to place on the machine, one on the server's node, and a Service of each.
const manifests = `{"apiVersion": "v1", "kind": "List", "items": [
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "on-machine", "labels": {"on": "machine"}}, "spec": {
  "nodeSelector": {"kubernetes.io/hostname": "` + machineName + `"},
  "terminationGracePeriodSeconds": 1,
  "containers": [
    {"name": "hello", "image": "` + helloImage + `", "readinessProbe": {"httpGet": {"port": 8080, "path": "/healthz"}}},
    {"name": "shell", "image": "` + shellImage + `", "command": ["/bin/sh", "-c", "while :; do sleep 1000; done"], "resources": {"limits": {"memory": "64Mi"}}}
  ]}},
{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "on-first", "labels": {"on": "first"}}, "spec": {
  "nodeSelector": {"kubernetes.io/hostname": "` + serverName + `"},
  "terminationGracePeriodSeconds": 1,
  "containers": [{"name": "hello", "image": "` + helloImage + `"}]}},
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "machine"}, "spec": {"selector": {"on": "machine"}, "ports": [{"port": 80, "targetPort": 8080}]}},
{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "first"}, "spec": {"selector": {"on": "first"}, "ports": [{"port": 80, "targetPort": 8080}]}}
]}`

// pod waits for the machine's pod, and for systemd's unit of a container of it.
func (r *kubeadmRun) pod(ctx context.Context) error {
	file := filepath.Join(r.work, "manifests.json")
	if err := os.WriteFile(file, []byte(manifests), 0o644); err != nil {
		return err
	}
	if _, err := r.kube(ctx, "apply", "-f", file); err != nil {
		return err
	}
	if _, err := r.kube(ctx, "wait", "pod/on-machine", "pod/on-first", "--for=condition=Ready", "--timeout=240s"); err != nil {
		if more, err := r.kube(ctx, "describe", "pod", "on-machine"); err == nil {
			_ = os.WriteFile(filepath.Join(r.out, "pod.log"), []byte(more), 0o644)
		}
		return err
	}
	return r.script(`test -n "$(find /sys/fs/cgroup/kubepods.slice -name 'cri-containerd-*.scope')"`)(ctx)
}

// reach asks the pod from the server's machine, by the route that skiff's node keeps.
func (r *kubeadmRun) reach(ctx context.Context) error {
	ip, err := r.kube(ctx, "get", "pod", "on-machine", "-o", "jsonpath={.status.podIP}")
	if err != nil {
		return err
	}
	return r.answers(ctx, "http://"+ip+":8080/hostname", "on-machine")
}

// answers asks from the server's machine.
func (r *kubeadmRun) answers(ctx context.Context, url, want string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if strings.TrimSpace(string(body)) != want {
		return fmt.Errorf("%s answers %q, not %q", url, body, want)
	}
	return nil
}

// startProxy runs kube-proxy as kubeadm's DaemonSet would: by the ConfigMap and with the identity that the cluster has for
// it. Its files are written once: it ends when they change.
func (r *kubeadmRun) startProxy(ctx context.Context) error {
	const account = "/var/run/secrets/kubernetes.io/serviceaccount"
	script := "set -e; mkdir -p /var/lib/kube-proxy " + account + "; cp /etc/kubernetes/pki/ca.crt " + account + "\n"
	for file, args := range map[string][]string{
		"/var/lib/kube-proxy/config.conf":     {"get", "configmap", "kube-proxy", "-n", "kube-system", "-o", `jsonpath={.data.config\.conf}`},
		"/var/lib/kube-proxy/kubeconfig.conf": {"get", "configmap", "kube-proxy", "-n", "kube-system", "-o", `jsonpath={.data.kubeconfig\.conf}`},
		account + "/token":                    {"create", "token", "kube-proxy", "-n", "kube-system"},
	} {
		text, err := r.kube(ctx, args...)
		if err != nil {
			return err
		}
		if strings.TrimSpace(text) == "" {
			return fmt.Errorf("kubectl %s: nothing", strings.Join(args, " "))
		}
		script += "cat > " + file + " <<'END'\n" + strings.TrimSpace(text) + "\nEND\n"
	}
	return r.script(script + "systemctl start kube-proxy")(ctx)
}

// serviceThere asks from a pod of the machine: cluster DNS and a pod of another node, both through kube-proxy's rules.
// Debian's static busybox crashes when its wget looks up a name; its nc does not.
func (r *kubeadmRun) serviceThere(ctx context.Context) error {
	return r.expect("\r\n\r\non-first\n", "exec", "on-machine", "-c", "shell", "--", "/bin/sh", "-c",
		`printf 'GET /hostname HTTP/1.0\r\n\r\n' | nc -w 5 first.default.svc.cluster.local 80`)(ctx)
}

// serviceHere asks from the server's machine: a pod of the machine, through the rules of skiff's proxy.
func (r *kubeadmRun) serviceHere(ctx context.Context) error {
	ip, err := r.kube(ctx, "get", "service", "machine", "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return err
	}
	return r.answers(ctx, "http://"+ip+"/hostname", "on-machine")
}
