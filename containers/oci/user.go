package oci

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// database is an image's /etc/passwd or /etc/group: lines of fields.
type database [][]string

// readDatabase reads a file of the root file system, resolving links within it.
// A missing file is an empty database.
func readDatabase(rootfs, name string) (database, error) {
	root, err := unix.Open(rootfs, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open root file system: %w", err)
	}
	defer func() { _ = unix.Close(root) }()
	fd, err := unix.Openat2(root, name, &unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	})
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open /%s of the image: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { _ = f.Close() }()
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		return nil, nil
	}
	var out database
	in := bufio.NewScanner(f)
	for in.Scan() {
		if line := strings.TrimSpace(in.Text()); line != "" && line[0] != '#' {
			out = append(out, strings.Split(line, ":"))
		}
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("read /%s of the image: %w", name, err)
	}
	return out, nil
}

// find returns the first entry whose name is key or whose ID (third field) is.
func (d database) find(key string) []string {
	for _, f := range d {
		if len(f) >= 4 && f[0] == key {
			return f
		}
	}
	for _, f := range d {
		if len(f) >= 4 && f[2] == key {
			return f
		}
	}
	return nil
}

// resolveUser decides who the container's process is: the security context's
// user and group, else the image's, looked up in the image's databases.
func resolveUser(rootfs string, sec *runtimeapi.LinuxContainerSecurityContext, imageUser string) (specs.User, error) {
	name, group, _ := strings.Cut(imageUser, ":")
	switch {
	case sec.GetRunAsUser() != nil:
		name, group = strconv.FormatInt(sec.GetRunAsUser().GetValue(), 10), ""
	case sec.GetRunAsUsername() != "":
		name, group = sec.GetRunAsUsername(), ""
	}
	if g := sec.GetRunAsGroup(); g != nil {
		if sec.GetRunAsUser() == nil && sec.GetRunAsUsername() == "" {
			return specs.User{}, errField("securityContext.runAsGroup", "needs runAsUser as well")
		}
		group = strconv.FormatInt(g.GetValue(), 10)
	}
	passwd, err := readDatabase(rootfs, "etc/passwd")
	if err != nil {
		return specs.User{}, err
	}
	groups, err := readDatabase(rootfs, "etc/group")
	if err != nil {
		return specs.User{}, err
	}
	out := specs.User{}
	login := ""
	if name == "" {
		name = "0"
	}
	if entry := passwd.find(name); entry != nil {
		login = entry[0]
		if out.UID, err = id(entry[2]); err == nil {
			out.GID, err = id(entry[3])
		}
		if err != nil {
			return specs.User{}, fmt.Errorf("user %q in the image's /etc/passwd: %w", name, err)
		}
	} else if out.UID, err = id(name); err != nil {
		return specs.User{}, fmt.Errorf("user %q: not a number and not in the image's /etc/passwd", name)
	}
	if group != "" {
		if entry := groups.find(group); entry != nil {
			group = entry[2]
		}
		if out.GID, err = id(group); err != nil {
			return specs.User{}, fmt.Errorf("group %q: not a number and not in the image's /etc/group", group)
		}
	}
	// The primary group is listed too, else a set-gid program could shed it
	// (CVE-2022-36109).
	out.AdditionalGids = []uint32{out.GID}
	add := func(g uint32) {
		if !slices.Contains(out.AdditionalGids, g) {
			out.AdditionalGids = append(out.AdditionalGids, g)
		}
	}
	if sec.GetSupplementalGroupsPolicy() == runtimeapi.SupplementalGroupsPolicy_Merge && login != "" {
		for _, g := range groups {
			if len(g) >= 4 && slices.Contains(strings.Split(g[3], ","), login) {
				if n, err := id(g[2]); err == nil {
					add(n)
				}
			}
		}
	}
	for _, g := range sec.GetSupplementalGroups() {
		if g < 0 || g > math.MaxUint32 {
			return specs.User{}, errField("securityContext.supplementalGroups", "%d is out of range", g)
		}
		add(uint32(g))
	}
	return out, nil
}

func id(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	return uint32(n), err
}
