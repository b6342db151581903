package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// packages make the base that most images share.
var packages = []string{"base-files", "base-passwd", "bash", "bind9-dnsutils", "bind9-host", "busybox", "ca-certificates", "coreutils",
	"curl", "findutils", "gawk", "grep", "gzip", "iproute2", "iputils-ping", "libc-bin", "mawk", "mount", "netcat-openbsd", "nginx-light",
	"perl-base", "procps", "sed", "socat", "tar", "util-linux", "hostname"}

// debianBase unpacks the packages and all that they depend on into one layer, kept in the
// cache under a name that follows from the exact package files. Maintainer scripts
// do not run; finish does what the tests need of theirs.
func debianBase(cache string) (v1.Layer, error) {
	debs := filepath.Join(cache, "debs")
	if err := os.MkdirAll(filepath.Join(debs, "partial"), 0o755); err != nil {
		return nil, err
	}
	// An empty status file makes apt resolve as if nothing were installed.
	status := filepath.Join(cache, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, err
	}
	args := append([]string{"-o", "Dir::State::status=" + status, "-o", "Dir::Cache::archives=" + debs, "-o", "APT::Sandbox::User=root",
		"-y", "-q", "--no-install-recommends", "--download-only", "install"}, packages...)
	if out, err := exec.Command("apt-get", args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	files, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	sum := sha256.New()
	for _, f := range files {
		fmt.Fprintln(sum, filepath.Base(f))
	}
	fmt.Fprintln(sum, finishVersion)
	layer := filepath.Join(cache, "base-"+hex.EncodeToString(sum.Sum(nil))[:16]+".tar")
	if _, err := os.Stat(layer); errors.Is(err, fs.ErrNotExist) {
		if err := unpack(files, filepath.Join(cache, "root"), layer); err != nil {
			return nil, err
		}
	}
	return tarball.LayerFromFile(layer)
}

func unpack(debs []string, root, layer string) error {
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	// Debian's usrmerge layout, as debootstrap lays it.
	for _, d := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(root, "usr", d), 0o755); err != nil {
			return err
		}
		if err := os.Symlink("usr/"+d, filepath.Join(root, d)); err != nil {
			return err
		}
	}
	for _, deb := range debs {
		cmd := exec.Command("sh", "-c", `dpkg-deb --fsys-tarfile "$0" | tar -x --keep-directory-symlink -C "$1" --exclude=./usr/share/doc --exclude=./usr/share/man --exclude=./usr/share/locale`, deb, root)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("unpack %s: %w\n%s", filepath.Base(deb), err, out)
		}
	}
	if err := finish(root); err != nil {
		return err
	}
	tmp := layer + ".new"
	cmd := exec.Command("tar", "--sort=name", "--mtime=@0", "--numeric-owner", "-C", root, "-cf", tmp, ".")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("pack base: %w\n%s", err, out)
	}
	if err := os.RemoveAll(root); err != nil {
		return err
	}
	return os.Rename(tmp, layer)
}

// finishVersion changes whenever finish does.
const finishVersion = 1

// finish does what maintainer scripts would have done.
func finish(root string) error {
	at := func(p string) string { return filepath.Join(root, p) }
	for _, c := range []struct{ from, to string }{
		{"usr/share/base-passwd/passwd.master", "etc/passwd"}, {"usr/share/base-passwd/group.master", "etc/group"},
	} {
		if err := copyFile(at(c.from), at(c.to)); err != nil {
			return err
		}
	}
	users := "user-defined-in-image:x:1000:50000:User for tests:/home/user-defined-in-image:/bin/bash\n"
	groups := "group-defined-in-image:x:50000:user-defined-in-image\n"
	for path, text := range map[string]string{"etc/passwd": users, "etc/group": groups} {
		f, err := os.OpenFile(at(path), os.O_APPEND|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, err = f.WriteString(text)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	for link, target := range map[string]string{"usr/bin/sh": "bash", "usr/bin/nc": "nc.openbsd", "usr/bin/awk": "mawk"} {
		if err := os.Remove(at(link)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.Symlink(target, at(link)); err != nil {
			return err
		}
	}
	if err := os.Chmod(at("tmp"), 0o1777); err != nil {
		return err
	}
	if out, err := exec.Command("ldconfig", "-r", root).CombinedOutput(); err != nil {
		return fmt.Errorf("ldconfig: %w\n%s", err, out)
	}
	return nil
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
