package pods

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// User namespaces of pods (KEP-127): each pod gets 65,536 ids of the host that no
// other pod has. Which ones is kept in the pod's directory, in upstream's format,
// for as long as the pod lives.
const (
	idsPerPod = 65536
	firstIDs  = idsPerPod // those below are the host's own
	idRanges  = 1024
)

type idMapping struct {
	HostID      uint32 `json:"hostId"`
	ContainerID uint32 `json:"containerId"`
	Length      uint32 `json:"length"`
}

type userNamespaceFile struct {
	UIDs []idMapping `json:"uidMappings"`
	GIDs []idMapping `json:"gidMappings"`
}

// userTable is which range belongs to whom.
type userTable struct {
	mu     sync.Mutex
	loaded bool
	ranges map[uint32]types.UID // by first id
}

func (t *userTable) release(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for first, owner := range t.ranges {
		if owner == uid {
			delete(t.ranges, first)
		}
	}
}

// userNamespace is the pod's own, nil if it has none.
func (m *Manager) userNamespace(ctx context.Context, pod *corev1.Pod) (*runtimeapi.UserNamespace, error) {
	if pod.Spec.HostUsers == nil || *pod.Spec.HostUsers {
		return nil, nil
	}
	handler, err := m.handler(ctx, pod)
	if err != nil {
		return nil, err
	}
	// A runtime that does not know user namespaces would pass over them in silence: the pod's
	// root would be the host's.
	if err := m.supportsUsers(handler); err != nil {
		return nil, err
	}
	path := func(uid types.UID) string { return filepath.Join(m.cfg.Volumes.PodDir(uid), "userns") }
	t := &m.users
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.loaded {
		t.ranges = map[uint32]types.UID{}
		uids, err := m.cfg.Volumes.Pods()
		if err != nil {
			return nil, err
		}
		for _, uid := range uids {
			f, err := readUserNamespace(path(uid))
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			t.ranges[f.UIDs[0].HostID] = uid
		}
		t.loaded = true
	}
	for first, owner := range t.ranges {
		if owner == pod.UID {
			return usersFrom(first), nil
		}
	}
	for i := uint32(0); i < idRanges; i++ {
		first := uint32(firstIDs) + i*idsPerPod
		if _, taken := t.ranges[first]; taken {
			continue
		}
		ids := []idMapping{{HostID: first, Length: idsPerPod}}
		raw, err := json.Marshal(userNamespaceFile{UIDs: ids, GIDs: ids})
		if err != nil {
			return nil, err
		}
		if err := makeDir(m.cfg.Volumes.PodDir(pod.UID)); err != nil {
			return nil, err
		}
		if err := os.WriteFile(path(pod.UID), raw, 0o644); err != nil {
			return nil, fmt.Errorf("remember the pod's user ids: %w", err)
		}
		t.ranges[first] = pod.UID
		return usersFrom(first), nil
	}
	return nil, fmt.Errorf("all %d ranges of user ids are taken", idRanges)
}

func usersFrom(first uint32) *runtimeapi.UserNamespace {
	ids := []*runtimeapi.IDMapping{{HostId: first, Length: idsPerPod}}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
}

func readUserNamespace(path string) (userNamespaceFile, error) {
	var f userNamespaceFile
	raw, err := os.ReadFile(path)
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(raw, &f); err != nil || len(f.UIDs) != 1 {
		return f, fmt.Errorf("%s is not a record of user ids: %v", path, err)
	}
	return f, nil
}
