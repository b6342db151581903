package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// checkHostPath makes or checks a host path by its type.
func checkHostPath(path string, kind *corev1.HostPathType) error {
	if kind == nil || *kind == corev1.HostPathUnset {
		return nil
	}
	fi, err := os.Stat(path)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return fmt.Errorf("hostPath type check failed: %w", err)
	}
	is := func(ok func(fs.FileMode) bool, what string) error {
		if missing || !ok(fi.Mode()) {
			return fmt.Errorf("hostPath type check failed: %s is not a %s", path, what)
		}
		return nil
	}
	switch *kind {
	case corev1.HostPathDirectoryOrCreate:
		if missing {
			if err := os.MkdirAll(path, 0o755); err != nil {
				return fmt.Errorf("make host path: %w", err)
			}
			return nil
		}
		return is(fs.FileMode.IsDir, "directory")
	case corev1.HostPathDirectory:
		return is(fs.FileMode.IsDir, "directory")
	case corev1.HostPathFileOrCreate:
		if missing {
			f, err := os.OpenFile(path, os.O_CREATE, 0o644)
			if err != nil {
				return fmt.Errorf("make host path: %w", err)
			}
			return f.Close()
		}
		return is(fs.FileMode.IsRegular, "file")
	case corev1.HostPathFile:
		return is(fs.FileMode.IsRegular, "file")
	case corev1.HostPathSocket:
		return is(func(m fs.FileMode) bool { return m&fs.ModeSocket != 0 }, "socket file")
	case corev1.HostPathCharDev:
		return is(func(m fs.FileMode) bool { return m&fs.ModeCharDevice != 0 }, "character device")
	case corev1.HostPathBlockDev:
		return is(func(m fs.FileMode) bool { return m&fs.ModeDevice != 0 && m&fs.ModeCharDevice == 0 }, "block device")
	}
	return fmt.Errorf("%s is an invalid volume type", *kind)
}

// persistent resolves a claim to a path of this node.
func (m *Manager) persistent(ctx context.Context, pod *corev1.Pod, claim string) (*state, error) {
	if m.cfg.Client == nil {
		return nil, fmt.Errorf("a kubelet without API server cannot use persistent volume claims")
	}
	pvc, err := m.cfg.Client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, claim, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read claim %s: %w", claim, err)
	}
	if pvc.Status.Phase != corev1.ClaimBound || pvc.Spec.VolumeName == "" {
		return nil, fmt.Errorf("PVC %s/%s has not been bound to a volume yet", pod.Namespace, claim)
	}
	pv, err := m.cfg.Client.CoreV1().PersistentVolumes().Get(ctx, pvc.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read persistent volume %s: %w", pvc.Spec.VolumeName, err)
	}
	if r := pv.Spec.ClaimRef; r == nil || r.UID != pvc.UID {
		return nil, fmt.Errorf("persistent volume %s is not bound to claim %s", pv.Name, claim)
	}
	var path string
	switch {
	case pv.Spec.HostPath != nil:
		path = pv.Spec.HostPath.Path
		if err := checkHostPath(path, pv.Spec.HostPath.Type); err != nil {
			return nil, err
		}
		return &state{path: path}, nil
	case pv.Spec.Local != nil:
		path = pv.Spec.Local.Path
	default:
		return nil, fmt.Errorf("persistent volume %s is of a kind that this kubelet does not support: use hostPath or local", pv.Name)
	}
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("local volume %s: %w", pv.Name, err)
	}
	if sc := pod.Spec.SecurityContext; sc != nil && sc.FSGroup != nil {
		if err := setGroup(path, *sc.FSGroup, false, sc.FSGroupChangePolicy); err != nil {
			return nil, err
		}
	}
	return &state{path: path}, nil
}
