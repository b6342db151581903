package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// report writes the status.
func (n *Node) report(ctx context.Context) {
	failures := 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.kick:
		case <-timer.C:
		}
		if err := n.write(ctx); err != nil && ctx.Err() == nil {
			n.cfg.Logger.Warn("write node status", "error", err)
			failures++
			timer.Reset(min(200*time.Millisecond<<min(failures, 6), statusEvery))
			continue
		}
		failures = 0
		timer.Reset(statusEvery)
	}
}

func (n *Node) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	old := n.Object()
	if old == nil {
		return fmt.Errorf("the node is not registered yet")
	}
	next := n.status(ctx, &old.Status)
	n.mu.Lock()
	recent := time.Since(n.lastWrite) < reportEvery
	n.mu.Unlock()
	if recent && !changed(&old.Status, &next) {
		return nil
	}
	before, err := json.Marshal(&corev1.Node{Status: old.Status})
	if err != nil {
		return err
	}
	after, err := json.Marshal(&corev1.Node{Status: next})
	if err != nil {
		return err
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Node{})
	if err != nil {
		return fmt.Errorf("compute patch of node status: %w", err)
	}
	// Addresses of one type differ in the address only: the list's merge key would
	// fold them.
	if patch, err = replaceAddresses(patch, next.Addresses); err != nil {
		return err
	}
	got, err := n.cfg.HeartbeatClient.CoreV1().Nodes().Patch(ctx, n.cfg.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsNotFound(err) {
		n.register(ctx)
		return fmt.Errorf("patch status of node %s: %w", n.cfg.Name, err)
	}
	if err != nil {
		return fmt.Errorf("patch status of node %s: %w", n.cfg.Name, err)
	}
	wasReady, isReady := isTrue(&old.Status), isTrue(&next)
	n.mu.Lock()
	n.lastWrite, n.object = time.Now(), got
	n.mu.Unlock()
	if isReady {
		n.once.Do(func() { close(n.ready) })
	}
	if was, is := old.Status.NodeInfo.BootID, next.NodeInfo.BootID; was != "" && was != is && n.cfg.Recorder != nil {
		n.cfg.Recorder.Event(n.Ref(), corev1.EventTypeWarning, "Rebooted", fmt.Sprintf("Node %s has been rebooted, boot id: %s", n.cfg.Name, is))
	}
	if wasReady != isReady && n.cfg.Recorder != nil {
		reason := "NodeNotReady"
		if isReady {
			reason = "NodeReady"
		}
		n.cfg.Recorder.Event(n.Ref(), corev1.EventTypeNormal, reason, fmt.Sprintf("Node %s status is now: %s", n.cfg.Name, reason))
	}
	return nil
}

// Ref refers to the node in events.
func (n *Node) Ref() *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.cfg.Name, UID: types.UID(n.cfg.Name)}
}

func isTrue(s *corev1.NodeStatus) bool {
	c := condition(s, corev1.NodeReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// changed compares statuses but for heartbeat times.
func changed(a, b *corev1.NodeStatus) bool {
	x, y := a.DeepCopy(), b.DeepCopy()
	for _, s := range []*corev1.NodeStatus{x, y} {
		for i := range s.Conditions {
			s.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
	}
	return !apiequality.Semantic.DeepEqual(x, y)
}

// replaceAddresses makes a status patch replace the list of addresses as a whole.
func replaceAddresses(patch []byte, addrs []corev1.NodeAddress) ([]byte, error) {
	var m map[string]any
	if err := json.Unmarshal(patch, &m); err != nil {
		return nil, fmt.Errorf("read patch of node status: %w", err)
	}
	st, ok := m["status"].(map[string]any)
	if !ok {
		return patch, nil
	}
	if _, ok := st["addresses"]; !ok {
		return patch, nil
	}
	list := []any{}
	for _, a := range addrs {
		list = append(list, map[string]any{"type": a.Type, "address": a.Address})
	}
	st["addresses"] = append(list, map[string]any{"$patch": "replace"})
	delete(st, "$setElementOrder/addresses")
	return json.Marshal(m)
}
