package pods

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/objects"
)

// watchAPI follows the pods that are bound to this node.
func (m *Manager) watchAPI(ctx context.Context) {
	sel := fields.OneTermEqualSelector("spec.nodeName", m.cfg.NodeName).String()
	api := m.cfg.Client.CoreV1().Pods(metav1.NamespaceAll)
	src := objects.Source{
		Client: m.cfg.Client,
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = sel
			return api.List(ctx, o)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = sel
			return api.Watch(ctx, o)
		},
	}
	objects.Follow(ctx, m.log, src, &corev1.Pod{}, objects.Feed[*corev1.Pod]{
		Replaced: func(all []*corev1.Pod) {
			now := map[types.UID]bool{}
			for _, p := range all {
				if p.Spec.NodeName == m.cfg.NodeName {
					now[p.UID] = true
					m.apiChanged(p)
				}
			}
			m.mu.Lock()
			var gone []*corev1.Pod
			for uid, p := range m.api {
				if !now[uid] {
					gone = append(gone, p)
				}
			}
			m.apiReady = true
			if len(m.static) > 0 {
				m.mirrorsChanged()
			}
			m.mu.Unlock()
			for _, p := range gone {
				m.apiDeleted(p)
			}
			m.requestRelist()
		},
		Changed: func(p *corev1.Pod) {
			if p.Spec.NodeName == m.cfg.NodeName {
				m.apiChanged(p)
			}
		},
		Deleted: m.apiDeleted,
	})
}

func (m *Manager) apiChanged(p *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.api[p.UID] = p
	if isMirror(p) {
		m.mirrorsChanged()
		return
	}
	m.worker(p).update(p)
	m.writer.again(p.UID) // others may have written our part of the status
}

func (m *Manager) apiDeleted(p *corev1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.api, p.UID)
	if isMirror(p) {
		m.mirrorsChanged()
		return
	}
	if w := m.workers[p.UID]; w != nil {
		w.remove()
	}
}

// watchRuntime wakes workers when the runtime has something new of their pods.
func (m *Manager) watchRuntime(ctx context.Context) {
	changed := make(chan error, 1)
	watching := false
	start := func() {
		watching = true
		go func() {
			changed <- m.cfg.CRI.Watch(ctx, m.requestRelist, func(uid types.UID) {
				m.mu.Lock()
				w := m.workers[uid]
				m.mu.Unlock()
				if w != nil {
					w.kick()
				} else {
					m.requestRelist()
				}
			})
		}()
	}
	start()
	// Until the runtime is known to lack events, the relist is a safety net only.
	every := relistEvery
	timer := time.NewTimer(0)
	defer timer.Stop()
	var retry <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			if watching {
				<-changed
			}
			return
		case err := <-changed:
			watching = false
			if ctx.Err() != nil {
				return
			}
			if cri.Unimplemented(err) {
				if every != time.Second {
					m.log.Info("the runtime has no container events; listing every second")
				}
				every = time.Second
				retry = time.After(10 * time.Minute) // it may be upgraded
			} else {
				every = relistEvery
				retry = time.After(time.Second)
			}
		case <-retry:
			retry = nil
			start()
			continue
		case <-m.relist:
		case <-timer.C:
		}
		if err := m.relistRuntime(ctx); err != nil && ctx.Err() == nil {
			m.log.Debug("relist", "error", err)
			timer.Reset(time.Second)
			continue
		}
		timer.Reset(every)
	}
}

// relistRuntime compares all that the runtime has with the last time.
func (m *Manager) relistRuntime(ctx context.Context) error {
	m.mu.Lock()
	known := make(map[types.UID]bool, len(m.workers))
	for uid := range m.workers {
		known[uid] = true
	}
	m.mu.Unlock()
	pods, err := m.cfg.CRI.Pods(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	next := make(map[types.UID]string, len(pods))
	for uid, p := range pods {
		next[uid] = fingerprint(p)
		if w := m.workers[uid]; w != nil {
			if next[uid] != m.seen[uid] {
				w.kick()
			}
		} else if m.apiReady && m.fileDone && !known[uid] {
			// One that was known ended while the list was made.
			m.log.Info("ending pod that should not run", "pod", p.Namespace+"/"+p.Name, "uid", uid)
			m.worker(orphanPod(p)).remove()
		}
	}
	for uid := range m.seen {
		if next[uid] == "" && m.workers[uid] != nil {
			m.workers[uid].kick()
		}
	}
	m.seen = next
	ready := m.apiReady && m.fileDone
	m.mu.Unlock()
	if ready {
		m.cleanUp(pods)
		m.limitDead(ctx, pods)
	}
	return nil
}

func fingerprint(p *cri.Pod) string {
	var b strings.Builder
	for _, s := range p.Sandboxes {
		fmt.Fprintf(&b, "%s:%v ", s.ID, s.Ready)
	}
	for _, c := range p.Containers {
		fmt.Fprintf(&b, "%s:%d ", c.ID, c.State)
	}
	return b.String()
}

// orphanPod rebuilds a pod that is gone from the API, as far as ending it needs.
func orphanPod(p *cri.Pod) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: p.UID, Name: p.Name, Namespace: p.Namespace, Annotations: map[string]string{orphanAnnotation: "true"}}}
	seen := map[string]bool{}
	for _, c := range p.Containers {
		if !seen[c.Name] {
			seen[c.Name] = true
			_, spec := cri.OrphanSpec(c)
			pod.Spec.Containers = append(pod.Spec.Containers, spec)
		}
	}
	return pod
}

const orphanAnnotation = "skiff.dev/orphan"

// cleanUp takes away directories and groups of pods that nobody knows any more.
func (m *Manager) cleanUp(running map[types.UID]*cri.Pod) {
	unknown := func(uid types.UID) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.workers[uid] == nil && running[uid] == nil
	}
	uids, err := m.cfg.Volumes.Pods()
	if err != nil {
		m.log.Warn("look for orphaned pod directories", "error", err)
	}
	for _, uid := range uids {
		if unknown(uid) {
			if err := m.cfg.Volumes.Teardown(uid); err != nil {
				m.log.Warn("clean up orphaned pod directory", "uid", uid, "error", err)
			}
		}
	}
	m.cleanUpLogs(unknown)
	m.cleanUpGroups(unknown)
}
