// Package bynode finds pods by the node they are on.
package bynode

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

const indexName = "nodeName"

// Index of the shared pod informer.
type Index struct{ indexer cache.Indexer }

// New adds the index to the pod informer, once for all its users.
func New(inf cache.SharedIndexInformer) (Index, error) {
	if _, ok := inf.GetIndexer().GetIndexers()[indexName]; !ok {
		err := inf.AddIndexers(cache.Indexers{indexName: func(o any) ([]string, error) {
			if p, ok := o.(*corev1.Pod); ok && p.Spec.NodeName != "" {
				return []string{p.Spec.NodeName}, nil
			}
			return nil, nil
		}})
		if err != nil {
			return Index{}, fmt.Errorf("indexing pods by node: %w", err)
		}
	}
	return Index{inf.GetIndexer()}, nil
}

// Pods returns the shared pods on a node.
func (x Index) Pods(node string) []*corev1.Pod {
	found, err := x.indexer.ByIndex(indexName, node)
	if err != nil { // the index exists: New added it
		return nil
	}
	pods := make([]*corev1.Pod, 0, len(found))
	for _, o := range found {
		if p, ok := o.(*corev1.Pod); ok {
			pods = append(pods, p)
		}
	}
	return pods
}
