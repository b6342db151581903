package pods

import (
	"io"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/logs"
)

// Limits of termination messages, as upstream.
const (
	maxMessage      = 4096
	maxMessageLog   = 2048
	maxMessageLines = 80
)

// ReadTerminationMessage is what a finished container left in its termination
// message file, or, if it failed without a word and its policy says so, the end of
// its log.
func ReadTerminationMessage(st *runtimeapi.ContainerStatus) string {
	path, policy := cri.TerminationMessage(st.Annotations)
	if path == "" {
		return ""
	}
	for _, m := range st.Mounts {
		if filepath.Clean(m.ContainerPath) != filepath.Clean(path) {
			continue
		}
		if raw := tail(m.HostPath, maxMessage); len(raw) > 0 {
			return string(raw)
		}
		break
	}
	if policy == corev1.TerminationMessageFallbackToLogsOnError && st.ExitCode != 0 && st.LogPath != "" {
		return logs.Tail(st.LogPath, maxMessageLines, maxMessageLog)
	}
	return ""
}

// tail reads the last bytes of a file that a container wrote: no link is followed.
func tail(path string, limit int64) []byte {
	fi, err := os.Lstat(path)
	if err != nil || !fi.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close()
	if fi.Size() > limit {
		if _, err := f.Seek(-limit, io.SeekEnd); err != nil {
			return nil
		}
	}
	raw, err := io.ReadAll(io.LimitReader(f, limit))
	if err != nil {
		return nil
	}
	return raw
}
