package containers

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/record"
	"github.com/skiff-k8s/skiff/containers/sandbox"
)

// Newest formats of the records on disk.
const (
	sandboxVersion   = 1
	containerVersion = 1
)

// sandboxRecord is a sandbox on disk.
type sandboxRecord struct {
	record.Header
	ID       string    `json:"id"`
	Handler  string    `json:"handler,omitempty"`
	Config   []byte    `json:"config"` // CRI PodSandboxConfig, protobuf
	Created  time.Time `json:"created"`
	Ready    bool      `json:"ready"`
	Attached bool      `json:"attached"` // the network has it
	IPs      []string  `json:"ips,omitempty"`
	// Cgroup is the pod's; Own says that it was made for this sandbox alone.
	Cgroup string `json:"cgroup"`
	Own    bool   `json:"own,omitempty"`
}

type sandboxState struct {
	op  sync.Mutex // serialises stop and remove
	cfg *runtimeapi.PodSandboxConfig

	mu  sync.Mutex
	rec sandboxRecord
}

func (s *sandboxState) record() sandboxRecord {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec
}

// containerRecord is a container on disk.
type containerRecord struct {
	record.Header
	ID        string          `json:"id"`
	SandboxID string          `json:"sandboxID"`
	Config    []byte          `json:"config"` // CRI ContainerConfig, protobuf
	ImageID   digest.Digest   `json:"imageID"`
	ImageName string          `json:"imageName,omitempty"`
	ImageRef  string          `json:"imageRef,omitempty"`
	Chain     []digest.Digest `json:"chain"` // layers in use
	Cgroup    string          `json:"cgroup"`
	LogPath   string          `json:"logPath,omitempty"`
	Signal    string          `json:"stopSignal"`
	SharedPID bool            `json:"sharedPID,omitempty"` // killing its init leaves the others

	State    runtimeapi.ContainerState `json:"state"`
	Starting bool                      `json:"starting,omitempty"` // a monitor may have it
	PID      int                       `json:"pid,omitempty"`
	Created  time.Time                 `json:"created"`
	Started  time.Time                 `json:"started,omitzero"`
	Finished time.Time                 `json:"finished,omitzero"`
	ExitCode int32                     `json:"exitCode,omitempty"`
	Reason   string                    `json:"reason,omitempty"`
	Message  string                    `json:"message,omitempty"`
	UID      uint32                    `json:"uid"`
	GID      uint32                    `json:"gid"`
	Groups   []uint32                  `json:"groups,omitempty"`
	// Resources replaces those of Config after an update; protobuf.
	Resources []byte `json:"resources,omitempty"`
}

type containerState struct {
	op     sync.Mutex // serialises start, remove and update
	cfg    *runtimeapi.ContainerConfig
	exited chan struct{} // closed once it is known to have ended
	pod    string        // the sandbox's ID

	mu  sync.Mutex
	rec containerRecord
}

func (c *containerState) record() containerRecord {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rec
}

// newID is 64 hexadecimal digits, as CRI clients know them.
func newID() string {
	var b [32]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Directories of one sandbox or container: records, and what is gone at reboot.
func (r *Runtime) sandboxDir(id string) string   { return filepath.Join(r.sandboxRoot(), id) }
func (r *Runtime) sandboxRun(id string) string   { return filepath.Join(r.cfg.StateDir, "sandboxes", id) }
func (r *Runtime) containerDir(id string) string { return filepath.Join(r.containerRoot(), id) }
func (r *Runtime) containerRun(id string) string {
	return filepath.Join(r.cfg.StateDir, "containers", id)
}
func (r *Runtime) rootfs(id string) string   { return filepath.Join(r.containerRun(id), "rootfs") }
func (r *Runtime) upper(id string) string    { return filepath.Join(r.containerDir(id), "upper") }
func (r *Runtime) exitFile(id string) string { return filepath.Join(r.containerDir(id), "exit.json") }

// mappedRootfs is where the root file system of a container with a user
// namespace is mounted: its init must get there as a user that owns nothing on
// the host, and the state directory is closed to such.
func (r *Runtime) mappedRootfs(id string) string {
	sum := sha256.Sum256([]byte(r.cfg.StateDir))
	return filepath.Join("/run/skiff-userns", hex.EncodeToString(sum[:6]), id, "rootfs")
}

// updateSandbox changes a sandbox's record, on disk first.
func (r *Runtime) updateSandbox(s *sandboxState, change func(*sandboxRecord)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.rec
	change(&next)
	if err := record.Save(filepath.Join(r.sandboxDir(next.ID), "sandbox.json"), next, false); err != nil {
		return err
	}
	s.rec = next
	return nil
}

// updateContainer changes a container's record, on disk first.
func (r *Runtime) updateContainer(c *containerState, change func(*containerRecord)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next := c.rec
	change(&next)
	if err := record.Save(filepath.Join(r.containerDir(next.ID), "container.json"), next, false); err != nil {
		return err
	}
	c.rec = next
	return nil
}

// sandboxFor finds a sandbox by ID or by an unambiguous beginning of it.
func (r *Runtime) sandboxFor(id string) (*sandboxState, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return lookup(r.sandboxes, "sandbox", id)
}

// containerFor finds a container by ID or by an unambiguous beginning of it.
func (r *Runtime) containerFor(id string) (*containerState, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return lookup(r.containers, "container", id)
}

func lookup[T any](all map[string]T, kind, id string) (T, error) {
	var none T
	if got, ok := all[id]; ok {
		return got, nil
	}
	if id == "" {
		return none, status.Errorf(codes.InvalidArgument, "%s ID is empty", kind)
	}
	found, matches := none, 0
	for k, v := range all {
		if strings.HasPrefix(k, id) {
			found = v
			matches++
		}
	}
	switch matches {
	case 1:
		return found, nil
	case 0:
		return none, status.Errorf(codes.NotFound, "%s %q not found", kind, id)
	}
	return none, status.Errorf(codes.InvalidArgument, "%s ID %q is ambiguous: %d begin with it", kind, id, matches)
}

// containersOf lists a sandbox's containers.
func (r *Runtime) containersOf(sandboxID string) []*containerState {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var out []*containerState
	for _, c := range r.containers {
		if c.pod == sandboxID {
			out = append(out, c)
		}
	}
	return out
}

// loadRecords reads what is on disk. A record that cannot be read is left
// where it is, for Purge, and told; one of a newer skiff stops the runtime.
func (r *Runtime) loadRecords() error {
	err := eachDir(r.sandboxRoot(), func(id string) error {
		s := &sandboxState{cfg: &runtimeapi.PodSandboxConfig{}}
		if err := record.Load(filepath.Join(r.sandboxDir(id), "sandbox.json"), &s.rec, sandboxVersion); err != nil {
			return err
		}
		if err := proto.Unmarshal(s.rec.Config, s.cfg); err != nil {
			return err
		}
		r.sandboxes[id] = s
		return nil
	}, r.tellUnusable)
	if err != nil {
		return err
	}
	return eachDir(r.containerRoot(), func(id string) error {
		c := &containerState{cfg: &runtimeapi.ContainerConfig{}, exited: make(chan struct{})}
		if err := record.Load(filepath.Join(r.containerDir(id), "container.json"), &c.rec, containerVersion); err != nil {
			return err
		}
		if err := proto.Unmarshal(c.rec.Config, c.cfg); err != nil {
			return err
		}
		c.pod = c.rec.SandboxID
		if c.rec.State == runtimeapi.ContainerState_CONTAINER_EXITED {
			close(c.exited)
		}
		r.containers[id] = c
		return nil
	}, r.tellUnusable)
}

func (r *Runtime) tellUnusable(dir string, err error) error {
	if errors.Is(err, record.ErrNewer) {
		return err
	}
	if errors.Is(err, os.ErrNotExist) {
		// Killed between making the directory and the record: nothing more
		// than the directory was made.
		return os.RemoveAll(dir)
	}
	r.log.Warn("ignoring an unusable record", "dir", dir, "err", err)
	return nil
}

func eachDir(root string, f func(name string) error, failed func(dir string, err error) error) error {
	entries, err := os.ReadDir(root)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read records: %w", err)
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := f(e.Name()); err != nil {
			if err := failed(filepath.Join(root, e.Name()), err); err != nil {
				return err
			}
		}
	}
	return nil
}

// sandboxConfig says what the sandbox needs, from its CRI configuration.
func (r *Runtime) sandboxConfig(id string, cfg *runtimeapi.PodSandboxConfig) sandbox.Config {
	sec := cfg.GetLinux().GetSecurityContext()
	ns := sec.GetNamespaceOptions()
	out := sandbox.Config{
		Dir: r.sandboxRun(id), Hostname: cfg.GetHostname(), Pause: r.monitor,
		Net:     ns.GetNetwork() != runtimeapi.NamespaceMode_NODE,
		IPC:     ns.GetIpc() != runtimeapi.NamespaceMode_NODE,
		PID:     ns.GetPid() == runtimeapi.NamespaceMode_POD,
		Sysctls: cfg.GetLinux().GetSysctls(),
		DNS: sandbox.DNS{
			Servers:  cfg.GetDnsConfig().GetServers(),
			Searches: cfg.GetDnsConfig().GetSearches(),
			Options:  cfg.GetDnsConfig().GetOptions(),
		},
	}
	if u := ns.GetUsernsOptions(); u.GetMode() == runtimeapi.NamespaceMode_POD {
		out.UIDs, out.GIDs = sandboxMappings(u.GetUids()), sandboxMappings(u.GetGids())
	}
	return out
}

func sandboxMappings(in []*runtimeapi.IDMapping) []sandbox.Mapping {
	var out []sandbox.Mapping
	for _, m := range in {
		out = append(out, sandbox.Mapping{Container: m.GetContainerId(), Host: m.GetHostId(), Length: m.GetLength()})
	}
	return out
}
