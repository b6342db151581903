package containers

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/containers/cgroup"
	"github.com/skiff-k8s/skiff/containers/record"
	"github.com/skiff-k8s/skiff/containers/sandbox"
)

// RunPodSandbox makes a sandbox and connects it.
func (r *Runtime) RunPodSandbox(ctx context.Context, req *runtimeapi.RunPodSandboxRequest) (*runtimeapi.RunPodSandboxResponse, error) {
	cfg := req.GetConfig()
	if cfg.GetMetadata().GetName() == "" {
		return nil, status.Error(codes.InvalidArgument, "config.metadata.name: required")
	}
	if h := req.GetRuntimeHandler(); h != "" && h != "skiff" && !slices.Contains(r.cfg.RuntimeHandlers, h) {
		return nil, status.Errorf(codes.InvalidArgument, "runtimeHandler: %q is not known; this runtime has \"skiff\"", h)
	}
	if err := r.checkUserNamespace(cfg.GetLinux().GetSecurityContext().GetNamespaceOptions().GetUsernsOptions()); err != nil {
		return nil, err
	}
	b, err := proto.Marshal(cfg)
	if err != nil {
		return nil, fmt.Errorf("encode sandbox configuration: %w", err)
	}
	id := newID()
	s := &sandboxState{cfg: cfg, rec: sandboxRecord{
		Header: record.Header{Version: sandboxVersion},
		ID:     id, Handler: req.GetRuntimeHandler(), Config: b, Created: time.Now(),
		Cgroup: cfg.GetLinux().GetCgroupParent(),
	}}
	if s.rec.Cgroup == "" {
		s.rec.Cgroup, s.rec.Own = filepath.Join(r.cfg.CgroupRoot, id), true
	}
	if err := os.MkdirAll(r.sandboxDir(id), 0o700); err != nil {
		return nil, fmt.Errorf("make sandbox record: %w", err)
	}
	// First the record, so that whatever comes next is found after a kill.
	if err := r.updateSandbox(s, func(*sandboxRecord) {}); err != nil {
		return nil, err
	}
	if err := r.makeSandbox(ctx, s); err != nil {
		if cerr := r.dropSandbox(context.WithoutCancel(ctx), s); cerr != nil {
			r.log.Warn("failed sandbox not fully removed", "sandbox", id, "err", cerr)
			r.mu.Lock()
			r.sandboxes[id] = s // for the client to remove
			r.mu.Unlock()
		}
		return nil, err
	}
	r.mu.Lock()
	r.sandboxes[id] = s
	r.mu.Unlock()
	r.publish(id, runtimeapi.ContainerEventType_CONTAINER_CREATED_EVENT, id)
	r.publish(id, runtimeapi.ContainerEventType_CONTAINER_STARTED_EVENT, id)
	return &runtimeapi.RunPodSandboxResponse{PodSandboxId: id}, nil
}

func (r *Runtime) makeSandbox(ctx context.Context, s *sandboxState) error {
	rec := s.record()
	sc := r.sandboxConfig(rec.ID, s.cfg)
	if err := sandbox.Create(sc); err != nil {
		return fmt.Errorf("make sandbox: %w", err)
	}
	var ips []string
	if sc.Net {
		// Noted first: a kill during Attach must lead to a Detach.
		if err := r.updateSandbox(s, func(x *sandboxRecord) { x.Attached = true }); err != nil {
			return err
		}
		addrs, err := r.cfg.Network.Attach(ctx, r.networkSandbox(s))
		if err != nil {
			return fmt.Errorf("connect sandbox to the network: %w", err)
		}
		for _, a := range addrs.IPs {
			ips = append(ips, a.String())
		}
	}
	return r.updateSandbox(s, func(x *sandboxRecord) { x.Ready, x.IPs = true, ips })
}

// checkUserNamespace refuses what no sandbox can have: a namespace of another scope than pod
// or node, and mappings without root or of one ID twice.
func (r *Runtime) checkUserNamespace(u *runtimeapi.UserNamespace) error {
	switch {
	case u == nil || u.GetMode() == runtimeapi.NamespaceMode_NODE:
		return nil
	case u.GetMode() != runtimeapi.NamespaceMode_POD:
		return status.Errorf(codes.InvalidArgument, "usernsOptions.mode: %s is not supported; use POD or NODE", u.GetMode())
	}
	for field, ids := range map[string][]*runtimeapi.IDMapping{"uids": u.GetUids(), "gids": u.GetGids()} {
		root := false
		for i, m := range ids {
			root = root || m.GetContainerId() == 0 && m.GetLength() > 0
			for _, o := range ids[:i] {
				if overlap(m.GetContainerId(), o.GetContainerId(), m.GetLength(), o.GetLength()) || overlap(m.GetHostId(), o.GetHostId(), m.GetLength(), o.GetLength()) {
					return status.Errorf(codes.InvalidArgument, "usernsOptions.%s: two mappings have IDs in common", field)
				}
			}
		}
		if !root {
			return status.Errorf(codes.InvalidArgument, "usernsOptions.%s: ID 0 of the container is not mapped", field)
		}
	}
	if r.unmappable != nil {
		return status.Errorf(codes.FailedPrecondition, "user namespaces: %v", r.unmappable)
	}
	return nil
}

// overlap says whether two ranges share a number.
func overlap(a, b, lengthA, lengthB uint32) bool {
	return uint64(a) < uint64(b)+uint64(lengthB) && uint64(b) < uint64(a)+uint64(lengthA)
}

func (r *Runtime) networkSandbox(s *sandboxState) Sandbox {
	m := s.cfg.GetMetadata()
	id := s.record().ID
	return Sandbox{
		ID: id, Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUid(),
		NetNSPath: sandbox.Layout(r.sandboxConfig(id, s.cfg)).Net, Hostname: s.cfg.GetHostname(),
		PortMappings: s.cfg.GetPortMappings(), Annotations: s.cfg.GetAnnotations(), DNS: s.cfg.GetDnsConfig(),
	}
}

// releaseSandbox gives back network and namespaces.
func (r *Runtime) releaseSandbox(ctx context.Context, s *sandboxState) error {
	rec := s.record()
	if rec.Attached {
		if err := r.cfg.Network.Detach(ctx, r.networkSandbox(s)); err != nil {
			return fmt.Errorf("disconnect sandbox from the network: %w", err)
		}
		if err := r.updateSandbox(s, func(x *sandboxRecord) { x.Attached = false }); err != nil {
			return err
		}
	}
	return sandbox.Release(r.sandboxRun(rec.ID))
}

// dropSandbox takes everything of a sandbox away, its record last.
func (r *Runtime) dropSandbox(ctx context.Context, s *sandboxState) error {
	if err := r.releaseSandbox(ctx, s); err != nil {
		return err
	}
	rec := s.record()
	if err := sandbox.Remove(r.sandboxRun(rec.ID)); err != nil {
		return err
	}
	if rec.Own {
		if err := cgroup.At(rec.Cgroup).Remove(); err != nil {
			return err
		}
	}
	if err := os.RemoveAll(r.sandboxDir(rec.ID)); err != nil {
		return fmt.Errorf("remove sandbox record: %w", err)
	}
	return nil
}

// StopPodSandbox ends the sandbox's containers and gives its resources back.
func (r *Runtime) StopPodSandbox(ctx context.Context, req *runtimeapi.StopPodSandboxRequest) (*runtimeapi.StopPodSandboxResponse, error) {
	s, err := r.sandboxFor(req.GetPodSandboxId())
	if status.Code(err) == codes.NotFound {
		return &runtimeapi.StopPodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	s.op.Lock()
	defer s.op.Unlock()
	if err := r.stopSandbox(ctx, s); err != nil {
		return nil, err
	}
	return &runtimeapi.StopPodSandboxResponse{}, nil
}

func (r *Runtime) stopSandbox(ctx context.Context, s *sandboxState) error {
	rec := s.record()
	var errs []error
	for _, c := range r.containersOf(rec.ID) {
		errs = append(errs, r.stopContainer(ctx, c, 0))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := r.releaseSandbox(ctx, s); err != nil {
		return err
	}
	if !rec.Ready {
		return nil
	}
	if err := r.updateSandbox(s, func(x *sandboxRecord) { x.Ready = false }); err != nil {
		return err
	}
	r.publish(rec.ID, runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT, rec.ID)
	return nil
}

// RemovePodSandbox removes the sandbox and its containers, by force.
func (r *Runtime) RemovePodSandbox(ctx context.Context, req *runtimeapi.RemovePodSandboxRequest) (*runtimeapi.RemovePodSandboxResponse, error) {
	s, err := r.sandboxFor(req.GetPodSandboxId())
	if status.Code(err) == codes.NotFound {
		return &runtimeapi.RemovePodSandboxResponse{}, nil
	}
	if err != nil {
		return nil, err
	}
	s.op.Lock()
	defer s.op.Unlock()
	if err := r.stopSandbox(ctx, s); err != nil {
		return nil, err
	}
	id := s.record().ID
	for _, c := range r.containersOf(id) {
		if err := r.removeContainer(ctx, c); err != nil {
			return nil, err
		}
	}
	if err := r.dropSandbox(ctx, s); err != nil {
		return nil, err
	}
	r.mu.Lock()
	delete(r.sandboxes, id)
	r.mu.Unlock()
	r.usage.forget(id)
	r.publish(id, runtimeapi.ContainerEventType_CONTAINER_DELETED_EVENT, id)
	return &runtimeapi.RemovePodSandboxResponse{}, nil
}

func sandboxStatus(s *sandboxState) *runtimeapi.PodSandboxStatus {
	rec := s.record()
	out := &runtimeapi.PodSandboxStatus{
		Id: rec.ID, Metadata: s.cfg.GetMetadata(), State: sandboxStateOf(rec), CreatedAt: rec.Created.UnixNano(),
		Labels: s.cfg.GetLabels(), Annotations: s.cfg.GetAnnotations(), RuntimeHandler: rec.Handler,
		Network: &runtimeapi.PodSandboxNetworkStatus{},
		Linux: &runtimeapi.LinuxPodSandboxStatus{Namespaces: &runtimeapi.Namespace{
			Options: s.cfg.GetLinux().GetSecurityContext().GetNamespaceOptions(),
		}},
	}
	for i, ip := range rec.IPs {
		if i == 0 {
			out.Network.Ip = ip
			continue
		}
		out.Network.AdditionalIps = append(out.Network.AdditionalIps, &runtimeapi.PodIP{Ip: ip})
	}
	return out
}

func sandboxStateOf(rec sandboxRecord) runtimeapi.PodSandboxState {
	if rec.Ready {
		return runtimeapi.PodSandboxState_SANDBOX_READY
	}
	return runtimeapi.PodSandboxState_SANDBOX_NOTREADY
}

// PodSandboxStatus tells the sandbox's state, and its containers'.
func (r *Runtime) PodSandboxStatus(_ context.Context, req *runtimeapi.PodSandboxStatusRequest) (*runtimeapi.PodSandboxStatusResponse, error) {
	s, err := r.sandboxFor(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.PodSandboxStatusResponse{Status: sandboxStatus(s), Timestamp: time.Now().UnixNano()}
	for _, c := range r.containersOf(s.record().ID) {
		out.ContainersStatuses = append(out.ContainersStatuses, r.containerStatus(c))
	}
	if req.GetVerbose() {
		rec := s.record()
		out.Info = map[string]string{"netns": r.networkSandbox(s).NetNSPath, "cgroup": rec.Cgroup}
	}
	return out, nil
}

// ListPodSandbox lists sandboxes that match the filter.
func (r *Runtime) ListPodSandbox(_ context.Context, req *runtimeapi.ListPodSandboxRequest) (*runtimeapi.ListPodSandboxResponse, error) {
	return &runtimeapi.ListPodSandboxResponse{Items: r.listSandboxes(req.GetFilter())}, nil
}

// StreamPodSandboxes is ListPodSandbox in pieces.
func (r *Runtime) StreamPodSandboxes(req *runtimeapi.StreamPodSandboxesRequest, out runtimeapi.RuntimeService_StreamPodSandboxesServer) error {
	return inPieces(r.listSandboxes(req.GetFilter()), func(part []*runtimeapi.PodSandbox) error {
		return out.Send(&runtimeapi.StreamPodSandboxesResponse{PodSandboxes: part})
	})
}

func (r *Runtime) listSandboxes(f *runtimeapi.PodSandboxFilter) []*runtimeapi.PodSandbox {
	var out []*runtimeapi.PodSandbox
	for _, s := range r.allSandboxes() {
		rec := s.record()
		state := sandboxStateOf(rec)
		if !idMatches(f.GetId(), rec.ID) || !labelsMatch(f.GetLabelSelector(), s.cfg.GetLabels()) ||
			(f.GetState() != nil && f.GetState().GetState() != state) {
			continue
		}
		out = append(out, &runtimeapi.PodSandbox{
			Id: rec.ID, Metadata: s.cfg.GetMetadata(), State: state, CreatedAt: rec.Created.UnixNano(),
			Labels: s.cfg.GetLabels(), Annotations: s.cfg.GetAnnotations(), RuntimeHandler: rec.Handler,
		})
	}
	slices.SortFunc(out, func(a, b *runtimeapi.PodSandbox) int { return int(b.CreatedAt - a.CreatedAt) })
	return out
}

func idMatches(want, id string) bool {
	return want == "" || (len(id) >= len(want) && id[:len(want)] == want)
}

func labelsMatch(want, have map[string]string) bool {
	for k, v := range want {
		if got, ok := have[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// inPieces sends a list in parts that stay below a message's size limit.
func inPieces[T any](all []T, send func([]T) error) error {
	for part := range slices.Chunk(all, 200) {
		if err := send(part); err != nil {
			return err
		}
	}
	return nil
}
