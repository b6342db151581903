package localpath

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// RemovedName is the ConfigMap in kube-system that has, by node, the volumes that were
	// reclaimed while their node was gone: should it come back, their directories go.
	RemovedName = "local-path-removed"
	// removedMost bounds what is remembered of one node.
	removedMost = 500
)

func (c *Controller) removed(ctx context.Context, node string) ([]string, error) {
	m, err := c.cfg.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, RemovedName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading config map %s: %w", RemovedName, err)
	}
	return strings.Fields(m.Data[node]), nil
}

func (c *Controller) setRemoved(ctx context.Context, node string, names []string) error {
	maps := c.cfg.Client.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	m, err := maps.Get(ctx, RemovedName, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	switch {
	case missing && len(names) == 0:
		return nil
	case missing:
		m = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: RemovedName}}
	case err != nil:
		return fmt.Errorf("reading config map %s: %w", RemovedName, err)
	}
	if m.Data == nil {
		m.Data = map[string]string{}
	}
	if len(names) > 0 {
		m.Data[node] = strings.Join(names[max(0, len(names)-removedMost):], " ")
	} else {
		delete(m.Data, node)
	}
	if missing {
		_, err = maps.Create(ctx, m, metav1.CreateOptions{})
	} else {
		_, err = maps.Update(ctx, m, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("writing config map %s: %w", RemovedName, err)
	}
	return nil
}
