package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/workqueue"
)

// writers that work at once.
const writers = 8

// writer brings pod statuses to the API server: the latest one of each pod, for as
// long as it takes, without holding up the pod itself.
type writer struct {
	client kubernetes.Interface
	log    *slog.Logger
	// api is the pod as the API server last showed it; for a static pod its mirror.
	api   func(*corev1.Pod) *corev1.Pod
	queue workqueue.TypedRateLimitingInterface[types.UID]

	mu    sync.Mutex
	items map[types.UID]*item
}

type item struct {
	pod    *corev1.Pod
	status corev1.PodStatus
	del    bool
	// base is what the last patch answered: the watch may lag behind it.
	base *corev1.Pod
}

func newWriter(client kubernetes.Interface, log *slog.Logger, api func(*corev1.Pod) *corev1.Pod) *writer {
	limit := workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](100*time.Millisecond, 10*time.Second)
	return &writer{client: client, log: log, api: api, items: map[types.UID]*item{}, queue: workqueue.NewTypedRateLimitingQueue(limit)}
}

// set has a status written, and after that the pod deleted.
func (w *writer) set(pod *corev1.Pod, st corev1.PodStatus, del bool) {
	w.mu.Lock()
	it := w.items[pod.UID]
	if it == nil {
		it = &item{}
		w.items[pod.UID] = it
	}
	it.pod, it.status, it.del = pod, st, it.del || del
	w.mu.Unlock()
	if w.client != nil {
		w.queue.Add(pod.UID)
	}
}

// again writes the pod's status if the API server has another one.
func (w *writer) again(uid types.UID) {
	w.mu.Lock()
	_, ok := w.items[uid]
	w.mu.Unlock()
	if ok && w.client != nil {
		w.queue.Add(uid)
	}
}

func (w *writer) forget(uid types.UID) {
	w.mu.Lock()
	delete(w.items, uid)
	w.mu.Unlock()
}

func (w *writer) run(ctx context.Context) {
	var wg sync.WaitGroup
	for range writers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				uid, down := w.queue.Get()
				if down {
					return
				}
				if err := w.write(ctx, uid); err != nil && ctx.Err() == nil {
					w.log.Warn("write pod status", "uid", uid, "error", err)
					w.queue.AddRateLimited(uid)
				} else {
					w.queue.Forget(uid)
				}
				w.queue.Done(uid)
			}
		}()
	}
	<-ctx.Done()
	w.queue.ShutDown()
	wg.Wait()
}

func (w *writer) write(ctx context.Context, uid types.UID) error {
	w.mu.Lock()
	it := w.items[uid]
	if it == nil {
		w.mu.Unlock()
		return nil
	}
	pod, st, del, base := it.pod, it.status, it.del, it.base
	w.mu.Unlock()

	seen := w.api(pod)
	if seen == nil {
		if isStatic(pod) || base == nil {
			return nil // no mirror yet, or gone: its watch brings us back
		}
		return nil
	}
	if base == nil || base.UID != seen.UID || newer(seen, base) {
		base = seen
	}
	patch, err := statusPatch(base, st)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	api := w.client.CoreV1().Pods(pod.Namespace)
	if patch != nil {
		next, err := api.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		switch {
		case apierrors.IsNotFound(err):
			return nil // the watch tells the worker
		case apierrors.IsConflict(err):
			// Another pod has the name by now; or ours changed meanwhile and will be seen.
			w.mu.Lock()
			it.base = nil
			w.mu.Unlock()
			if cur, gerr := api.Get(ctx, pod.Name, metav1.GetOptions{}); gerr == nil && cur.UID != seen.UID {
				return nil
			}
			return fmt.Errorf("patch status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		case err != nil:
			return fmt.Errorf("patch status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
		}
		w.mu.Lock()
		it.base = next
		w.mu.Unlock()
	}
	if !del || isStatic(pod) {
		return nil
	}
	zero := int64(0)
	err = api.Delete(ctx, pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// newer compares resource versions, which grow (KEP-5504).
func newer(a, b *corev1.Pod) bool {
	x, errX := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, errY := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return errX != nil || errY != nil || x >= y
}

// statusPatch is the strategic merge patch that leads from the API's status to
// ours, nil if there is nothing to change. Conditions that others own stay.
func statusPatch(base *corev1.Pod, st corev1.PodStatus) ([]byte, error) {
	next := *st.DeepCopy()
	// In the API's order, so that equal lists compare equal.
	var merged []corev1.PodCondition
	for _, c := range base.Status.Conditions {
		if ownCondition(c.Type) {
			ours := condition(st.Conditions, c.Type)
			if ours == nil {
				continue
			}
			c = *ours
		}
		merged = append(merged, c)
	}
	for _, c := range next.Conditions {
		if (ownCondition(c.Type) || c.Type == corev1.DisruptionTarget) && condition(merged, c.Type) == nil {
			merged = append(merged, c)
		}
	}
	next.Conditions = merged
	// What the kubelet does not decide is left alone.
	next.NominatedNodeName, next.Resize = base.Status.NominatedNodeName, base.Status.Resize
	next.ResourceClaimStatuses, next.ExtendedResourceClaimStatus = base.Status.ResourceClaimStatuses, base.Status.ExtendedResourceClaimStatus
	if base.Status.QOSClass != "" {
		next.QOSClass = base.Status.QOSClass // immutable
	}
	if apiequality.Semantic.DeepEqual(base.Status, next) {
		return nil, nil
	}
	type body struct {
		Metadata map[string]any   `json:"metadata"`
		Status   corev1.PodStatus `json:"status"`
	}
	old, err := json.Marshal(body{map[string]any{}, base.Status})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	cur, err := json.Marshal(body{map[string]any{"uid": base.UID}, next})
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(old, cur, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("compute status patch: %w", err)
	}
	var p map[string]json.RawMessage
	if err := json.Unmarshal(patch, &p); err != nil {
		return nil, fmt.Errorf("read status patch: %w", err)
	}
	if _, ok := p["status"]; !ok {
		return nil, nil
	}
	return patch, nil
}
