package volumes

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"os"
	"sort"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skiff-k8s/skiff/kubelet/environ"
)

// payload computes the files of a volume that the kubelet writes.
func (m *Manager) payload(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) (plugin string, files map[string]File, refresh time.Time, err error) {
	files = map[string]File{}
	switch {
	case v.ConfigMap != nil:
		s := v.ConfigMap
		return "configmap", files, refresh, m.configMap(ctx, pod, files, s.Name, s.Items, mode(s.DefaultMode), s.Optional)
	case v.Secret != nil:
		s := v.Secret
		return "secret", files, refresh, m.secret(ctx, pod, files, s.SecretName, s.Items, mode(s.DefaultMode), s.Optional)
	case v.DownwardAPI != nil:
		return "downward-api", files, refresh, m.downward(pod, files, v.DownwardAPI.Items, mode(v.DownwardAPI.DefaultMode))
	case v.Projected != nil:
		refresh, err = m.projected(ctx, pod, files, v.Name, v.Projected)
		return "projected", files, refresh, err
	}
	return "", nil, refresh, fmt.Errorf("this kind of volume is not supported by this kubelet")
}

func (m *Manager) projected(ctx context.Context, pod *corev1.Pod, files map[string]File, name string, s *corev1.ProjectedVolumeSource) (time.Time, error) {
	var refresh time.Time
	again := func(t time.Time) {
		if !t.IsZero() && (refresh.IsZero() || t.Before(refresh)) {
			refresh = t
		}
	}
	perm := mode(s.DefaultMode)
	for i := range s.Sources {
		src := &s.Sources[i]
		var err error
		var next time.Time
		switch {
		case src.ConfigMap != nil:
			err = m.configMap(ctx, pod, files, src.ConfigMap.Name, src.ConfigMap.Items, perm, src.ConfigMap.Optional)
		case src.Secret != nil:
			err = m.secret(ctx, pod, files, src.Secret.Name, src.Secret.Items, perm, src.Secret.Optional)
		case src.DownwardAPI != nil:
			err = m.downward(pod, files, src.DownwardAPI.Items, perm)
		case src.ServiceAccountToken != nil:
			var token string
			token, next, err = m.tokens.get(ctx, pod, src.ServiceAccountToken)
			mode, user := secretMode(pod, perm)
			files[src.ServiceAccountToken.Path] = File{Data: []byte(token), Mode: mode, UID: user}
		case src.ClusterTrustBundle != nil:
			err = m.trustBundle(ctx, files, src.ClusterTrustBundle, perm)
		case src.PodCertificate != nil:
			next, err = m.podCertificate(ctx, pod, files, fmt.Sprintf("%s/%d", name, i), src.PodCertificate, perm)
		default:
			err = fmt.Errorf("source %d of the projected volume is not supported by this kubelet", i)
		}
		if err != nil {
			return refresh, err
		}
		again(next)
	}
	return refresh, nil
}

func (m *Manager) configMap(ctx context.Context, pod *corev1.Pod, files map[string]File, name string, items []corev1.KeyToPath, perm os.FileMode, optional *bool) error {
	cm, err := m.cfg.Objects.ConfigMap(ctx, pod.Namespace, name)
	if apierrors.IsNotFound(err) && isTrue(optional) {
		return nil
	}
	if err != nil {
		return notFound(err, "configmap", name)
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for k, v := range cm.Data {
		data[k] = []byte(v)
	}
	for k, v := range cm.BinaryData {
		data[k] = v
	}
	return project(files, data, items, perm, isTrue(optional), "config")
}

func (m *Manager) secret(ctx context.Context, pod *corev1.Pod, files map[string]File, name string, items []corev1.KeyToPath, perm os.FileMode, optional *bool) error {
	s, err := m.cfg.Objects.Secret(ctx, pod.Namespace, name)
	if apierrors.IsNotFound(err) && isTrue(optional) {
		return nil
	}
	if err != nil {
		return notFound(err, "secret", name)
	}
	return project(files, s.Data, items, perm, isTrue(optional), "secret")
}

// notFound words absence as users know it from upstream.
func notFound(err error, kind, name string) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("%s %q not found", kind, name)
	}
	return fmt.Errorf("read %s %q: %w", kind, name, err)
}

// project puts all keys, or those that items name, under their paths.
func project(files map[string]File, data map[string][]byte, items []corev1.KeyToPath, perm os.FileMode, optional bool, kind string) error {
	if len(items) == 0 {
		for k, v := range data {
			files[k] = File{Data: v, Mode: perm}
		}
		return nil
	}
	for _, it := range items {
		v, ok := data[it.Key]
		if !ok {
			if optional {
				continue
			}
			return fmt.Errorf("references non-existent %s key: %s", kind, it.Key)
		}
		f := File{Data: v, Mode: perm}
		if it.Mode != nil {
			f.Mode = os.FileMode(*it.Mode)
		}
		files[it.Path] = f
	}
	return nil
}

func (m *Manager) downward(pod *corev1.Pod, files map[string]File, items []corev1.DownwardAPIVolumeFile, perm os.FileMode) error {
	var d environ.Downward
	if m.cfg.Downward != nil {
		d = m.cfg.Downward()
	}
	for _, it := range items {
		f := File{Mode: perm}
		if it.Mode != nil {
			f.Mode = os.FileMode(*it.Mode)
		}
		var s string
		var err error
		switch {
		case it.FieldRef != nil:
			s, err = d.Field(pod, it.FieldRef.FieldPath)
		case it.ResourceFieldRef != nil:
			c := container(pod, it.ResourceFieldRef.ContainerName)
			if c == nil {
				return fmt.Errorf("resourceFieldRef names container %q, which the pod does not have", it.ResourceFieldRef.ContainerName)
			}
			s, err = d.Resource(c, it.ResourceFieldRef)
		}
		if err != nil {
			return fmt.Errorf("item %s: %w", it.Path, err)
		}
		f.Data = []byte(s)
		files[it.Path] = f
	}
	return nil
}

func container(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}

func mode(m *int32) os.FileMode {
	if m == nil {
		return 0o644
	}
	return os.FileMode(*m)
}

func isTrue(b *bool) bool { return b != nil && *b }

func digestOf(payload map[string]File) uint64 {
	names := make([]string, 0, len(payload))
	for n := range payload {
		names = append(names, n)
	}
	sort.Strings(names)
	h := fnv.New64a()
	var num [8]byte
	write := func(b []byte) {
		binary.LittleEndian.PutUint64(num[:], uint64(len(b)))
		h.Write(num[:])
		h.Write(b)
	}
	for _, n := range names {
		f := payload[n]
		write([]byte(n))
		write(f.Data)
		binary.LittleEndian.PutUint64(num[:], uint64(f.Mode))
		h.Write(num[:])
	}
	return h.Sum64() | 1
}
