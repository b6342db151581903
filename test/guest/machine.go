package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// The machine's one link is a tap device of the host's; each has an address there.
const (
	machineName    = "machine"
	serverName     = "first"
	machineAddress = "192.168.233.2"
	hostAddress    = "192.168.233.1"
	tap            = "skg0"
	// The machine runs what is sent here, see runScript.
	scriptPort = "7777"
)

// machinePackages are Debian's, beside its minimal system.
var machinePackages = []string{
	"systemd", "systemd-sysv", "dbus", "kmod", "procps", "mount", "util-linux", "iproute2", "iptables", "nftables", "conntrack", "ethtool", "socat",
	"ca-certificates", "runc", "containerd", "containernetworking-plugins",
}

// fetchDebian makes the machine's root file system once: Debian's packages and nothing else.
func fetchDebian(ctx context.Context, cache, log string) (string, error) {
	dir := filepath.Join(cache, "debian-"+sum(strings.Join(machinePackages, ",")))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if _, err := exec.LookPath("debootstrap"); err != nil {
		return "", errors.New("debootstrap is missing: apt-get install debootstrap")
	}
	fmt.Println("downloading Debian's packages: minutes")
	out, err := os.Create(log)
	if err != nil {
		return "", err
	}
	defer out.Close()
	tmp, err := os.MkdirTemp(cache, "debian-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(tmp)
	cmd := exec.CommandContext(ctx, "debootstrap", "--variant=minbase", "--include="+strings.Join(machinePackages, ","), "bookworm", filepath.Join(tmp, "root"))
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("debootstrap: %w; it says more in %s", err, log)
	}
	return dir, os.Rename(filepath.Join(tmp, "root"), dir)
}

// image is a machine's disk to be: files of this tree on top of Debian's.
type image struct {
	programs map[string]string // path in the machine: file of this host
	texts    map[string]string
	links    map[string]string
}

// write makes the disk. Debian's files are linked, not copied, so that each file is replaced, never written to.
func (i *image) write(ctx context.Context, debian string, k kernel, disk string) error {
	root, err := os.MkdirTemp(filepath.Dir(debian), "root-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	version := filepath.Base(k.modules)
	for _, args := range [][]string{
		{"cp", "-al", debian + "/.", root},
		{"mkdir", "-p", filepath.Join(root, "usr/lib/modules")},
		{"cp", "-r", k.modules, filepath.Join(root, "usr/lib/modules")},
		// kubeadm looks there for how the kernel was configured.
		{"cp", filepath.Join(filepath.Dir(k.image), "config-"+version), filepath.Join(root, "boot")},
		{"chroot", root, "depmod", version},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	for at, from := range i.programs {
		b, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := replace(root, at, b, 0o755); err != nil {
			return err
		}
	}
	for at, text := range i.texts {
		perm := fs.FileMode(0o644)
		if strings.HasPrefix(text, "#!") {
			perm = 0o755
		}
		if err := replace(root, at, []byte(text), perm); err != nil {
			return err
		}
	}
	for at, target := range i.links {
		at = filepath.Join(root, at)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o755), os.RemoveAll(at), os.Symlink(target, at)); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(disk); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, "/sbin/mke2fs", "-q", "-F", "-t", "ext4", "-d", root, disk, "4G").CombinedOutput(); err != nil {
		return fmt.Errorf("mke2fs (Debian's package e2fsprogs): %w\n%s", err, out)
	}
	return nil
}

func replace(root, at string, b []byte, perm fs.FileMode) error {
	at = filepath.Join(root, at)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if err := os.RemoveAll(at); err != nil {
		return err
	}
	return os.WriteFile(at, b, perm)
}

// diskInit is the first process of the initramfs: it knows enough to find the disk.
const diskInit = `#!/bin/busybox sh
for m in /modules/*.ko; do /bin/busybox insmod $m; done
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t ext4 /dev/vda /new || { echo "guest: there is no disk"; /bin/busybox poweroff -f; }
/bin/busybox mount --move /dev /new/dev
exec /bin/busybox switch_root /new /sbin/init
`

func packDisk(name string, k kernel) error {
	a, err := newArchive(name)
	if err != nil {
		return err
	}
	a.bytes("init", 0o755, []byte(diskInit))
	a.file("bin/busybox", "/bin/busybox", 0o755)
	order, err := inOrder(k.modules, []string{"virtio_pci", "virtio_blk"})
	if err != nil {
		return errors.Join(err, a.close())
	}
	for i, m := range order {
		a.file(path.Join("modules", fmt.Sprintf("%03d-%s", i, filepath.Base(m))), m, 0o644)
	}
	return a.close()
}

// running is a machine that was switched on.
type running struct {
	cmd  *exec.Cmd
	done chan struct{} // closed when it is off
}

// switchOn boots the disk, with the console in a file.
func switchOn(k kernel, initramfs, disk string, memory int, console io.Writer) (*running, error) {
	cmd := exec.Command("nice", "-n", "10", "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-machine", "q35", "-cpu", "max", "-smp", "2",
		"-m", fmt.Sprint(memory), "-display", "none", "-monitor", "none", "-no-reboot", "-serial", "stdio",
		"-netdev", "tap,id=net,ifname="+tap+",script=no,downscript=no", "-device", "virtio-net-pci,netdev=net",
		"-drive", "if=virtio,format=raw,cache=unsafe,file="+disk, "-kernel", k.image, "-initrd", initramfs,
		"-append", "console=ttyS0 panic=-1 clocksource=hpet tsc=unstable net.ifnames=0 systemd.unified_cgroup_hierarchy=1")
	cmd.Stdout, cmd.Stderr = console, console
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start qemu-system-x86_64: %w", err)
	}
	r := &running{cmd: cmd, done: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // it was killed, or the console says why
		close(r.done)
	}()
	return r, nil
}

func (r *running) switchOff() {
	_ = r.cmd.Process.Kill() // it may be off
	<-r.done
}

// run has a script run by the machine's shell and returns what it said.
func (r *running) run(ctx context.Context, script string) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", net.JoinHostPort(machineAddress, scriptPort))
	if err != nil {
		return "", err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Now()) })()
	if _, err := io.WriteString(conn, script); err != nil {
		return "", err
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	b, err := io.ReadAll(conn)
	if err != nil {
		return string(b), errors.Join(err, ctx.Err())
	}
	return verdict(b)
}

// verdict splits what runScript says last, how the script ended, from what the script said.
func verdict(b []byte) (string, error) {
	b = bytes.TrimSuffix(b, []byte("\n"))
	at := bytes.LastIndexByte(b, '\n')
	code, ok := strings.CutPrefix(string(b[at+1:]), "exit ")
	out := string(b[:max(at, 0)])
	if !ok {
		return string(b), errors.New("the machine did not say how the script ended")
	}
	if code != "0" {
		return out, fmt.Errorf("exit status %s", code)
	}
	return out, nil
}
