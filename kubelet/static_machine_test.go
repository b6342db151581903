package kubelet

import (
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// staticPod is a manifest.
func (m *machine) staticPod(name, command string) *corev1.Pod {
	grace := int64(1)
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{DNSPolicy: corev1.DNSDefault, TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{m.container("c", command)}},
	}
}

// manifest writes a file for the kubelet, as a whole.
func (m *machine) manifest(file string, pod *corev1.Pod) {
	m.Helper()
	raw, err := yaml.Marshal(pod)
	if err != nil {
		m.Fatal(err)
	}
	dir := m.dir + "/manifests"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		m.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "."+file), raw, 0o644); err != nil {
		m.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "."+file), filepath.Join(dir, file)); err != nil {
		m.Fatal(err)
	}
}
