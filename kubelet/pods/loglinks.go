package pods

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Log collectors look for <pod>_<namespace>_<container>-<id>.log.

func (m *Manager) logLink(pod *corev1.Pod, container, id string) string {
	name := pod.Name + "_" + pod.Namespace + "_" + container
	if len(name) > 255-1-64-len(".log") {
		name = name[:255-1-64-len(".log")]
	}
	return filepath.Join(m.cfg.ContainerLogsDir, name+"-"+id+".log")
}

func (m *Manager) linkLog(pod *corev1.Pod, container, id, target string) {
	if m.cfg.ContainerLogsDir == "" {
		return
	}
	if _, err := os.Stat(target); err != nil {
		return // the runtime logs elsewhere
	}
	if err := os.Symlink(target, m.logLink(pod, container, id)); err != nil && !errors.Is(err, fs.ErrExist) {
		m.log.Warn("link container log", "error", err)
	}
}

func (m *Manager) unlinkLog(pod *corev1.Pod, container, id string) {
	if m.cfg.ContainerLogsDir == "" {
		return
	}
	if err := os.Remove(m.logLink(pod, container, id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("remove link to container log", "error", err)
	}
}

// cleanUpLogs removes the logs of pods that nobody knows, and links to nowhere.
func (m *Manager) cleanUpLogs(unknown func(types.UID) bool) {
	entries, err := os.ReadDir(m.cfg.PodLogsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("look for orphaned logs", "error", err)
	}
	for _, e := range entries {
		parts := strings.Split(e.Name(), "_")
		if len(parts) != 3 || !e.IsDir() || !unknown(types.UID(parts[2])) {
			continue
		}
		if err := os.RemoveAll(filepath.Join(m.cfg.PodLogsDir, e.Name())); err != nil {
			m.log.Warn("remove orphaned logs", "error", err)
		}
	}
	if m.cfg.ContainerLogsDir == "" {
		return
	}
	links, err := os.ReadDir(m.cfg.ContainerLogsDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.log.Warn("look for stale log links", "error", err)
	}
	for _, e := range links {
		path := filepath.Join(m.cfg.ContainerLogsDir, e.Name())
		target, err := os.Readlink(path)
		if err != nil || !strings.HasPrefix(target, m.cfg.PodLogsDir) {
			continue // not ours
		}
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			_ = os.Remove(path)
		}
	}
}
