package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/skiff-k8s/skiff/kubelet/cri"
)

// register creates the node or takes over the one that is there; false: the
// context ended first.
func (n *Node) register(ctx context.Context) bool {
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, 7*time.Second) {
		err := n.tryRegister(ctx)
		if err == nil {
			return true
		}
		if ctx.Err() != nil {
			return false
		}
		n.cfg.Logger.Warn("register node", "error", err, "retry", wait)
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return false
		}
	}
}

func (n *Node) tryRegister(ctx context.Context) error {
	api := n.cfg.Client.CoreV1().Nodes()
	want := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.cfg.Name, Labels: defaultLabels(n.cfg.Hostname), Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
		Spec:       corev1.NodeSpec{Taints: n.cfg.Taints, Unschedulable: n.cfg.Unschedulable, ProviderID: n.cfg.ProviderID},
	}
	for k, v := range n.cfg.Labels {
		want.Labels[k] = v
	}
	n.awaitCloud(want)
	want.Status = n.status(ctx, &corev1.NodeStatus{})
	got, err := api.Create(ctx, want, metav1.CreateOptions{})
	if err == nil {
		n.saw(got)
		return nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create node %s: %w", n.cfg.Name, err)
	}
	got, err = api.Get(ctx, n.cfg.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s: %w", n.cfg.Name, err)
	}
	n.saw(got)
	labels := map[string]string{}
	for k, v := range want.Labels {
		if got.Labels[k] != v {
			labels[k] = v
		}
	}
	annotations := n.providedChange(got)
	if len(labels) == 0 && len(annotations) == 0 {
		return nil
	}
	change := map[string]any{"labels": labels}
	if annotations != nil { // none as null would take all
		change["annotations"] = annotations
	}
	raw, err := json.Marshal(map[string]any{"metadata": change})
	if err != nil {
		return err
	}
	got, err = api.Patch(ctx, n.cfg.Name, types.StrategicMergePatchType, raw, metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("reconcile labels of node %s: %w", n.cfg.Name, err)
	}
	n.saw(got)
	return nil
}

func (n *Node) saw(o *corev1.Node) {
	n.mu.Lock()
	n.object = o
	news := o.Spec.PodCIDR != "" && o.Spec.PodCIDR != n.podCIDR
	n.mu.Unlock()
	if news {
		select {
		case n.look <- struct{}{}:
		default:
		}
	}
}

// tellCIDR hands the range of pod addresses that the node was given to the runtime.
func (n *Node) tellCIDR(ctx context.Context, cidr string) error {
	_, err := n.cfg.CRI.Runtime.UpdateRuntimeConfig(ctx, &runtimeapi.UpdateRuntimeConfigRequest{RuntimeConfig: &runtimeapi.RuntimeConfig{NetworkConfig: &runtimeapi.NetworkConfig{PodCidr: cidr}}})
	if err != nil && !cri.Unimplemented(err) {
		return err
	}
	n.mu.Lock()
	n.podCIDR = cidr
	n.mu.Unlock()
	return nil
}
