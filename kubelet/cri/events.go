package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// NotFound tells whether the runtime does not know the object.
func NotFound(err error) bool { return err != nil && status.Code(err) == codes.NotFound }

// Unimplemented tells whether the runtime lacks the call.
func Unimplemented(err error) bool { return err != nil && status.Code(err) == codes.Unimplemented }

// Message is the runtime's own text of an error, without gRPC's wrapping.
func Message(err error) string {
	if s, ok := status.FromError(err); ok {
		return s.Message()
	}
	return err.Error()
}

// Watch calls changed with the pod's uid for every container event until the
// stream ends, and returns why it ended. Connected is called once the runtime
// has accepted the stream: what happened before must be listed.
func (c *Client) Watch(ctx context.Context, connected func(), changed func(types.UID)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.Runtime.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{})
	if err != nil {
		return fmt.Errorf("watch container events: %w", err)
	}
	// A runtime without the call answers at once; one with it sends headers late or
	// never before the first event, so don't wait for them.
	connected()
	for {
		ev, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("watch container events: %w", err)
		}
		if uid := c.eventUID(ev); uid != "" {
			changed(uid)
		}
	}
}

// eventUID is the pod that an event is about; empty: none of this kubelet's.
func (c *Client) eventUID(ev *runtimeapi.ContainerEventResponse) types.UID {
	if s := ev.PodSandboxStatus; s != nil {
		if s.Labels[OwnerLabel] != c.cfg.Owner {
			return ""
		}
		if uid := s.GetMetadata().GetUid(); uid != "" {
			return types.UID(uid)
		}
		return types.UID(s.Labels[PodUIDLabel])
	}
	for _, cs := range ev.ContainersStatuses {
		if uid := cs.Labels[PodUIDLabel]; uid != "" && c.Owns(cs.Labels) {
			return types.UID(uid)
		}
	}
	return ""
}

// Conditions are the runtime's two: whether it and its network are ready, and
// why not.
type Conditions struct {
	Runtime, Network             bool
	RuntimeReason, NetworkReason string
	Handlers                     []*runtimeapi.RuntimeHandler
	Features                     *runtimeapi.RuntimeFeatures
	// SystemdCgroups: the runtime has systemd make control groups. Those that do not tell
	// (CRI before RuntimeConfig, KEP-4033) are taken to follow the kubelet's configuration.
	SystemdCgroups bool
}

// Status asks the runtime how it is; an error means that it does not answer.
func (c *Client) Status(ctx context.Context) (Conditions, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := c.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return Conditions{}, fmt.Errorf("ask the container runtime for its status: %w", err)
	}
	out := Conditions{Handlers: resp.RuntimeHandlers, Features: resp.Features}
	if out.SystemdCgroups, err = c.systemdCgroups(ctx); err != nil {
		return Conditions{}, err
	}
	seenRuntime, seenNetwork := false, false
	for _, cond := range resp.GetStatus().GetConditions() {
		why := ""
		if !cond.Status {
			why = fmt.Sprintf("reason:%s message:%s", cond.Reason, cond.Message)
		}
		switch cond.Type {
		case runtimeapi.RuntimeReady:
			seenRuntime, out.Runtime, out.RuntimeReason = true, cond.Status, why
		case runtimeapi.NetworkReady:
			seenNetwork, out.Network, out.NetworkReason = true, cond.Status, why
		}
	}
	if out.SystemdCgroups {
		out.Runtime, out.RuntimeReason = false, "reason:CgroupDriver message:the container runtime makes control groups by systemd, which this kubelet does not: have it use cgroupfs (containerd: SystemdCgroup = false)"
	}
	if !seenRuntime {
		out.RuntimeReason = "the runtime reports no RuntimeReady condition"
	}
	if !seenNetwork {
		out.NetworkReason = "the runtime reports no NetworkReady condition"
	}
	return out, nil
}

// systemdCgroups asks anew each time: a runtime may be started with another configuration
// without its absence being noticed.
func (c *Client) systemdCgroups(ctx context.Context) (bool, error) {
	resp, err := c.Runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{})
	if Unimplemented(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("ask the container runtime for its configuration: %w", err)
	}
	return resp.GetLinux() != nil && resp.Linux.CgroupDriver == runtimeapi.CgroupDriver_SYSTEMD, nil
}

// SandboxImage is the image that the runtime itself needs for sandboxes; empty if it does
// not tell (by the verbose form of its status, as containerd does).
func (c *Client) SandboxImage(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	resp, err := c.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return ""
	}
	var config struct {
		SandboxImage string `json:"sandboxImage"`
	}
	if json.Unmarshal([]byte(resp.Info["config"]), &config) != nil {
		return ""
	}
	return config.SandboxImage
}
