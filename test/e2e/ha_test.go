package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// balancer passes connections to whichever of the servers takes one, as a stupid one would.
func balancer(t *testing.T, address string, servers ...string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for next := 0; ; next++ {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				for i := range servers {
					out, err := net.DialTimeout("tcp", servers[(next+i)%len(servers)], time.Second)
					if err != nil {
						continue
					}
					defer out.Close()
					go func() { _, _ = io.Copy(out, in); out.Close() }()
					_, _ = io.Copy(in, out)
					return
				}
			}()
		}
	}()
}

// controlPlanes are three machines behind a balancer.
type controlPlanes struct {
	*cluster
	machines []*machine
	servers  []*background
}

func newControlPlanes(t *testing.T) *controlPlanes {
	t.Helper()
	skiff, kubectl := binaries(t)
	c := &controlPlanes{cluster: &cluster{skiff: skiff, kubectl: kubectl, name: "default"}}
	before := namespaceTraces(t)
	var addresses []string
	for i := range 3 {
		net := fmt.Sprintf("192.168.%d.", 232+i)
		c.machines = append(c.machines, newMachine(t, fmt.Sprintf("ha%d", i+1), net+"1", net+"2"))
		addresses = append(addresses, net+"2:6443")
	}
	c.dir = c.machines[1].dir // whose control plane is there when the first is killed
	t.Cleanup(func() {
		if t.Failed() {
			c.report(t)
		}
		for _, m := range c.machines {
			if _, err := os.Stat(m.dir); err == nil {
				if out, err := m.on(skiff, "down", "--purge", "--data-dir", m.dir).CombinedOutput(); err != nil {
					t.Errorf("down --purge: %v\n%s", err, out)
				}
			}
			m.remove()
		}
		for _, left := range difference(namespaceTraces(t), before) {
			t.Errorf("left behind: %s", left)
		}
	})
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	balancer(t, "192.168.232.1:16443", addresses...)
	return c
}

// server starts that of a machine and waits until it is up.
func (c *controlPlanes) server(t *testing.T, i int, args ...string) *background {
	t.Helper()
	m := c.machines[i]
	b := start(t, m.on(append([]string{c.skiff, "server", "--data-dir", m.dir}, args...)...))
	b.await(t, "^other machines join")
	return b
}

// kill ends all that runs on a machine's control plane but its containers, as the loss of power would.
func (c *controlPlanes) kill(t *testing.T, i int) {
	t.Helper()
	at := &cluster{dir: c.machines[i].dir}
	_ = c.servers[i].Process.Kill()
	for _, role := range []string{"control-plane", "node"} {
		at.kill(t, role)
	}
	_ = c.servers[i].end(t, syscall.SIGKILL)
}

// token is the command by which a machine becomes a control plane, without the program's name.
func (c *controlPlanes) token(t *testing.T, i int) []string {
	t.Helper()
	out, err := c.machines[i].on(c.skiff, "token", "create", "--control-plane", "--data-dir", c.machines[i].dir).Output()
	if err != nil {
		t.Fatalf("token create --control-plane: %v", err)
	}
	return strings.Fields(string(out))[2:]
}

func (c *controlPlanes) bring(t *testing.T) {
	t.Helper()
	c.servers = []*background{c.server(t, 0, "--node-name", "ha1", "--node-ip", "192.168.232.2", "--control-plane-endpoint", "192.168.232.1:16443")}
	join := c.token(t, 0)
	if !strings.HasPrefix(strings.Join(join, " "), "--server https://192.168.232.1:16443 --token ") {
		t.Errorf("others are to join with %q", join)
	}
	for i := 1; i < 3; i++ {
		c.servers = append(c.servers, c.server(t, i, append(join, "--node-name", fmt.Sprintf("ha%d", i+1), "--node-ip", fmt.Sprintf("192.168.%d.2", 232+i))...))
	}
}

// Three control planes behind a balancer: one is killed while things are written; writes and
// leaders go on elsewhere, and when it is back all has what was acknowledged.
func TestControlPlaneLost(t *testing.T) {
	c := newControlPlanes(t)
	c.bring(t)
	c.k(t, "create", "deployment", "hello", "--image=skiff.local/hello:v1", "--replicas=2")
	c.k(t, "rollout", "status", "deployment/hello", "--timeout=90s")

	var mu sync.Mutex
	var acknowledged []string
	count := func() int { mu.Lock(); defer mu.Unlock(); return len(acknowledged) }
	stop := make(chan struct{})
	var writing sync.WaitGroup
	writing.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			name := fmt.Sprintf("written-%d", n)
			if _, err := c.try("create", "configmap", name); err == nil {
				mu.Lock()
				acknowledged = append(acknowledged, name)
				mu.Unlock()
			}
		}
	})
	more := func(what string) {
		t.Helper()
		was := count()
		eventually(t, 2*time.Minute, what, func() error {
			if n := count(); n < was+5 {
				return fmt.Errorf("%d writes, there were %d", n, was)
			}
			return nil
		})
	}
	more("writes before")
	c.kill(t, 0)
	more("writes go on without the first control plane")
	eventually(t, 2*time.Minute, "controllers run on another one", func() error {
		holder, err := c.try("get", "lease", "-n", "kube-system", "kube-controller-manager", "-o", "jsonpath={.spec.holderIdentity}")
		if err == nil && (holder == "" || strings.HasPrefix(holder, "ha1_")) {
			err = fmt.Errorf("%q has the Lease", holder)
		}
		return err
	})
	c.k(t, "scale", "deployment/hello", "--replicas=4")
	c.k(t, "wait", "deployment/hello", "--for=jsonpath={.status.replicas}=4", "--timeout=60s")
	// No flags: it knows where it belongs.
	c.servers[0] = c.server(t, 0)
	more("writes with the first control plane")
	close(stop)
	writing.Wait()

	first := &cluster{kubectl: c.kubectl, dir: c.machines[0].dir}
	have, err := run("nsenter", "--net=/run/netns/"+c.machines[0].netns, c.kubectl, "--kubeconfig", filepath.Join(first.dir, "kubeconfig"),
		"--server", "https://127.0.0.1:6443", "get", "configmaps", "-o", "name")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range acknowledged {
		if !strings.Contains(have, "configmap/"+name+"\n") {
			t.Errorf("the control plane that was killed lacks %s, which was acknowledged", name)
		}
	}
	out, err := c.machines[0].on(c.skiff, "etcd", "member", "ls", "--data-dir", first.dir).CombinedOutput()
	if err != nil || strings.Count(string(out), "follower") != 2 || strings.Count(string(out), "leader") != 1 {
		t.Errorf("member ls: %v\n%s", err, out)
	}
}

// A drill: what a snapshot has is all that there is after a restore, on one control plane, and
// the others join it anew; bad input gets one line.
func TestSnapshotDrill(t *testing.T) {
	c := newControlPlanes(t)
	c.bring(t)
	etcd := func(i int, args ...string) (string, error) {
		m := c.machines[i]
		out, err := m.on(append(append([]string{c.skiff, "etcd"}, args...), "--data-dir", m.dir)...).CombinedOutput()
		return string(out), err
	}
	file := filepath.Join(t.TempDir(), "snap.db")
	c.k(t, "create", "configmap", "kept")
	if out, err := etcd(1, "snapshot", "save", file); err != nil {
		t.Fatalf("snapshot save: %v\n%s", err, out)
	}
	c.k(t, "create", "configmap", "later")
	m := c.machines[2]
	for _, bad := range []struct {
		want string
		cmd  *exec.Cmd
	}{
		{"end it first", m.on(c.skiff, "etcd", "snapshot", "restore", file, "--data-dir", m.dir)},
		{`no member "nobody"`, m.on(c.skiff, "etcd", "member", "rm", "nobody", "--data-dir", m.dir)},
		{`node name "ha1" is taken`, m.on(append([]string{c.skiff, "server", "--data-dir", m.dir + "x", "--node-name", "ha1"}, c.token(t, 0)...)...)},
		{"--certificate-key is not the one", m.on(append(append([]string{c.skiff, "server", "--data-dir", m.dir + "x", "--node-name", "x"}, c.token(t, 0)...), "--certificate-key", strings.Repeat("00", 32))...)},
		{"the cluster has 192.168.232.1:16443", m.on(append([]string{c.skiff, "server", "--data-dir", m.dir + "x", "--node-name", "x", "--control-plane-endpoint", "other"}, c.token(t, 0)...)...)},
	} {
		out, err := bad.cmd.CombinedOutput()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || !strings.Contains(string(out), bad.want) || strings.Count(string(out), "\n") != 1 {
			t.Errorf("%v: %v, want one line with %q:\n%s", bad.cmd.Args, err, bad.want, out)
		}
	}
	for _, s := range c.servers {
		if err := s.end(t, syscall.SIGTERM); err != nil {
			t.Errorf("a server that is told to end: %v\n%s", err, s.out)
		}
	}
	if out, err := etcd(1, "snapshot", "restore", file); err != nil {
		t.Fatalf("snapshot restore: %v\n%s", err, out)
	}
	c.server(t, 1)
	c.k(t, "get", "configmap", "kept")
	if out, err := c.try("get", "configmap", "later"); err == nil {
		t.Errorf("what was made after the snapshot is there: %s", out)
	}
	if out, err := m.on(c.skiff, "down", "--purge", "--data-dir", m.dir).CombinedOutput(); err != nil {
		t.Fatalf("down --purge: %v\n%s", err, out)
	}
	c.k(t, "delete", "node", "ha3")
	c.server(t, 2, append(c.token(t, 1), "--node-name", "ha3", "--node-ip", "192.168.234.2")...)
	out, err := etcd(1, "member", "ls")
	if err != nil || strings.Contains(out, "ha1") || strings.Count(out, "https://") != 2 {
		t.Errorf("member ls after the restore: %v\n%s", err, out)
	}
	// A member that is removed says so and stops.
	third := c.machines[2]
	eventually(t, time.Minute, "the member is removed", func() error {
		out, err := etcd(1, "member", "rm", "ha3")
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	eventually(t, time.Minute, "the control plane that was removed does not start", func() error {
		out, err := third.on(c.skiff, "server", "--data-dir", third.dir).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "was removed from the cluster") {
			return fmt.Errorf("%v: %s", err, out)
		}
		return nil
	})
}
