package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// devices denies all but the few that every container has (libcontainer adds
// those), allows what the configuration lists, or everything when privileged.
func devices(spec *specs.Spec, in Input) error {
	res := spec.Linux.Resources
	if in.Container.GetLinux().GetSecurityContext().GetPrivileged() {
		found, err := under("/dev", "/dev")
		if err != nil {
			return err
		}
		spec.Linux.Devices = found
		res.Devices = []specs.LinuxDeviceCgroup{{Allow: true, Access: "rwm"}}
		return nil
	}
	res.Devices = []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}}
	for _, d := range in.Container.GetDevices() {
		host, err := filepath.EvalSymlinks(d.GetHostPath())
		if err != nil {
			return errField("devices.hostPath", "resolve %s: %w", d.GetHostPath(), err)
		}
		found, err := under(host, d.GetContainerPath())
		if err != nil {
			return errField("devices.hostPath", "%s: %w", d.GetHostPath(), err)
		}
		access := d.GetPermissions()
		if access == "" {
			access = "rwm"
		}
		for _, f := range found {
			spec.Linux.Devices = append(spec.Linux.Devices, f)
			major, minor := f.Major, f.Minor
			res.Devices = append(res.Devices, specs.LinuxDeviceCgroup{Allow: true, Type: f.Type, Major: &major, Minor: &minor, Access: access})
		}
	}
	return nil
}

// skipped below /dev: mounts that every container has of its own.
var skipped = map[string]bool{"pts": true, "shm": true, "fd": true, "mqueue": true, ".lxc": true, ".lxd-mounts": true, ".udev": true}

// under lists the device nodes at or beneath a path of the host, as they will
// be named in the container.
func under(host, container string) ([]specs.LinuxDevice, error) {
	var out []specs.LinuxDevice
	err := filepath.WalkDir(host, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && p != host {
			return nil
		}
		if err != nil {
			return err
		}
		if d.IsDir() {
			if p != host && skipped[d.Name()] {
				return filepath.SkipDir
			}
			return nil
		}
		if d.Type()&os.ModeDevice == 0 || (p != host && d.Name() == "console") {
			return nil
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			if errors.Is(err, unix.ENOENT) {
				return nil
			}
			return err
		}
		kind := "b"
		if st.Mode&unix.S_IFMT == unix.S_IFCHR {
			kind = "c"
		}
		mode := os.FileMode(st.Mode & 0o777)
		uid, gid := st.Uid, st.Gid
		out = append(out, specs.LinuxDevice{
			Path: filepath.Join(container, strings.TrimPrefix(p, host)), Type: kind,
			Major: int64(unix.Major(uint64(st.Rdev))), Minor: int64(unix.Minor(uint64(st.Rdev))),
			FileMode: &mode, UID: &uid, GID: &gid,
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list devices under %s: %w", host, err)
	}
	return out, nil
}
