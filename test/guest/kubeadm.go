package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// kubeadmRun is a Debian machine with systemd, containerd and upstream's kubelet that joins a
// server of skiff's by upstream's kubeadm, with all of kubeadm's preflight checks.
type kubeadmRun struct {
	cache, out, skiff, kubectl, twins string
	memory                            int
	work                              string // the server's data, the disk
	began                             time.Time
	m                                 *running
	k                                 kernel
}

func kubeadmMain(ctx context.Context, args []string) error {
	r := &kubeadmRun{began: time.Now()}
	flags := flag.NewFlagSet("guest kubeadm", flag.ExitOnError)
	flags.StringVar(&r.cache, "cache", ".cache/guest", "where the kernel and Debian's files are kept")
	flags.StringVar(&r.out, "out", ".cache/results/kubeadm-guest", "where the logs are kept")
	flags.StringVar(&r.skiff, "skiff", "bin/skiff", "the server")
	flags.StringVar(&r.kubectl, "kubectl", "bin/kubectl", "kubectl")
	flags.StringVar(&r.twins, "twins", ".cache/twins", "where upstream's kubeadm, kubelet and containerd are")
	flags.IntVar(&r.memory, "memory", 2048, "the machine's memory in MiB")
	fetch := flags.Bool("fetch", false, "only fetch what is not there: that needs the host's network, the rest one of its own")
	timeout := flags.Duration("timeout", 40*time.Minute, "for everything")
	_ = flags.Parse(args) // ends the program
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	for _, dir := range []*string{&r.cache, &r.out, &r.skiff, &r.kubectl, &r.twins} {
		var err error
		if *dir, err = filepath.Abs(*dir); err != nil {
			return err
		}
	}
	if err := r.needs(); err != nil {
		return err
	}
	for _, dir := range []string{r.cache, r.out} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	debian, err := r.fetch(ctx)
	if err != nil || *fetch {
		return err
	}
	if r.work, err = os.MkdirTemp("/tmp", "skiff-guest-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	if err := r.all(ctx, debian); err != nil {
		return fmt.Errorf("%w\nlogs are in %s", err, r.out)
	}
	r.say("all well; logs are in %s", r.out)
	return nil
}

// needs says in one line what the host lacks.
func (r *kubeadmRun) needs() error {
	if os.Geteuid() != 0 {
		return errors.New("run this as root: it makes a network device and a root file system")
	}
	for _, n := range []struct{ file, mend string }{
		{"/usr/bin/qemu-system-x86_64", "apt-get install qemu-system-x86"},
		{"/bin/busybox", "apt-get install busybox-static"},
		{"/sbin/mke2fs", "apt-get install e2fsprogs"},
		{"/dev/net/tun", "modprobe tun"},
		{filepath.Join(r.twins, "kubeadm"), "make -C test/upstream/kubeadm"},
		{filepath.Join(r.twins, "kubelet"), "make twins"},
		{filepath.Join(r.twins, "kube-proxy"), "make twins"},
		{filepath.Join(r.twins, "containerd"), "make containerd"},
	} {
		if _, err := os.Stat(n.file); err != nil {
			return fmt.Errorf("%s is missing: %s", n.file, n.mend)
		}
	}
	return nil
}

func (r *kubeadmRun) say(format string, args ...any) {
	fmt.Printf("%6.1f s  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}

func (r *kubeadmRun) all(ctx context.Context, debian string) (err error) {
	disk, initramfs, err := r.build(ctx, debian)
	if err != nil {
		return err
	}
	for _, args := range [][]string{
		{"tuntap", "add", tap, "mode", "tap"}, {"address", "add", hostAddress + "/24", "dev", tap}, {"link", "set", tap, "up"},
		{"route", "add", "default", "via", machineAddress},
	} {
		if out, err := exec.CommandContext(ctx, "ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s (run in a network namespace of its own, as make kubeadm-guest does)", strings.Join(args, " "), err, out)
		}
	}
	console, err := os.Create(filepath.Join(r.out, "console.log"))
	if err != nil {
		return err
	}
	defer console.Close()
	r.say("the machine boots, emulated: minutes")
	if r.m, err = switchOn(r.k, initramfs, disk, r.memory, console); err != nil {
		return err
	}
	defer r.m.switchOff()
	join, stop, err := r.serve(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	err = r.joins(ctx, join)
	for file, script := range map[string]string{"journal.log": "journalctl --no-pager -b", "units.log": "systemctl --no-pager status; systemctl --no-pager --failed"} {
		short, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		text, _ := r.m.run(short, script) // a machine that says nothing has failed before
		cancel()
		err = errors.Join(err, os.WriteFile(filepath.Join(r.out, file), []byte(text), 0o644))
	}
	return err
}

// fetch gets what is Debian's.
func (r *kubeadmRun) fetch(ctx context.Context) (debian string, err error) {
	if r.k, err = fetchKernel(ctx, r.cache); err != nil {
		return "", fmt.Errorf("kernel: %w", err)
	}
	return fetchDebian(ctx, r.cache, filepath.Join(r.out, "debootstrap.log"))
}

// build makes what the machine boots from.
func (r *kubeadmRun) build(ctx context.Context, debian string) (disk, initramfs string, err error) {
	images := filepath.Join(r.work, "images.tar")
	if err := writeImages(images); err != nil {
		return "", "", fmt.Errorf("images: %w", err)
	}
	i := image{texts: machineTexts, links: machineLinks, programs: map[string]string{
		"usr/bin/kubeadm": filepath.Join(r.twins, "kubeadm"), "usr/bin/kubelet": filepath.Join(r.twins, "kubelet"),
		"usr/bin/kube-proxy": filepath.Join(r.twins, "kube-proxy"), "usr/bin/busybox": "/bin/busybox",
		"usr/local/bin/containerd":              filepath.Join(r.twins, "containerd"),
		"usr/local/bin/containerd-shim-runc-v2": filepath.Join(r.twins, "containerd-shim-runc-v2"),
		"root/images.tar":                       images,
	}}
	r.say("the machine's disk")
	disk, initramfs = filepath.Join(r.work, "disk"), filepath.Join(r.work, "initramfs")
	if err := i.write(ctx, debian, r.k, disk); err != nil {
		return "", "", fmt.Errorf("disk: %w", err)
	}
	if err := packDisk(initramfs, r.k); err != nil {
		return "", "", fmt.Errorf("initramfs: %w", err)
	}
	return disk, initramfs, nil
}

// serve starts the server and returns the arguments of the command by which machines join, and its end.
func (r *kubeadmRun) serve(ctx context.Context) (join []string, stop func() error, err error) {
	log, err := os.Create(filepath.Join(r.out, "server.log"))
	if err != nil {
		return nil, nil, err
	}
	data := filepath.Join(r.work, "d")
	server := exec.Command(r.skiff, "server", "--data-dir", data, "--node-ip", hostAddress, "--node-name", serverName)
	server.Stderr = log
	out, err := server.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := server.Start(); err != nil {
		return nil, nil, fmt.Errorf("start %s server: %w", r.skiff, err)
	}
	stop = func() error {
		_ = server.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = server.Wait()
		text, err := exec.Command(r.skiff, "down", "--purge", "--data-dir", data).CombinedOutput()
		if err != nil {
			return fmt.Errorf("skiff down: %w: %s", err, text)
		}
		return log.Close()
	}
	found := make(chan []string, 1)
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			fmt.Fprintln(log, lines.Text())
			if f := strings.Fields(lines.Text()); len(f) > 5 && f[0] == "skiff" && f[1] == "agent" {
				found <- f
			}
		}
	}()
	select {
	case join = <-found:
		r.say("the server is up")
		return join, stop, nil
	case <-time.After(5 * time.Minute):
		err = errors.New("the server does not say how to join")
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, nil, errors.Join(err, stop())
}

// kube runs kubectl as the cluster's administrator.
func (r *kubeadmRun) kube(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, r.kubectl, append([]string{"--kubeconfig", filepath.Join(r.work, "d", "kubeconfig")}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

// eventually tries until it works, the time is over or the machine is off.
func (r *kubeadmRun) eventually(ctx context.Context, within time.Duration, what string, try func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	for {
		err := try(ctx)
		if err == nil {
			r.say("%s", what)
			return nil
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return fmt.Errorf("not within %s: %w", within, err)
		case <-r.m.done:
			return fmt.Errorf("the machine is off: %w", err)
		}
	}
}
