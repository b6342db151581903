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

// baseKey names what the base is made of; a base once made is kept under it, whatever
// versions Debian has since.
func baseKey() string {
	sum := sha256.Sum256([]byte(fmt.Sprint(packages, finishVersion)))
	return hex.EncodeToString(sum[:])[:16]
}

// debianBase unpacks the packages and all that they depend on into one layer, kept in the
// cache. Maintainer scripts do not run; finish does what the tests need of theirs.
func debianBase(cache string) (v1.Layer, error) {
	layer := filepath.Join(cache, "base-"+baseKey()+".tar")
	if _, err := os.Stat(layer); errors.Is(err, fs.ErrNotExist) {
		debs, err := download(filepath.Join(cache, "debs-"+baseKey()), packages)
		if err != nil {
			return nil, err
		}
		if err := unpack(debs, filepath.Join(cache, "root"), layer); err != nil {
			return nil, err
		}
	}
	return tarball.LayerFromFile(layer)
}

// download returns the files of the packages and all that they depend on, of one moment's
// versions only.
func download(dir string, packages []string) ([]string, error) {
	if err := os.RemoveAll(dir); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(dir, "partial"), 0o755); err != nil {
		return nil, err
	}
	// An empty status file makes apt resolve as if nothing were installed.
	status := filepath.Join(dir, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, err
	}
	args := append([]string{"-o", "Dir::State::status=" + status, "-o", "Dir::Cache::archives=" + dir, "-o", "APT::Sandbox::User=root",
		"-y", "-q", "--no-install-recommends", "--download-only", "install"}, packages...)
	if out, err := exec.Command("apt-get", args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("apt-get %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("apt-get downloaded no package to %s", dir)
	}
	slices.Sort(files)
	return files, nil
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
