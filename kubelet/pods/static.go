package pods

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"
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

// watchManifests runs the pods whose manifests are in the directory, and shows
// them to the API server as mirror pods.
func (m *Manager) watchManifests(ctx context.Context) {
	if m.cfg.ManifestDir == "" {
		m.mu.Lock()
		m.fileDone = true
		m.mu.Unlock()
		return
	}
	var events chan fsnotify.Event
	if w, err := fsnotify.NewWatcher(); err != nil {
		m.log.Warn("watch manifest directory; reading it every 20 s instead", "error", err)
	} else {
		defer w.Close()
		if err := w.Add(m.cfg.ManifestDir); err != nil && !errors.Is(err, fs.ErrNotExist) {
			m.log.Warn("watch manifest directory; reading it every 20 s instead", "error", err)
		}
		events = w.Events
	}
	ticker := time.NewTicker(20 * time.Second)
	defer ticker.Stop()
	for {
		if err := m.readManifests(ctx); err != nil {
			m.log.Warn("read manifests", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-events:
			// Editors write in several steps: take them as one.
			settle := time.NewTimer(100 * time.Millisecond)
			for more := true; more; {
				select {
				case <-events:
				case <-settle.C:
					more = false
				case <-ctx.Done():
					settle.Stop()
					return
				}
			}
		case <-ticker.C:
		}
	}
}

func (m *Manager) readManifests(ctx context.Context) error {
	entries, err := os.ReadDir(m.cfg.ManifestDir)
	if errors.Is(err, fs.ErrNotExist) {
		entries, err = nil, nil
	}
	if err != nil {
		return err
	}
	now := map[types.UID]*corev1.Pod{}
	var errs []error
	for _, e := range entries {
		if e.IsDir() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		path := filepath.Join(m.cfg.ManifestDir, e.Name())
		raw, err := os.ReadFile(path)
		if err == nil {
			var p *corev1.Pod
			if p, err = staticPod(raw, path, m.cfg.NodeName); err == nil {
				now[p.UID] = p
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("manifest %s: %w", path, err))
		}
	}
	m.mu.Lock()
	for uid := range m.static {
		if now[uid] == nil {
			delete(m.static, uid)
			if w := m.workers[uid]; w != nil {
				w.remove()
			}
		}
	}
	for uid, p := range now {
		if m.static[uid] == nil {
			m.static[uid] = p
			m.worker(p).update(p)
		}
	}
	m.fileDone = true
	m.mu.Unlock()
	m.syncMirrors(ctx)
	return errors.Join(errs...)
}

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

// staticPod reads a manifest: the uid follows from its content and place.
func staticPod(raw []byte, path, node string) (*corev1.Pod, error) {
	js, err := yaml.YAMLToJSON(raw)
	if err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	p := &corev1.Pod{}
	if err := json.Unmarshal(js, p); err != nil {
		return nil, fmt.Errorf("parse: %w", err)
	}
	if p.Kind != "Pod" || p.APIVersion != "v1" {
		return nil, fmt.Errorf("kind is %s %s: it must be v1 Pod", p.APIVersion, p.Kind)
	}
	if p.Name == "" || len(p.Spec.Containers) == 0 {
		return nil, fmt.Errorf("metadata.name and spec.containers are required")
	}
	h := fnv.New128a()
	h.Write(js)
	h.Write([]byte(node + path))
	sum := hex.EncodeToString(h.Sum(nil))
	if p.UID == "" {
		p.UID = types.UID(sum)
	}
	p.Name += "-" + strings.ToLower(node)
	if p.Namespace == "" {
		p.Namespace = metav1.NamespaceDefault
	}
	p.Spec.NodeName = node
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	p.Annotations[sourceAnnotation], p.Annotations[hashAnnotation] = "file", sum
	p.Annotations[seenAnnotation] = time.Now().Format(time.RFC3339Nano)
	p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute})
	p.Status = corev1.PodStatus{Phase: corev1.PodPending}
	defaults(p)
	return p, nil
}

// defaults are those that the API server would have set and that matter here.
func defaults(p *corev1.Pod) {
	yes, thirty := true, int64(30)
	s := &p.Spec
	if s.RestartPolicy == "" {
		s.RestartPolicy = corev1.RestartPolicyAlways
	}
	if s.DNSPolicy == "" {
		s.DNSPolicy = corev1.DNSClusterFirst
	}
	if s.TerminationGracePeriodSeconds == nil {
		s.TerminationGracePeriodSeconds = &thirty
	}
	if s.EnableServiceLinks == nil {
		s.EnableServiceLinks = &yes
	}
	if s.SecurityContext == nil {
		s.SecurityContext = &corev1.PodSecurityContext{}
	}
	probe := func(pr *corev1.Probe) {
		if pr == nil {
			return
		}
		for _, d := range []struct {
			v *int32
			n int32
		}{{&pr.TimeoutSeconds, 1}, {&pr.PeriodSeconds, 10}, {&pr.SuccessThreshold, 1}, {&pr.FailureThreshold, 3}} {
			if *d.v == 0 {
				*d.v = d.n
			}
		}
		if g := pr.HTTPGet; g != nil {
			if g.Path == "" {
				g.Path = "/"
			}
			if g.Port == (intstr.IntOrString{}) {
				g.Port = intstr.FromInt32(80)
			}
		}
	}
	for _, list := range [][]corev1.Container{s.InitContainers, s.Containers} {
		for i := range list {
			c := &list[i]
			if c.ImagePullPolicy == "" {
				c.ImagePullPolicy = corev1.PullIfNotPresent
				if strings.HasSuffix(c.Image, ":latest") || !strings.Contains(c.Image[strings.LastIndex(c.Image, "/")+1:], ":") && !strings.Contains(c.Image, "@") {
					c.ImagePullPolicy = corev1.PullAlways
				}
			}
			if c.TerminationMessagePath == "" {
				c.TerminationMessagePath = corev1.TerminationMessagePathDefault
			}
			if c.TerminationMessagePolicy == "" {
				c.TerminationMessagePolicy = corev1.TerminationMessageReadFile
			}
			for j := range c.Ports {
				if c.Ports[j].Protocol == "" {
					c.Ports[j].Protocol = corev1.ProtocolTCP
				}
				if s.HostNetwork && c.Ports[j].HostPort == 0 {
					c.Ports[j].HostPort = c.Ports[j].ContainerPort
				}
			}
			for k, v := range c.Resources.Limits {
				if _, ok := c.Resources.Requests[k]; !ok {
					if c.Resources.Requests == nil {
						c.Resources.Requests = corev1.ResourceList{}
					}
					c.Resources.Requests[k] = v
				}
			}
			probe(c.LivenessProbe)
			probe(c.ReadinessProbe)
			probe(c.StartupProbe)
		}
	}
}
