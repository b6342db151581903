package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/skiff-k8s/skiff/containers/image"
	"github.com/skiff-k8s/skiff/containers/oci"
)

// TestContainerd is the main job on containerd, Debian's 1.6 and version 2, each one of its
// own beside the cluster: nothing of the cluster is left on it, what others have there stays.
func TestContainerd(t *testing.T) {
	binaries(t)
	twins, err := filepath.Abs("../../.cache/twins")
	if err != nil {
		t.Fatal(err)
	}
	if dir := os.Getenv("TWINS"); dir != "" {
		twins = dir
	}
	for _, v := range []struct{ name, bin string }{{"1.6", "/usr/bin"}, {"2", twins}} {
		t.Run(v.name, func(t *testing.T) {
			ctd := startContainerd(t, v.bin)
			ctd.ctr(t, "run", "--detach", "--null-io", "test.local/shell:v1", "foreign", "/bin/sh", "-c", "while :; do sleep 1; done")
			c := upWith(t, "--container-runtime-endpoint", "unix://"+ctd.socket)
			t.Cleanup(func() { // before the cluster's: what is left after it is looked at last
				if tasks := ctd.ctr(t, "tasks", "ls"); !strings.Contains(tasks, "foreign") {
					t.Errorf("the foreign container is gone: %s", tasks)
				}
			})
			if out := c.k(t, "get", "nodes", "-o", "jsonpath={.items[0].status.nodeInfo.containerRuntimeVersion}"); !strings.HasPrefix(out, "containerd://") {
				t.Fatalf("runtime %q", out)
			}
			c.k(t, "apply", "-f", "testdata/deployment.yaml")
			c.k(t, "apply", "-f", "testdata/shell.yaml")
			c.k(t, "rollout", "status", "deployment/web", "--timeout=180s")
			c.k(t, "wait", "pod/shell", "--for=condition=Ready", "--timeout=180s")
			ip := c.k(t, "get", "service", "web", "-o", "jsonpath={.spec.clusterIP}")
			if body := get(t, "http://"+ip+"/"); !strings.Contains(body, "web-") {
				t.Errorf("the service answers %q on the node", body)
			}
			for _, host := range []string{ip, "web.default.svc.cluster.local"} {
				out := c.k(t, "exec", "shell", "--", "/bin/sh", "-c", "printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc "+host+" 80")
				if !strings.Contains(out, "web-") {
					t.Errorf("%s answers %q in a pod", host, out)
				}
			}
			before := c.state(t)

			// All that is not a container is killed: pods stay as they are.
			c.kill(t, "node")
			ctd.kill(t)
			if body := get(t, "http://"+ip+"/"); !strings.Contains(body, "web-") {
				t.Errorf("the service answers %q meanwhile", body)
			}
			ctd.start(t)
			c.up(t)
			eventually(t, 60*time.Second, "the same containers are ready, never restarted", func() error {
				if after := c.state(t); after != before {
					return fmt.Errorf("before:\n%safter:\n%s", before, after)
				}
				return nil
			})
			c.k(t, "scale", "deployment/web", "--replicas=5")
			c.k(t, "rollout", "status", "deployment/web", "--timeout=180s")
			c.k(t, "scale", "deployment/web", "--replicas=1")
			eventually(t, 60*time.Second, "containers of pods that are gone go", func() error {
				if out := ctd.ctr(t, "containers", "ls", "-q"); len(strings.Fields(out)) != 5 { // web, shell, a pause each, and the foreign
					return fmt.Errorf("containers: %q", out)
				}
				return nil
			})
			if out, err := run(c.skiff, "down", "--data-dir", c.dir); err != nil {
				t.Fatalf("down: %v\n%s", err, out)
			}
			if left := strings.Fields(ctd.ctr(t, "containers", "ls", "-q")); len(left) != 1 || left[0] != "foreign" {
				t.Errorf("left on the runtime: %q", left)
			}
		})
	}
}

// containerd is one that the test runs.
type containerd struct {
	dir, bin, socket string
	cmd              *exec.Cmd
}

func startContainerd(t *testing.T, bin string) *containerd {
	t.Helper()
	for _, f := range []string{filepath.Join(bin, "containerd"), "/usr/bin/ctr", "/usr/lib/cni/ptp"} {
		if _, err := os.Stat(f); err != nil {
			t.Fatalf("install what the tests need with .ci/host and make twins: %v", err)
		}
	}
	dir, err := os.MkdirTemp("/tmp", "skiff-ctd-")
	if err != nil {
		t.Fatal(err)
	}
	ctd := &containerd{dir: dir, bin: bin, socket: filepath.Join(dir, "c.sock")}
	config := fmt.Sprintf(`version = 2
root = "%[1]s/root"
state = "%[1]s/state"
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "%[1]s/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "test.local/pause:v1"
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
`, dir)
	if err := os.WriteFile(filepath.Join(dir, "config.toml"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	ctd.start(t)
	t.Cleanup(func() {
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(dir, "log"))
			t.Logf("containerd:\n%s", log[max(0, len(log)-5000):])
		}
		for _, id := range strings.Fields(ctd.ctr(t, "tasks", "ls", "-q")) {
			ctd.ctr(t, "tasks", "rm", "--force", id)
		}
		for _, id := range strings.Fields(ctd.ctr(t, "containers", "ls", "-q")) {
			ctd.ctr(t, "containers", "rm", id)
		}
		ctd.kill(t)
		mounts, _ := os.ReadFile("/proc/self/mounts")
		for _, l := range strings.Split(string(mounts), "\n") {
			if f := strings.Fields(l); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
				_ = syscall.Unmount(f[1], syscall.MNT_DETACH)
			}
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	hello, err := image.HelloImage("skiff.local/hello:v1", oci.Hello.Read)
	if err != nil {
		t.Fatal(err)
	}
	shell := configured(t, shellImage(t), nil)
	pause := configured(t, shell, []string{"/bin/sh", "-c", "while :; do sleep 1000; done"})
	for ref, img := range map[string]v1.Image{"skiff.local/hello:v1": configured(t, hello, nil), "test.local/shell:v1": shell, "test.local/pause:v1": pause} {
		tag, err := name.NewTag(ref)
		if err != nil {
			t.Fatal(err)
		}
		tar := filepath.Join(dir, "image.tar")
		if err := tarball.WriteToFile(tar, tag, img); err != nil {
			t.Fatal(err)
		}
		ctd.ctr(t, "images", "import", tar)
	}
	return ctd
}

// configured names the platform, without which containerd passes images over.
func configured(t *testing.T, img v1.Image, entrypoint []string) v1.Image {
	t.Helper()
	file, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	file = file.DeepCopy()
	file.OS, file.Architecture = "linux", runtime.GOARCH
	if entrypoint != nil {
		file.Config.Entrypoint = entrypoint
	}
	if img, err = mutate.ConfigFile(img, file); err != nil {
		t.Fatal(err)
	}
	return img
}

func (d *containerd) start(t *testing.T) {
	t.Helper()
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	d.cmd = exec.Command(filepath.Join(d.bin, "containerd"), "--config", filepath.Join(d.dir, "config.toml"))
	d.cmd.Env = append(os.Environ(), "PATH="+d.bin+":"+os.Getenv("PATH"))
	d.cmd.Stdout, d.cmd.Stderr = log, log
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "containerd serves", func() error {
		conn, err := net.Dial("unix", d.socket)
		if err != nil {
			return err
		}
		return conn.Close()
	})
}

func (d *containerd) kill(t *testing.T) {
	t.Helper()
	if err := d.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = d.cmd.Wait() // killed
}

// ctr runs Debian's client in the namespace of CRI.
func (d *containerd) ctr(t *testing.T, args ...string) string {
	t.Helper()
	out, err := run("ctr", append([]string{"--address", d.socket, "--namespace", "k8s.io"}, args...)...)
	if err != nil {
		t.Fatalf("ctr %s: %v", strings.Join(args, " "), err)
	}
	return out
}
