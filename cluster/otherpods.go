package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/cri"
)

// owner marks the node's pods on a runtime that others use too. The built-in one is the
// node's alone.
func (n *NodeConfig) owner() string {
	if n.RuntimeEndpoint == "" {
		return ""
	}
	return n.ClusterID[:min(8, len(n.ClusterID))] + "." + n.NodeName
}

// removePods ends what the node has on a runtime that others run, and nothing else there.
func (n *NodeConfig) removePods(ctx context.Context) (err error) {
	client, err := cri.New(cri.Config{RuntimeEndpoint: n.RuntimeEndpoint, Owner: n.owner()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	pods, err := client.Pods(ctx)
	if err != nil {
		return fmt.Errorf("%w: start the runtime at %s and try again, or remove the pods by hand", err, n.RuntimeEndpoint)
	}
	var errs []error
	for _, p := range pods {
		for _, s := range p.Sandboxes {
			_, err := client.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: s.ID})
			if err == nil {
				_, err = client.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: s.ID})
			}
			if err != nil && !cri.NotFound(err) {
				errs = append(errs, fmt.Errorf("remove sandbox of pod %s/%s: %w", p.Namespace, p.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}
