package pods

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	sourceAnnotation = "kubernetes.io/config.source"
	hashAnnotation   = "kubernetes.io/config.hash"
	mirrorAnnotation = "kubernetes.io/config.mirror"
	seenAnnotation   = "kubernetes.io/config.seen"
)

func isStatic(pod *corev1.Pod) bool {
	s := pod.Annotations[sourceAnnotation]
	return s != "" && s != "api" && pod.Annotations[mirrorAnnotation] == ""
}

func isMirror(pod *corev1.Pod) bool { return pod.Annotations[mirrorAnnotation] != "" }

// syncMirrors makes a mirror of each static pod and deletes those without one.
func (m *Manager) syncMirrors(ctx context.Context) {
	if m.cfg.Client == nil {
		return
	}
	m.mu.Lock()
	if !m.apiReady {
		m.mu.Unlock()
		return
	}
	want := map[string]*corev1.Pod{}
	for _, p := range m.static {
		want[p.Namespace+"/"+p.Name] = p
	}
	var stale []*corev1.Pod
	for _, p := range m.api {
		if !isMirror(p) {
			continue
		}
		key := p.Namespace + "/" + p.Name
		if s := want[key]; s != nil && p.DeletionTimestamp == nil && p.Annotations[mirrorAnnotation] == s.Annotations[hashAnnotation] {
			delete(want, key)
			m.writer.again(s.UID)
		} else {
			stale = append(stale, p)
		}
	}
	m.mu.Unlock()
	zero := int64(0)
	for _, p := range stale {
		uid := p.UID
		err := m.cfg.Client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero, Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil && !apierrors.IsNotFound(err) {
			m.log.Warn("delete stale mirror pod", "pod", p.Namespace+"/"+p.Name, "error", err)
		}
	}
	for _, p := range want {
		if err := m.createMirror(ctx, p); err != nil && !apierrors.IsAlreadyExists(err) {
			m.log.Warn("make mirror pod", "pod", p.Namespace+"/"+p.Name, "error", err)
		}
	}
}

func (m *Manager) createMirror(ctx context.Context, p *corev1.Pod) error {
	c := p.DeepCopy()
	c.UID, c.ResourceVersion, c.Status = "", "", corev1.PodStatus{}
	c.Annotations[mirrorAnnotation] = p.Annotations[hashAnnotation]
	if n := m.cfg.Node(); n != nil {
		yes := true
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: n.Name, UID: n.UID, Controller: &yes}}
	}
	_, err := m.cfg.Client.CoreV1().Pods(p.Namespace).Create(ctx, c, metav1.CreateOptions{})
	return err
}

// mirrorsChanged has the mirrors brought in line. Must hold mu.
func (m *Manager) mirrorsChanged() {
	ctx := m.ctx
	m.wg.Add(1)
	go func() {
		defer m.wg.Done()
		m.syncMirrors(ctx)
	}()
}
