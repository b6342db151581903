package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// machine is another machine: a network namespace with an address of its own.
type machine struct {
	netns string // name of the namespace
	link  string // to it, on this side
	dir   string // data directory of its agent
}

// remove takes it away, what is left of it too.
func (m *machine) remove() {
	_ = exec.Command("ip", "link", "del", m.link).Run() // the namespace alone would take it a moment later
	_ = exec.Command("ip", "netns", "del", m.netns).Run()
}

// newMachine joins a machine to this one by a link.
func newMachine(t *testing.T, name, here, there string) *machine {
	t.Helper()
	m := &machine{netns: "skiff-e2e-" + name, link: "sk-e2e-" + name}
	dir, err := os.MkdirTemp("/tmp", "skiff-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	m.dir = filepath.Join(dir, "a")
	t.Cleanup(func() {
		m.remove()
		_ = os.RemoveAll(dir)
	})
	for _, args := range []string{
		"netns add " + m.netns,
		"link add " + m.link + " type veth peer name eth0 netns " + m.netns,
		"addr add " + here + "/24 dev " + m.link,
		"link set " + m.link + " up",
		"-n " + m.netns + " link set lo up",
		"-n " + m.netns + " addr add " + there + "/24 dev eth0",
		"-n " + m.netns + " link set eth0 up",
		"-n " + m.netns + " route add default via " + here,
	} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", args, err, out)
		}
	}
	return m
}

// on is a command on the machine. nsenter becomes it, and leaves /sys with its control groups as it is.
func (m *machine) on(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--net=/run/netns/" + m.netns}, args...)...)
}

// background runs a program whose output the test reads; it ends with the test.
type background struct {
	*exec.Cmd
	out  *bytes.Buffer
	line chan string
	done chan error
}

func start(t *testing.T, cmd *exec.Cmd) *background {
	t.Helper()
	b := &background{Cmd: cmd, out: &bytes.Buffer{}, line: make(chan string, 1000), done: make(chan error, 1)}
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = b.out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for s := bufio.NewScanner(pipe); s.Scan(); {
			b.line <- s.Text()
		}
		b.done <- cmd.Wait()
	}()
	t.Cleanup(func() { b.end(t, syscall.SIGTERM) })
	return b
}

// await returns the first line that matches.
func (b *background) await(t *testing.T, pattern string) string {
	t.Helper()
	re, limit := regexp.MustCompile(pattern), time.After(2*time.Minute)
	var said []string
	for {
		select {
		case line := <-b.line:
			said = append(said, line)
			if re.MatchString(line) {
				return line
			}
		case err := <-b.done:
			b.done <- err
			t.Fatalf("%s ended with %v before it said %q:\n%s\n%s", b.Args, err, pattern, strings.Join(said, "\n"), b.out)
		case <-limit:
			t.Fatalf("%s did not say %q but\n%s", b.Args, pattern, strings.Join(said, "\n"))
		}
	}
}

func (b *background) end(t *testing.T, s syscall.Signal) error {
	t.Helper()
	_ = b.Process.Signal(s) // it may have ended
	select {
	case err := <-b.done:
		b.done <- err
		return err
	case <-time.After(time.Minute):
		_ = b.Process.Kill()
		t.Errorf("%s did not end on %s", b.Args, s)
		return nil
	}
}

// Two machines: a server here, an agent behind a link. The agent joins by the command that the
// server prints, runs pods, survives being killed, starts again without a token, and what
// cannot work says why.
func TestAgentJoinsServer(t *testing.T) {
	skiff, kubectl := binaries(t)
	dir, err := os.MkdirTemp("/tmp", "skiff-e2e-")
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{skiff: skiff, kubectl: kubectl, name: "default", dir: filepath.Join(dir, "d")}
	before := namespaceTraces(t)
	m := newMachine(t, "m1", "192.168.231.1", "192.168.231.2")
	t.Cleanup(func() {
		if t.Failed() {
			c.report(t)
		}
		if out, err := m.on(skiff, "down", "--purge", "--data-dir", m.dir).CombinedOutput(); err != nil {
			t.Errorf("down --purge of the agent: %v\n%s", err, out)
		}
		if out, err := run(skiff, "down", "--purge", "--data-dir", c.dir); err != nil {
			t.Errorf("down --purge: %v\n%s", err, out)
		}
		if out, err := m.on("ip", "-br", "link").CombinedOutput(); err != nil || strings.Count(string(out), "\n") != 2 {
			t.Errorf("on the machine is left:\n%s(%v)", out, err)
		}
		m.remove()
		for _, left := range difference(namespaceTraces(t), before) {
			t.Errorf("left behind: %s", left)
		}
		_ = os.RemoveAll(dir)
	})

	// The agent may be there first.
	early := start(t, m.on(skiff, "agent", "--server", "192.168.231.1", "--token", "abcdef.0123456789abcdef@sha256:"+strings.Repeat("0a", 32), "--data-dir", m.dir))
	early.await(t, "192.168.231.1:6443 cannot be reached.*trying again")
	asked := time.Now()
	if err := early.end(t, syscall.SIGINT); err == nil || !strings.Contains(early.out.String(), "interrupted") || time.Since(asked) > 30*time.Second {
		t.Errorf("an agent that waits and is interrupted ends with %v: %s", err, early.out)
	}

	server := start(t, exec.Command(skiff, "server", "--data-dir", c.dir, "--node-ip", "192.168.231.1", "--node-name", "first", "--tls-san", "skiff.example"))
	join := strings.Fields(server.await(t, "^ *skiff agent --server https://192.168.231.1:[0-9]+ --token "))
	agent := func(args ...string) *exec.Cmd {
		return m.on(append([]string{skiff, "agent", "--data-dir", m.dir, "--node-name", "second"}, args...)...)
	}
	url, token := join[3], join[len(join)-1]
	for _, bad := range []struct{ args, want string }{
		{"--server " + url + " --token " + strings.Split(token, "@")[0], "no hash of the cluster's CA"},
		{"--server 192.168.231.1 --token zzzzzz.zzzzzzzzzzzzzzzz@" + strings.Split(token, "@")[1], "does not know the token"},
		{"--server " + url + " --token " + strings.Split(token, "@")[0] + "@sha256:" + strings.Repeat("0a", 32), "another CA than the token says"},
		{"--server " + url + " --node-name first --token " + token, `node name "first" is taken`},
		{"", "--server is required"},
	} {
		out, err := agent(strings.Fields(bad.args)...).CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || !strings.Contains(string(out), bad.want) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("skiff agent %s: %v, want one line with %q:\n%s", bad.args, err, bad.want, out)
		}
	}

	first := start(t, agent(join[2:]...))
	first.await(t, "^node second of the cluster .* runs")
	eventually(t, time.Minute, "the node registers", func() error {
		_, err := c.try("wait", "node/second", "--for=condition=Ready", "--timeout=60s")
		return err
	})
	c.k(t, "run", "far", "--image=skiff.local/hello:v1", `--overrides={"spec":{"nodeName":"second"}}`)
	c.k(t, "wait", "pod/far", "--for=condition=Ready", "--timeout=60s")
	// The API server verifies the kubelet's certificate.
	if out := c.k(t, "logs", "far"); !strings.Contains(out, "serves port") {
		t.Errorf("logs: %q", out)
	}
	if out := c.k(t, "get", "csr", "-o", "jsonpath={.items[*].spec.signerName}"); !strings.Contains(out, "kubelet-serving") || !strings.Contains(out, "client-kubelet") {
		t.Errorf("requests for %s", out)
	}
	id := c.k(t, "get", "pod", "far", "-o", "jsonpath={.status.containerStatuses[0].containerID}")

	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := first.end(t, syscall.SIGKILL); err == nil {
		t.Error("an agent that was killed ended well")
	}
	again := start(t, m.on(skiff, "agent", "--data-dir", m.dir))
	again.await(t, "^node second of the cluster .* runs")
	eventually(t, time.Minute, "the kubelet answers again", func() error {
		_, err := c.try("exec", "far", "--", "/hello", "-h")
		if err != nil && strings.Contains(err.Error(), "dial") {
			return err
		}
		return nil
	})
	if now := c.k(t, "get", "pod", "far", "-o", "jsonpath={.status.containerStatuses[0].containerID} {.status.containerStatuses[0].restartCount}"); now != id+" 0" {
		t.Errorf("container %s became %s", id, now)
	}
	if err := again.end(t, syscall.SIGTERM); err != nil {
		t.Errorf("an agent that is told to end: %v\n%s", err, again.out)
	}

	if out, err := run(skiff, "token", "ls", "--data-dir", c.dir); err != nil || !strings.Contains(out, strings.Split(token, ".")[0]) || strings.Contains(out, strings.Split(token, ".")[1][:16]) {
		t.Errorf("token ls: %v\n%s", err, out)
	}
	if out, err := run(skiff, "token", "rm", "--data-dir", c.dir, token); err != nil {
		t.Errorf("token rm: %v\n%s", err, out)
	}
	if _, err := run(skiff, "token", "rm", "--data-dir", c.dir, token); err == nil || !strings.Contains(err.Error(), "there is no token") {
		t.Errorf("token rm again: %v", err)
	}
	if err := server.end(t, syscall.SIGTERM); err != nil {
		t.Errorf("a server that is told to end: %v\n%s", err, server.out)
	}
	if out, err := c.try("get", "--raw", "/readyz"); err == nil {
		t.Errorf("the server is told to end, and serves: %s", out)
	}
}
