package kubelet

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	"golang.org/x/sys/unix"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/skiff-k8s/skiff/containers/oci"
	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/internal/fakeapi"
)

// A machine is a kubelet with a real container runtime in network, mount and process
// namespaces of its own, so that runtimes cannot touch those of the host and a reboot
// can be had by killing all that runs in it. The API server is a fake one, and the
// kubelet runs in the process of the test.
type machine struct {
	*testing.T
	dir      string
	cgroup   string // group above all that pods have
	api      *fake.Clientset
	runtime  criRuntime
	cri      *cri.Client
	registry string // host:port of a registry over plain HTTP

	ca     *x509.Certificate
	caKey  *ecdsa.PrivateKey
	logs   *lockedBuffer
	kl     *Kubelet
	port   int
	cancel context.CancelFunc
	done   chan error
}

// criRuntime is a runtime under test.
type criRuntime interface {
	endpoint() string
	// start returns once CRI is served.
	start()
	// kill ends the runtime at once; containers go on.
	kill()
}

const (
	machineEnv = "SKIFF_TEST_MACHINE"
	machineIP  = "192.168.77.1"
)

// eachRuntime runs a test on a machine of each kind of runtime.
func eachRuntime(t *testing.T, f func(*machine)) {
	for _, k := range []struct {
		name string
		make func(*machine) criRuntime
	}{
		{"skiff", newBuiltin},
		{"containerd-1.6", func(m *machine) criRuntime { return newContainerd(m, "/usr/bin") }},
		{"containerd-2", func(m *machine) criRuntime { return newContainerd(m, twins()) }},
	} {
		t.Run(k.name, func(t *testing.T) {
			if !isolated(t) {
				return
			}
			m := newMachine(t)
			m.runtime = k.make(m)
			m.runtime.start()
			var err error
			if m.cri, err = cri.New(cri.Config{RuntimeEndpoint: m.runtime.endpoint()}); err != nil {
				t.Fatal(err)
			}
			f(m)
		})
	}
}

// isolated runs the test again in namespaces of its own; false: it has done so and the
// caller has nothing left to do.
func isolated(t *testing.T) bool {
	t.Helper()
	if os.Getenv(machineEnv) != "" {
		return true
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes namespaces, mounts and cgroups")
	}
	for _, p := range []oci.Program{oci.Launcher, oci.Monitor} {
		if _, err := p.Read(); err != nil {
			t.Skipf("needs the embedded programs: %v", err)
		}
	}
	dir, err := os.MkdirTemp("", "skm-") // short: sockets are below it
	if err != nil {
		t.Fatal(err)
	}
	pattern := "^" + strings.ReplaceAll(t.Name(), "/", "$/^") + "$"
	cmd := exec.Command("unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child", "--mount-proc", "--propagation", "private", "--",
		"/bin/sh", "-c", `"$0" "$@"; exit $?`, // reaps what loses its parent
		os.Args[0], "-test.run", pattern, "-test.v", "-test.timeout", "9m")
	cmd.Env = append(os.Environ(), machineEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: "+t.Name())) {
		t.Errorf("on a machine of its own: %v\n%s", err, out)
	} else if testing.Verbose() {
		t.Logf("%s", out)
	}
	removeGroups(t, "/"+filepath.Base(dir))
	if err := os.RemoveAll(dir); err != nil {
		t.Error(err)
	}
	return false
}

func removeGroups(t *testing.T, group string) {
	t.Helper()
	roots, err := filepath.Glob("/sys/fs/cgroup/*" + group)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat("/sys/fs/cgroup" + group); err == nil {
		roots = append(roots, "/sys/fs/cgroup"+group)
	}
	for _, root := range roots {
		var dirs []string
		_ = filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		slices.Reverse(dirs)
		for _, d := range dirs {
			var err error
			for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				if err = os.Remove(d); err == nil || errors.Is(err, os.ErrNotExist) { // busy while the dead leave it
					err = nil
					break
				}
			}
			if err != nil {
				t.Errorf("remove control group: %v", err)
			}
		}
	}
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{T: t, dir: os.Getenv(machineEnv), api: fakeapi.New(), logs: &lockedBuffer{}, port: 10250}
	m.cgroup = "/" + filepath.Base(m.dir)
	for _, err := range []error{
		unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""), // volumes reach containers
		unix.Mount("tmpfs", "/var/lib/cni", "tmpfs", 0, ""),
	} {
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	m.freshRun()
	m.ip("link set lo up")
	m.ip("link add v0 type veth peer name v1")
	m.ip("addr add " + machineIP + "/24 dev v0")
	m.ip("link set v0 up")
	m.ip("link set v1 up")
	m.ip("route add default via 192.168.77.2")
	m.api.PrependReactor("create", "subjectaccessreviews", func(clienttesting.Action) (bool, kruntime.Object, error) {
		return true, &authorizationv1.SubjectAccessReview{Status: authorizationv1.SubjectAccessReviewStatus{Allowed: true}}, nil
	})
	srv := httptest.NewUnstartedServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	srv.Listener.Close()
	l, err := net.Listen("tcp", machineIP+":5000")
	if err != nil {
		t.Fatal(err)
	}
	srv.Listener = l
	srv.Start()
	m.registry = l.Addr().String()
	m.push(m.registry+"/busybox:1", busybox(t, "first"))
	m.push(m.registry+"/pause:1", pause(t))
	m.caKey, m.ca = authority(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kubelet:\n%s", m.logs.tail(150))
			pods, _ := m.api.CoreV1().Pods("").List(context.Background(), metav1.ListOptions{})
			for _, p := range pods.Items {
				t.Logf("%s/%s: %+v", p.Namespace, p.Name, p.Status)
			}
			events, _ := m.api.CoreV1().Events("").List(context.Background(), metav1.ListOptions{})
			for _, e := range events.Items {
				t.Logf("event %s %s: %s", e.InvolvedObject.Name, e.Reason, e.Message)
			}
		}
		if m.cancel != nil {
			m.stopKubelet()
		}
		m.killAll()
		m.unmountAll()
		srv.Close()
	})
	return m
}

func (m *machine) ip(args string) {
	m.Helper()
	if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		m.Fatalf("ip %s: %v %s", args, err, out)
	}
}

func (m *machine) freshRun() {
	m.Helper()
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=755"); err != nil {
		m.Fatal(err)
	}
}

// startKubelet with a configuration that edit may change.
func (m *machine) startKubelet(edit ...func(*Config)) {
	m.Helper()
	cert := m.certificate("kubelet", nil)
	pool := x509.NewCertPool()
	pool.AddCert(m.ca)
	cfg := Config{
		NodeName: "n1", Client: m.api, RuntimeEndpoint: m.runtime.endpoint(), RootDir: m.dir + "/kubelet", PodLogsDir: m.dir + "/pods", ContainerLogsDir: "-",
		ManifestDir: m.dir + "/manifests", NodeIPs: []string{machineIP}, ListenAddr: fmt.Sprintf("%s:%d", machineIP, m.port), ClientCA: pool,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil },
		CgroupRoot:     m.cgroup, ClusterDNS: []string{"10.96.0.10"},
		Logger: slog.New(slog.NewTextHandler(m.logs, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, e := range edit {
		e(&cfg)
	}
	k, err := New(cfg)
	if err != nil {
		m.Fatal(err)
	}
	var ctx context.Context
	ctx, m.cancel = context.WithCancel(context.Background())
	m.kl, m.done = k, make(chan error, 1)
	go func() { m.done <- k.Run(ctx) }()
}

func (m *machine) stopKubelet() {
	m.Helper()
	m.cancel()
	m.cancel = nil
	select {
	case err := <-m.done:
		if err != nil {
			m.Errorf("kubelet: %v", err)
		}
	case <-time.After(time.Minute):
		m.Fatal("the kubelet does not end")
	}
}

// reboot takes away what does not survive one: processes, namespaces, mounts, links,
// control groups, /run. The kubelet and the runtime are not started again.
func (m *machine) reboot() {
	m.Helper()
	if m.cancel != nil {
		m.stopKubelet()
	}
	m.runtime.kill()
	m.killAll()
	m.unmountAll()
	out, err := exec.Command("ip", "-o", "link").CombinedOutput()
	if err != nil {
		m.Fatal(err)
	}
	for _, line := range strings.Split(string(out), "\n") {
		if f := strings.Fields(line); len(f) > 1 {
			link, _, _ := strings.Cut(strings.TrimSuffix(f[1], ":"), "@")
			if link != "lo" && link != "v0" && link != "v1" {
				_ = exec.Command("ip", "link", "del", link).Run() // gone with its peer
			}
		}
	}
	if out, err := exec.Command("nft", "flush", "ruleset").CombinedOutput(); err != nil {
		m.Fatalf("nft: %v %s", err, out)
	}
	removeGroups(m.T, m.cgroup)
	m.freshRun()
	boot := filepath.Join(m.dir, "boot_id")
	var id [16]byte
	_, _ = rand.Read(id[:])
	if err := os.WriteFile(boot, fmt.Appendf(nil, "%x-%x-%x-%x-%x\n", id[:4], id[4:6], id[6:8], id[8:10], id[10:]), 0o444); err != nil {
		m.Fatal(err)
	}
	_ = unix.Unmount("/proc/sys/kernel/random/boot_id", unix.MNT_DETACH)
	if err := unix.Mount(boot, "/proc/sys/kernel/random/boot_id", "", unix.MS_BIND, ""); err != nil {
		m.Fatal(err)
	}
}

// killAll kills what runs in the machine besides the test.
func (m *machine) killAll() {
	m.Helper()
	if os.Getenv(machineEnv) == "" || os.Getppid() != 1 {
		m.Fatal("not in a process namespace of its own")
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		err := unix.Kill(-1, unix.SIGKILL) // spares the caller and the namespace's init
		if errors.Is(err, unix.ESRCH) || m.alive() == 0 {
			return
		}
		if time.Now().After(end) {
			m.Fatal("processes outlive SIGKILL")
		}
	}
}

func (m *machine) alive() (n int) {
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		m.Fatal(err)
	}
	for _, s := range stats {
		raw, err := os.ReadFile(s)
		if err != nil {
			continue
		}
		f := strings.Fields(string(raw[bytes.LastIndexByte(raw, ')')+1:]))
		pid := filepath.Base(filepath.Dir(s))
		if pid != "1" && pid != fmt.Sprint(os.Getpid()) && f[0] != "Z" && f[0] != "X" {
			n++
		}
	}
	return n
}

func (m *machine) unmountAll() {
	m.Helper()
	raw, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		m.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(raw)), "\n")
	slices.Reverse(lines)
	for _, l := range lines {
		at := strings.Fields(l)[4]
		if strings.HasPrefix(at, m.dir+"/") || at == "/run" || strings.HasPrefix(at, "/run/") {
			if err := unix.Unmount(at, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
				m.Fatalf("unmount %s: %v", at, err)
			}
		}
	}
}
