package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// TestMainJob is the job that skiff exists for, by an unmodified kubectl on real containers.
func TestMainJob(t *testing.T) {
	c := up(t)
	c.loadShell(t)
	c.k(t, "apply", "-f", "testdata/deployment.yaml")
	c.k(t, "apply", "-f", "testdata/shell.yaml")
	c.k(t, "rollout", "status", "deployment/web", "--timeout=180s")
	c.k(t, "wait", "pod/shell", "--for=condition=Ready", "--timeout=180s")

	t.Run("pods have addresses", func(t *testing.T) {
		out := c.k(t, "get", "pods", "-l", "app=web", "-o", "jsonpath={range .items[*]}{.status.phase} {.status.podIP}{\"\\n\"}{end}")
		lines := strings.Split(strings.TrimSpace(out), "\n")
		seen := map[string]bool{}
		for _, l := range lines {
			phase, ip, _ := strings.Cut(l, " ")
			if phase != "Running" || ip == "" || seen[ip] {
				t.Errorf("pod: %q", l)
			}
			seen[ip] = true
		}
		if len(lines) != 3 {
			t.Errorf("%d pods, want 3", len(lines))
		}
		wide := c.k(t, "get", "pods", "-l", "app=web", "-o", "wide")
		if !strings.Contains(wide, "NOMINATED NODE") || strings.Count(wide, "Running") != 3 {
			t.Errorf("get pods -o wide:\n%s", wide)
		}
	})

	pod := strings.Fields(c.k(t, "get", "pods", "-l", "app=web", "-o", "name"))[0]
	ip := c.k(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")

	t.Run("the service answers on the node", func(t *testing.T) {
		body := get(t, "http://"+ip+"/")
		if !strings.Contains(body, "web-") {
			t.Errorf("got %q, want the pod's name", body)
		}
	})
	t.Run("the service answers in pods by name", func(t *testing.T) {
		for _, name := range []string{ip, "web", "web.default", "web.default.svc.cluster.local"} {
			out := c.k(t, "exec", "shell", "--", "/bin/sh", "-c", "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc "+name+" 80")
			if !strings.Contains(out, "web-") {
				t.Errorf("%s answers %q", name, out)
			}
		}
	})
	t.Run("exec with standard input", func(t *testing.T) {
		cmd := exec.Command(c.kubectl, "--kubeconfig", c.dir+"/kubeconfig", "exec", "-i", "shell", "--", "cat")
		cmd.Stdin = strings.NewReader("to and fro\n")
		out, err := cmd.CombinedOutput()
		if err != nil || string(out) != "to and fro\n" {
			t.Errorf("%q, %v", out, err)
		}
		out2 := c.k(t, "exec", "shell", "--", "cat", "/etc/greeting/greeting.txt")
		if out2 != "hello from a ConfigMap\n" {
			t.Errorf("the ConfigMap reads %q", out2)
		}
		if _, err := c.try("exec", "shell", "--", "sh", "-c", "exit 7"); err == nil || !strings.Contains(err.Error(), "7") {
			t.Errorf("exit code 7 came out as %v", err)
		}
	})
	t.Run("exec with a terminal", func(t *testing.T) {
		// script(1) gives kubectl a terminal of its own.
		out, err := run("script", "-qec", c.kubectl+" --kubeconfig "+c.dir+"/kubeconfig exec -it shell -- tty", "/dev/null")
		if err != nil || !strings.Contains(out, "/dev/pts/") {
			t.Errorf("%q, %v", out, err)
		}
	})
	t.Run("logs", func(t *testing.T) {
		if out := c.k(t, "logs", pod); !strings.Contains(out, "serves port") {
			t.Errorf("logs: %q", out)
		}
		follow := exec.Command(c.kubectl, "--kubeconfig", c.dir+"/kubeconfig", "logs", "-f", "--tail=0", pod)
		pipe, err := follow.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := follow.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = follow.Process.Kill(); _ = follow.Wait() }()
		podIP := c.k(t, "get", pod, "-o", "jsonpath={.status.podIP}")
		seen := make(chan struct{})
		go func() {
			sc := bufio.NewScanner(pipe)
			for sc.Scan() {
				if strings.Contains(sc.Text(), "/followed") { // probes are logged too
					close(seen)
					return
				}
			}
		}()
		eventually(t, 60*time.Second, "a request shows in logs -f", func() error {
			get(t, "http://"+podIP+":8080/followed")
			select {
			case <-seen:
				return nil
			default:
				return errors.New("no line yet")
			}
		})
	})
	t.Run("port-forward", func(t *testing.T) {
		forward := exec.Command(c.kubectl, "--kubeconfig", c.dir+"/kubeconfig", "port-forward", pod, ":8080")
		pipe, err := forward.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := forward.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = forward.Process.Kill(); _ = forward.Wait() }()
		line, err := bufio.NewReader(pipe).ReadString('\n')
		addr, to, ok := strings.Cut(strings.TrimPrefix(line, "Forwarding from "), " -> ")
		if err != nil || !ok || strings.TrimSpace(to) != "8080" {
			t.Fatalf("port-forward says %q, %v", line, err)
		}
		if body := get(t, "http://"+addr+"/"); !strings.Contains(body, "web-") {
			t.Errorf("the forwarded port answers %q", body)
		}
	})
	t.Run("describe", func(t *testing.T) {
		out := c.k(t, "describe", pod)
		for _, want := range []string{"Successfully assigned", "Started", "skiff.local/hello:v1", "Readiness"} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q in:\n%s", want, out)
			}
		}
		c.k(t, "describe", "node")
		c.k(t, "describe", "deployment", "web")
		c.k(t, "explain", "deployment.spec.strategy")
	})
	t.Run("scale", func(t *testing.T) {
		c.k(t, "scale", "deployment/web", "--replicas=5")
		c.k(t, "rollout", "status", "deployment/web", "--timeout=180s")
		c.k(t, "scale", "deployment/web", "--replicas=2")
		eventually(t, 60*time.Second, "two pods are left", func() error {
			if n := len(strings.Fields(c.k(t, "get", "pods", "-l", "app=web", "-o", "name"))); n != 2 {
				return fmt.Errorf("%d pods", n)
			}
			return nil
		})
	})
	t.Run("set image and undo", func(t *testing.T) {
		c.k(t, "set", "image", "deployment/web", "hello=skiff.local/hello:v2")
		c.k(t, "rollout", "status", "deployment/web", "--timeout=180s")
		if body := get(t, "http://"+ip+"/"); !strings.Contains(body, "v2") {
			t.Errorf("after set image: %q", body)
		}
		c.k(t, "rollout", "undo", "deployment/web")
		c.k(t, "rollout", "status", "deployment/web", "--timeout=180s")
		if body := get(t, "http://"+ip+"/"); !strings.Contains(body, "v1") {
			t.Errorf("after undo: %q", body)
		}
	})
	t.Run("job", func(t *testing.T) {
		c.k(t, "apply", "-f", "testdata/job.yaml")
		c.k(t, "wait", "--for=condition=complete", "job/once", "--timeout=180s")
		c.k(t, "delete", "job", "once")
	})
	t.Run("custom resources", func(t *testing.T) { customResources(t, c) })
	t.Run("delete leaves nothing", func(t *testing.T) {
		c.k(t, "delete", "-f", "testdata/deployment.yaml", "-f", "testdata/shell.yaml", "--timeout=180s")
		eventually(t, 60*time.Second, "nothing of it is left", func() error {
			out := c.k(t, "get", "pods,replicasets,deployments,endpointslices", "-l", "app=web", "-o", "name")
			if out = strings.TrimSpace(out); out != "" {
				return fmt.Errorf("left: %s", out)
			}
			return nil
		})
	})
}

func customResources(t *testing.T, c *cluster) {
	c.k(t, "apply", "-f", "testdata/crd.yaml")
	c.k(t, "wait", "--for=condition=Established", "crd/boats.skiff.test", "--timeout=180s")
	watch := exec.Command(c.kubectl, "--kubeconfig", c.dir+"/kubeconfig", "get", "boats", "--watch", "-o", "name")
	pipe, err := watch.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = watch.Process.Kill(); _ = watch.Wait() }()
	c.k(t, "apply", "-f", "testdata/boat.yaml")
	buf := make([]byte, 64)
	n, err := io.ReadAtLeast(pipe, buf, len("boat.skiff.test/one\n"))
	if err != nil || string(buf[:n]) != "boat.skiff.test/one\n" {
		t.Errorf("watched %q, %v", buf[:n], err)
	}
	if out := c.k(t, "get", "bt", "one", "-o", "jsonpath={.spec.name} {.spec.oars}"); out != "Nutshell 2" {
		t.Errorf("stored %q, want the default name and two oars", out)
	}
	if out := c.k(t, "get", "boats"); !strings.Contains(out, "OARS") {
		t.Errorf("columns: %s", out)
	}
	if _, err := c.try("patch", "boat", "one", "--type=merge", "-p", `{"spec":{"oars":99}}`); err == nil || !strings.Contains(err.Error(), "spec.oars") {
		t.Errorf("ninety-nine oars: %v", err)
	}
	c.k(t, "delete", "-f", "testdata/crd.yaml", "--timeout=180s")
	if _, err := c.try("get", "boats"); err == nil {
		t.Error("boats are still served")
	}
}

func get(t testing.TB, url string) string {
	t.Helper()
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(url)
	if err != nil {
		t.Fatalf("get %s: %v", url, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusNotFound {
		t.Fatalf("get %s: %s, %v", url, resp.Status, err)
	}
	return string(body)
}
