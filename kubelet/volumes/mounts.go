package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/environ"
)

// Mounts are the CRI mounts of a container's volumeMounts. images says what the
// images of image volumes were resolved to, by volume.
func (m *Manager) Mounts(pod *corev1.Pod, c *corev1.Container, env []environ.Var, images map[string]string, recursiveReadOnly bool) ([]*runtimeapi.Mount, error) {
	out := make([]*runtimeapi.Mount, 0, len(c.VolumeMounts))
	for i := range c.VolumeMounts {
		vm := &c.VolumeMounts[i]
		m.mu.Lock()
		st := m.pods[pod.UID][vm.Name]
		m.mu.Unlock()
		if st == nil {
			return nil, fmt.Errorf("volume %q of mount %s is not set up", vm.Name, vm.MountPath)
		}
		sub, err := subPath(vm, env)
		if err != nil {
			return nil, err
		}
		mnt := &runtimeapi.Mount{ContainerPath: containerPath(c, vm.MountPath), HostPath: st.path, Readonly: vm.ReadOnly || st.readOnly, Propagation: propagation(vm.MountPropagation)}
		if st.image {
			mnt.Image = &runtimeapi.ImageSpec{Image: images[vm.Name], UserSpecifiedImage: imageOf(pod, vm.Name)}
			mnt.ImageSubPath, mnt.HostPath = sub, ""
		} else if sub != "" {
			if mnt.HostPath, err = m.bindSubPath(pod, c, vm, st, sub, i); err != nil {
				return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", vm.Name, c.Name, err)
			}
		}
		switch r := vm.RecursiveReadOnly; {
		case r == nil || *r == corev1.RecursiveReadOnlyDisabled:
		case *r == corev1.RecursiveReadOnlyIfPossible:
			mnt.RecursiveReadOnly = recursiveReadOnly && mnt.Readonly
		case *r == corev1.RecursiveReadOnlyEnabled:
			if !recursiveReadOnly {
				return nil, fmt.Errorf("volume %q requested recursive read-only mode, but it is not supported by the runtime", vm.Name)
			}
			mnt.RecursiveReadOnly = true
		}
		out = append(out, mnt)
	}
	// Parents before children, whatever the order in the spec.
	sort.SliceStable(out, func(i, j int) bool { return len(out[i].ContainerPath) < len(out[j].ContainerPath) })
	return out, nil
}

func imageOf(pod *corev1.Pod, volume string) string {
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; v.Name == volume && v.Image != nil {
			return v.Image.Reference
		}
	}
	return ""
}

func containerPath(c *corev1.Container, p string) string {
	if filepath.IsAbs(p) {
		return p
	}
	return filepath.Join("/", p)
}

func subPath(vm *corev1.VolumeMount, env []environ.Var) (string, error) {
	sub := vm.SubPath
	if vm.SubPathExpr != "" {
		lookup := environ.Lookup(env)
		var missing []string
		sub = environ.Expand(vm.SubPathExpr, func(name string) (string, bool) {
			v, ok := lookup(name)
			if !ok || v == "" {
				missing = append(missing, name)
			}
			return v, true
		})
		if len(missing) > 0 {
			return "", fmt.Errorf("missing value for %s", strings.Join(missing, ", "))
		}
	}
	if sub == "" {
		return "", nil
	}
	if filepath.IsAbs(sub) {
		return "", fmt.Errorf("error SubPath `%s` must not be an absolute path", sub)
	}
	for _, part := range strings.Split(sub, "/") {
		if part == ".." {
			return "", fmt.Errorf("unable to provision SubPath `%s`: must not contain '..'", sub)
		}
	}
	return filepath.Clean(sub), nil
}

// bindSubPath mounts the part of a volume on a path of its own. The volume's user
// may swap directories for links at any time, so the part is opened by a walk that
// cannot leave the volume, and what was opened is what gets mounted.
func (m *Manager) bindSubPath(pod *corev1.Pod, c *corev1.Container, vm *corev1.VolumeMount, st *state, sub string, index int) (string, error) {
	fi, err := os.Stat(st.path)
	if err != nil {
		return "", err
	}
	root, err := os.OpenRoot(st.path)
	if err != nil {
		return "", err
	}
	defer root.Close()
	if _, err := root.Stat(sub); errors.Is(err, fs.ErrNotExist) {
		if err := makeAll(root, sub, fi.Mode()); err != nil {
			return "", err
		}
	} else if err != nil {
		return "", err
	}
	// Not to hang on a pipe that nobody writes to.
	f, err := root.OpenFile(sub, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	part, err := f.Stat()
	if err != nil {
		return "", err
	}
	target := filepath.Join(m.PodDir(pod.UID), "volume-subpaths", vm.Name, c.Name, strconv.Itoa(index))
	if err := m.cfg.Mounts.Unmount(target); err != nil {
		return "", err
	}
	if err := os.RemoveAll(target); err != nil {
		return "", err
	}
	if part.IsDir() {
		err = os.MkdirAll(target, 0o750)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o750); err == nil {
		err = os.WriteFile(target, nil, 0o640)
	}
	if err != nil {
		return "", err
	}
	if err := m.cfg.Mounts.Bind("/proc/self/fd/"+strconv.Itoa(int(f.Fd())), target, false); err != nil {
		return "", err
	}
	return target, nil
}

// makeAll makes directories with the volume's own permissions.
func makeAll(root *os.Root, sub string, mode fs.FileMode) error {
	path := ""
	for _, part := range strings.Split(sub, "/") {
		path = filepath.Join(path, part)
		err := root.Mkdir(path, mode.Perm())
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := root.Chmod(path, mode.Perm()|mode&(fs.ModeSetgid|fs.ModeSticky)); err != nil {
			return err
		}
	}
	return nil
}

func propagation(p *corev1.MountPropagationMode) runtimeapi.MountPropagation {
	if p != nil {
		switch *p {
		case corev1.MountPropagationHostToContainer:
			return runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
		case corev1.MountPropagationBidirectional:
			return runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
		}
	}
	return runtimeapi.MountPropagation_PROPAGATION_PRIVATE
}
