package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"

	"github.com/skiff-k8s/skiff/network/announce"
	"github.com/skiff-k8s/skiff/network/bridge"
	"github.com/skiff-k8s/skiff/network/hostport"
	"github.com/skiff-k8s/skiff/network/policy"
	"github.com/skiff-k8s/skiff/network/routes"
)

// newRoutes composes what leads to the pods of other nodes.
func newRoutes(n *NodeConfig, client kubernetes.Interface, nodes informers.SharedInformerFactory, b *bridge.Bridge, log *slog.Logger) (*routes.Router, error) {
	return routes.New(routes.Config{
		NodeName: n.NodeName, ClusterID: n.ClusterID, ClusterCIDRs: n.PodCIDRs,
		Nodes: nodes.Core().V1().Nodes().Informer(), PodLink: n.Bridge, Link: n.Bridge,
		Mode: n.PodNetwork.Mode, Port: n.PodNetwork.VXLANPort, VNI: n.PodNetwork.VNI,
		Publish: func(ctx context.Context, text string) error {
			return annotateNode(ctx, client, n.NodeName, routes.Annotation, text)
		},
		MTU: b.SetMTU, Logger: log,
	})
}

// annotateNode writes an annotation of the own Node; an empty one goes.
func annotateNode(ctx context.Context, client kubernetes.Interface, node, key, text string) error {
	var value any
	if text != "" {
		value = text
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	if err != nil {
		return fmt.Errorf("encode annotation %s: %w", key, err)
	}
	if _, err := client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("annotate node %s: %w", node, err)
	}
	return nil
}

// removePodNetwork takes away what the pod network of a node left in the kernel.
func (n *NodeConfig) removePodNetwork(p Paths) error {
	return errors.Join(announce.Remove(n.announceTable()), policy.Remove(n.policiesTable()), hostport.Remove(n.hostPortConfig(p)), routes.Remove(n.Bridge, n.PodCIDRs), bridge.Remove(n.bridgeConfig(p)))
}
