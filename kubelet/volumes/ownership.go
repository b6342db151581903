package volumes

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	corev1 "k8s.io/api/core/v1"
)

// setGroup gives a volume to a pod's fsGroup: group ownership, group permissions
// as of the owner's need, and set-group-id directories so that new files belong to
// the group as well.
func setGroup(root string, gid int64, readOnly bool, policy *corev1.PodFSGroupChangePolicy) error {
	if policy != nil && *policy == corev1.FSGroupChangeOnRootMismatch {
		if fi, err := os.Stat(root); err == nil {
			if st, ok := fi.Sys().(*syscall.Stat_t); ok && int64(st.Gid) == gid && fi.Mode()&fs.ModeSetgid != 0 && fi.Mode().Perm()&0o070 == 0o070 {
				return nil
			}
		}
	}
	bits := os.FileMode(0o660)
	if readOnly {
		bits = 0o440
	}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if err := os.Lchown(path, -1, int(gid)); err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if fi.Mode()&fs.ModeSymlink != 0 {
			return nil
		}
		mode := fi.Mode() | bits
		if fi.IsDir() {
			mode |= fs.ModeSetgid | 0o110
		}
		return os.Chmod(path, mode)
	})
	if err != nil {
		return fmt.Errorf("give volume to fsGroup %d: %w", gid, err)
	}
	return nil
}

// commonUser is the user that all containers of the pod run as, if it is one.
func commonUser(pod *corev1.Pod) *int64 {
	var user *int64
	if sc := pod.Spec.SecurityContext; sc != nil {
		user = sc.RunAsUser
	}
	var common *int64
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			u := user
			if sc := list[i].SecurityContext; sc != nil && sc.RunAsUser != nil {
				u = sc.RunAsUser
			}
			if u == nil || common != nil && *common != *u {
				return nil
			}
			common = u
		}
	}
	return common
}
