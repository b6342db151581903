package containers

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/image"
	"github.com/skiff-k8s/skiff/containers/oci"
)

// The test binary is its own runtime process, so that one can be killed.
const serveEnv = "SKIFF_TEST_SERVE_RUNTIME"

func TestMain(m *testing.M) {
	if dir := os.Getenv(serveEnv); dir != "" {
		cfg := testConfig(dir, os.Getenv(serveEnv+"_REGISTRY"))
		cfg.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
		r, err := New(cfg)
		if err == nil {
			err = r.Run(context.Background())
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// noNetwork is a network whose sandboxes have loopback alone.
type noNetwork struct{}

func (noNetwork) Attach(context.Context, Sandbox) (Addresses, error) {
	return Addresses{IPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}, nil
}
func (noNetwork) Detach(context.Context, Sandbox) error { return nil }
func (noNetwork) Ready(context.Context) error           { return nil }

func testConfig(dir, registryHost string) Config {
	cfg := Config{RootDir: dir, Network: noNetwork{}, CgroupRoot: "/skiff-test-" + filepath.Base(dir)}
	if registryHost != "" {
		cfg.Registries = image.Registries{PlainHTTP: []string{registryHost}}
	}
	return cfg
}

// needRoot skips what cannot be tested here, saying why.
func needRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes namespaces, mounts and cgroups")
	}
	for _, p := range []oci.Program{oci.Launcher, oci.Monitor} {
		if _, err := p.Read(); err != nil {
			t.Skipf("needs the embedded programs: %v", err)
		}
	}
}

// harness is a runtime process with a registry beside it.
type harness struct {
	t        testing.TB
	dir      string
	registry string
	cmd      *exec.Cmd
	*Client
}

func newHarness(t testing.TB) *harness {
	t.Helper()
	needRoot(t)
	dir, err := os.MkdirTemp("", "skiff-rt-")
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	h := &harness{t: t, dir: dir, registry: strings.TrimPrefix(srv.URL, "http://")}
	t.Cleanup(func() {
		h.kill()
		srv.Close()
		if err := Down(context.Background(), testConfig(dir, "")); err != nil {
			t.Errorf("take down: %v", err)
		}
		h.checkNothingLeft()
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove: %v", err)
		}
	})
	h.serve()
	return h
}

// serve starts the runtime process and waits until it answers.
func (h *harness) serve() {
	h.t.Helper()
	// In the surroundings of a job that a shell runs in the background.
	h.cmd = exec.Command("/bin/sh", "-c", `trap "" HUP INT QUIT PIPE USR1; umask 077; exec "$0"`, os.Args[0])
	h.cmd.Env = append(os.Environ(), serveEnv+"="+h.dir, serveEnv+"_REGISTRY="+h.registry)
	h.cmd.Stderr = os.Stderr
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := h.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	client, err := Dial(filepath.Join(h.dir, "run/cri.sock"))
	if err != nil {
		h.t.Fatal(err)
	}
	h.Client = client
	h.eventually("runtime to answer", func() error {
		_, err := client.Runtime.Version(context.Background(), &runtimeapi.VersionRequest{})
		return err
	})
}

// kill is kill -9 of the runtime.
func (h *harness) kill() {
	if h.cmd == nil {
		return
	}
	_ = h.cmd.Process.Kill()
	_ = h.cmd.Wait()
	_ = h.Client.Close()
	h.cmd = nil
}

// eventually retries what another process brings about.
func (h *harness) eventually(what string, f func() error) {
	h.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			h.t.Fatalf("waiting for %s: %v", what, err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (h *harness) checkNothingLeft() {
	h.t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		h.t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, h.dir) {
			h.t.Errorf("mount left: %s", line)
		}
	}
	left, err := filepath.Glob("/sys/fs/cgroup/*/skiff-test-" + filepath.Base(h.dir))
	if err != nil || len(left) > 0 {
		h.t.Errorf("cgroups left: %v %v", left, err)
	}
	h.checkNothingRuns()
}

func (h *harness) checkNothingRuns() {
	h.t.Helper()
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		h.t.Fatal(err)
	}
	for _, p := range procs {
		if b, err := os.ReadFile(p); err == nil && bytes.Contains(b, []byte(h.dir)) {
			h.t.Errorf("process left: %s", bytes.ReplaceAll(b, []byte{0}, []byte{' '}))
		}
	}
}

// busyboxImage has a shell and its tools, from Debian's busybox-static.
func busyboxImage(t testing.TB, change func(*v1.Config)) v1.Image {
	t.Helper()
	bin, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skip("needs /bin/busybox: apt-get install busybox-static")
	}
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	put := func(h tar.Header, content []byte) {
		h.Size = int64(len(content))
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(content); err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"bin/", "etc/", "proc/", "sys/", "dev/", "data/"} {
		put(tar.Header{Name: d, Typeflag: tar.TypeDir, Mode: 0o755}, nil)
	}
	put(tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777}, nil)
	put(tar.Header{Name: "bin/busybox", Typeflag: tar.TypeReg, Mode: 0o755}, bin)
	for _, a := range []string{"sh", "cat", "echo", "sleep", "ls", "id", "true", "false", "kill", "ps", "touch", "hostname", "nc", "mount", "stat", "printf", "seq", "env", "pwd", "tty", "stty", "head", "unshare", "dd", "grep", "readlink", "chmod", "wc", "ping", "test", "mknod", "tr", "ln", "mkdir", "rm"} {
		put(tar.Header{Name: "bin/" + a, Typeflag: tar.TypeSymlink, Linkname: "busybox"}, nil)
	}
	put(tar.Header{Name: "etc/passwd", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:0::/root:/bin/sh\nuser:x:1000:1001::/:/bin/sh\n"))
	put(tar.Header{Name: "etc/group", Typeflag: tar.TypeReg, Mode: 0o644}, []byte("root:x:0:\nuser:x:1001:\nextra:x:2000:user\n"))
	put(tar.Header{Name: "data/file", Typeflag: tar.TypeReg, Mode: 0o600, Uid: 1000, Gid: 1001}, []byte("content"))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		t.Fatal(err)
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		t.Fatal(err)
	}
	cfg := v1.Config{Cmd: []string{"/bin/sh"}, Env: []string{"PATH=/bin", "FROM_IMAGE=1"}}
	if change != nil {
		change(&cfg)
	}
	if img, err = mutate.Config(img, cfg); err != nil {
		t.Fatal(err)
	}
	return img
}

// pull pushes the image to the registry and has the runtime pull it.
func (h *harness) pull(repo string, img v1.Image) string {
	h.t.Helper()
	ref, err := name.ParseReference(h.registry + "/" + repo + ":latest")
	if err != nil {
		h.t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		h.t.Fatal(err)
	}
	got, err := h.Images.PullImage(context.Background(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref.Name()}})
	if err != nil {
		h.t.Fatal(err)
	}
	return got.GetImageRef()
}

func (h *harness) sandbox(change func(*runtimeapi.PodSandboxConfig)) (string, *runtimeapi.PodSandboxConfig) {
	h.t.Helper()
	cfg := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "pod", Namespace: "default", Uid: "uid"},
		Hostname:     "pod-host",
		LogDirectory: filepath.Join(h.dir, "logs"),
		Labels:       map[string]string{"app": "test"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
	if change != nil {
		change(cfg)
	}
	got, err := h.Runtime.RunPodSandbox(context.Background(), &runtimeapi.RunPodSandboxRequest{Config: cfg})
	if err != nil {
		h.t.Fatal(err)
	}
	return got.GetPodSandboxId(), cfg
}

func (h *harness) create(sandbox string, cfg *runtimeapi.PodSandboxConfig, img string, change func(*runtimeapi.ContainerConfig)) string {
	h.t.Helper()
	id, err := h.tryCreate(sandbox, cfg, img, change)
	if err != nil {
		h.t.Fatal(err)
	}
	return id
}

func (h *harness) tryCreate(sandbox string, cfg *runtimeapi.PodSandboxConfig, img string, change func(*runtimeapi.ContainerConfig)) (string, error) {
	c := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "main"},
		Image:    &runtimeapi.ImageSpec{Image: img},
		LogPath:  "main.log",
		Linux: &runtimeapi.LinuxContainerConfig{
			Resources: &runtimeapi.LinuxContainerResources{},
			SecurityContext: &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
				Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
				MaskedPaths:      []string{"/proc/kcore", "/proc/keys", "/sys/firmware"},
				ReadonlyPaths:    []string{"/proc/sys", "/proc/sysrq-trigger"},
			},
		},
	}
	change(c)
	got, err := h.Runtime.CreateContainer(context.Background(), &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: c, SandboxConfig: cfg})
	return got.GetContainerId(), err
}

func (h *harness) start(id string) {
	h.t.Helper()
	if _, err := h.Runtime.StartContainer(context.Background(), &runtimeapi.StartContainerRequest{ContainerId: id}); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) status(id string) *runtimeapi.ContainerStatus {
	h.t.Helper()
	got, err := h.Runtime.ContainerStatus(context.Background(), &runtimeapi.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		h.t.Fatal(err)
	}
	return got.GetStatus()
}

// wait returns the status once the container has ended.
func (h *harness) wait(id string) *runtimeapi.ContainerStatus {
	h.t.Helper()
	var st *runtimeapi.ContainerStatus
	h.eventually("container to end", func() error {
		if st = h.status(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
			return fmt.Errorf("it is %s", st.GetState())
		}
		return nil
	})
	return st
}

// output returns the container's output, stripped of the CRI log's columns.
func (h *harness) output(id string) string {
	h.t.Helper()
	b, err := os.ReadFile(h.status(id).GetLogPath())
	if err != nil {
		h.t.Fatal(err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		f := strings.SplitN(line, " ", 4)
		if len(f) != 4 || (f[1] != "stdout" && f[1] != "stderr") || (f[2] != "F" && f[2] != "P") {
			h.t.Fatalf("not a CRI log line: %q", line)
		}
		if _, err := time.Parse(time.RFC3339Nano, f[0]); err != nil {
			h.t.Fatal(err)
		}
		if f[2] == "P" {
			f[3] = strings.TrimSuffix(f[3], "\n")
		}
		out.WriteString(f[3])
	}
	return out.String()
}

// run runs a command in a new container of its own sandbox to its end.
func (h *harness) run(img string, change func(*runtimeapi.ContainerConfig), cmd ...string) (string, *runtimeapi.ContainerStatus) {
	h.t.Helper()
	sb, cfg := h.sandbox(nil)
	id := h.create(sb, cfg, img, func(c *runtimeapi.ContainerConfig) {
		c.Command = cmd
		c.LogPath = sb[:12] + ".log"
		if change != nil {
			change(c)
		}
	})
	h.start(id)
	st := h.wait(id)
	return h.output(id), st
}

func (h *harness) execSync(id string, timeout int64, cmd ...string) (*runtimeapi.ExecSyncResponse, error) {
	return h.Runtime.ExecSync(context.Background(), &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: cmd, Timeout: timeout})
}
