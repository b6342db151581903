// Command guest boots a Debian kernel under QEMU and runs tests in it that the host's own
// kernel cannot run: with cgroup v2 and nothing else, and with every capability.
//
// The guest has no network and a disk for /tmp alone: all that it needs is in its initramfs, made
// here, and what it says comes over the serial line. The plan, a list of steps, goes in; how each ended comes
// out. A step of which nothing was heard has failed, and so has one that skipped a test.
// make guest builds what this is given.
//
// "guest kubeadm" boots a whole Debian machine instead, which joins a cluster (make kubeadm-guest).
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/skiff-k8s/skiff/test/guest/plan"
)

// kernelPackage depends on the newest kernel that Debian builds for virtual machines.
const kernelPackage = "linux-image-cloud-amd64"

// hostPrograms are taken from this host, with the libraries that they need.
var hostPrograms = []string{"ip", "nft", "script", "tar", "gzip", "nsenter", "unshare", "apparmor_parser",
	"iptables-nft", "iptables-nft-save", "iptables-nft-restore", "ip6tables-nft", "ip6tables-nft-save", "ip6tables-nft-restore"}

// matches are where the programs of iptables have their extensions.
const matches = "/usr/lib/x86_64-linux-gnu/xtables"

func main() {
	if len(os.Args) > 1 && os.Args[1] == "kubeadm" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if err := kubeadmMain(ctx, os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "kubeadm-guest:", err)
			os.Exit(1)
		}
		return
	}
	var o options
	flag.StringVar(&o.cache, "cache", ".cache/guest", "where the kernel and the initramfs are kept")
	flag.StringVar(&o.init, "init", "", "the guest's init")
	flag.StringVar(&o.tests, "tests", "", "directory of test binaries, PACKAGE.test with _ for each /")
	flag.StringVar(&o.skiff, "skiff", "bin/skiff", "the binary whose clusters are tested")
	flag.StringVar(&o.kubectl, "kubectl", "bin/kubectl", "kubectl")
	flag.StringVar(&o.run, "run", "", "only steps whose name contains this")
	flag.StringVar(&o.focus, "focus", "", "only tests whose name matches this, in steps of packages")
	flag.IntVar(&o.memory, "memory", 4096, "the guest's memory in MiB")
	flag.DurationVar(&o.timeout, "timeout", time.Hour, "for everything")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	if err := o.main(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "guest:", err)
		os.Exit(1)
	}
}

type options struct {
	cache, init, tests, skiff, kubectl, run, focus string
	memory                                         int
	timeout                                        time.Duration
}

func (o *options) main(ctx context.Context) error {
	if err := os.MkdirAll(o.cache, 0o755); err != nil {
		return err
	}
	steps, err := o.plan()
	if err != nil {
		return err
	}
	kernel, err := fetchKernel(ctx, o.cache)
	if err != nil {
		return fmt.Errorf("kernel: %w", err)
	}
	initramfs := filepath.Join(o.cache, "initramfs")
	if err := o.pack(initramfs, kernel, steps); err != nil {
		return fmt.Errorf("initramfs: %w", err)
	}
	defer os.Remove(initramfs)
	disk := filepath.Join(o.cache, "disk")
	if err := makeDisk(ctx, disk); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	defer os.Remove(disk)
	results, err := boot(ctx, kernel.image, initramfs, disk, o.memory)
	return errors.Join(err, report(os.Stdout, steps, results))
}

// onContainerd are the tests of the kubelet on containerd, which the guest does not have: make unit runs
// them on the host.
const onContainerd = "^TestSystemdDriver$|^TestTwoKubeletsOnOneRuntime$|/containerd-"

// plan has a step for each test binary, the whole flow last.
func (o *options) plan() ([]plan.Step, error) {
	binaries, err := filepath.Glob(filepath.Join(o.tests, "*.test"))
	if err != nil {
		return nil, err
	}
	var steps, last []plan.Step
	for _, b := range binaries {
		name := strings.TrimSuffix(filepath.Base(b), ".test")
		dir := strings.ReplaceAll(name, "_", "/")
		if o.run != "" && !strings.Contains(dir, o.run) {
			continue
		}
		s := plan.Step{
			Name: dir, Dir: "/src/" + dir, Timeout: 30 * time.Minute,
			Args: []string{"/tests/" + filepath.Base(b), "-test.v", "-test.count=1", "-test.timeout=29m"},
		}
		if dir == "proxy" { // what runs on the host's kernel as well has no need of this one
			s.Args = append(s.Args, "-test.run=TestServices/ipvs")
		}
		if dir == "test/e2e" {
			s.Args = append(s.Args, "-test.run=TestMainJob|TestDown")
			s.Env = []string{"SKIFF_BIN=/bin/skiff", "KUBECTL_BIN=/bin/kubectl"}
			last = append(last, s)
			continue
		}
		if dir == "kubelet" {
			s.Args = append(s.Args, "-test.skip="+onContainerd)
		}
		if o.focus != "" {
			s.Args = append(s.Args, "-test.run="+o.focus)
		}
		steps = append(steps, s)
	}
	if steps = append(steps, last...); len(steps) == 0 {
		return nil, fmt.Errorf("no test binaries in %q match", o.tests)
	}
	return steps, nil
}

// pack writes the initramfs.
func (o *options) pack(path string, k kernel, steps []plan.Step) error {
	a, err := newArchive(path)
	if err != nil {
		return err
	}
	text, err := json.Marshal(steps)
	if err != nil {
		return err
	}
	a.bytes(strings.TrimPrefix(plan.Path, "/"), 0o644, text)
	a.bytes("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\n"))
	a.bytes("etc/group", 0o644, []byte("root:x:0:\n"))
	a.bytes("etc/hosts", 0o644, []byte("127.0.0.1 localhost\n"))
	a.bytes("etc/resolv.conf", 0o644, []byte("nameserver "+plan.Gateway+"\n"))
	a.file("init", o.init, 0o755)
	a.file("bin/skiff", o.skiff, 0o755)
	a.file("bin/kubectl", o.kubectl, 0o755)
	a.file("bin/busybox", "/bin/busybox", 0o755)
	for _, p := range hostPrograms {
		a.program(p)
	}
	a.tree("etc/apparmor.d", "/etc/apparmor.d")
	a.tree(strings.TrimPrefix(matches, "/"), matches)
	for _, s := range steps {
		a.file(strings.TrimPrefix(s.Args[0], "/"), filepath.Join(o.tests, filepath.Base(s.Args[0])), 0o755)
		a.dir("src/" + s.Name)
		a.tree("src/"+s.Name+"/testdata", s.Name+"/testdata")
	}
	order, err := inOrder(k.modules, modules)
	if err != nil {
		return errors.Join(err, a.close())
	}
	for i, m := range order {
		a.file(fmt.Sprintf("modules/%03d-%s", i, filepath.Base(m)), m, 0o644)
	}
	return a.close()
}

// makeDisk makes the file system of the guest's /tmp. The kernel's tmpfs has no ID-mapped mounts,
// which containers in user namespaces need.
func makeDisk(ctx context.Context, path string) error {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	const size = 4 << 30 // sparse
	if err := os.Truncate(path, size); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "/sbin/mkfs.ext4", "-q", "-F", path).CombinedOutput(); err != nil {
		return fmt.Errorf("mkfs.ext4 (Debian's package e2fsprogs): %w\n%s", err, out)
	}
	return nil
}

// kernel is an unpacked kernel package.
type kernel struct{ image, modules string }

// fetchKernel downloads and unpacks the kernel once.
func fetchKernel(ctx context.Context, cache string) (kernel, error) {
	dir := filepath.Join(cache, "kernel")
	if k, err := findKernel(dir); err == nil {
		return k, nil
	}
	fmt.Println("downloading", kernelPackage)
	depends, err := exec.CommandContext(ctx, "apt-cache", "depends", "--important", kernelPackage).Output()
	if err != nil {
		return kernel{}, fmt.Errorf("apt-cache depends: %w", err)
	}
	var name string
	for line := range strings.Lines(string(depends)) {
		if d, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok && strings.HasPrefix(d, "linux-image-") {
			name = d
			break
		}
	}
	if name == "" {
		return kernel{}, fmt.Errorf("%s names no kernel: run apt-get update", kernelPackage)
	}
	tmp, err := os.MkdirTemp(cache, "kernel-")
	if err != nil {
		return kernel{}, err
	}
	defer os.RemoveAll(tmp)
	for _, args := range [][]string{
		{"apt-get", "download", "-qq", name},
		{"sh", "-c", "dpkg-deb -x ./*.deb root"},
	} {
		cmd := exec.CommandContext(ctx, args[0], args[1:]...)
		cmd.Dir = tmp
		if out, err := cmd.CombinedOutput(); err != nil {
			return kernel{}, fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	if err := os.Rename(filepath.Join(tmp, "root"), dir); err != nil {
		return kernel{}, err
	}
	return findKernel(dir)
}

func findKernel(dir string) (kernel, error) {
	images, err := filepath.Glob(filepath.Join(dir, "boot/vmlinuz-*"))
	if err != nil || len(images) == 0 {
		return kernel{}, errors.Join(fs.ErrNotExist, err)
	}
	modules, err := filepath.Glob(filepath.Join(dir, "lib/modules/*"))
	if err != nil || len(modules) == 0 {
		return kernel{}, errors.Join(fs.ErrNotExist, err)
	}
	return kernel{images[0], modules[0]}, nil
}
