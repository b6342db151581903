package environ

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

func sources() Sources {
	notFound := func(kind, name string) error {
		return apierrors.NewNotFound(schema.GroupResource{Resource: kind}, name)
	}
	return Sources{
		ConfigMap: func(name string) (*corev1.ConfigMap, error) {
			if name != "cm" {
				return nil, notFound("configmaps", name)
			}
			return &corev1.ConfigMap{Data: map[string]string{"a": "from-cm", "b": "$(LITERAL)"}}, nil
		},
		Secret: func(name string) (*corev1.Secret, error) {
			if name != "sec" {
				return nil, notFound("secrets", name)
			}
			return &corev1.Secret{Data: map[string][]byte{"s": []byte("hush")}}, nil
		},
		Services: []*corev1.Service{{
			ObjectMeta: metav1.ObjectMeta{Name: "my-svc"},
			Spec:       corev1.ServiceSpec{ClusterIP: "10.96.0.7", Ports: []corev1.ServicePort{{Name: "web-x", Port: 80}}},
		}, {ObjectMeta: metav1.ObjectMeta{Name: "headless"}, Spec: corev1.ServiceSpec{ClusterIP: "None", Ports: []corev1.ServicePort{{Port: 1}}}}},
		EnvFile: func(string, string) ([]byte, error) { return []byte("# c\nX='1'\nKEY='two\nlines' # end\n"), nil },
		Downward: Downward{
			HostIPs: []string{"192.0.2.1"}, PodIPs: []string{"10.244.0.5", "fd00::5"},
			Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1500m"), corev1.ResourceMemory: resource.MustParse("1Gi")},
		},
	}
}

func TestMake(t *testing.T) {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Labels: map[string]string{"app": "x", "b": `q"`}},
		Spec:       corev1.PodSpec{NodeName: "n1", ServiceAccountName: "sa"},
	}
	ref := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	c := &corev1.Container{
		Name:      "c",
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Mi")}},
		EnvFrom: []corev1.EnvFromSource{
			{Prefix: "P_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "sec"}}},
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "gone"}, Optional: ptr.To(true)}},
		},
		Env: []corev1.EnvVar{
			{Name: "LITERAL", Value: "v"},
			{Name: "EXPANDED", Value: "$(LITERAL)-$(P_a)-$(MY_SVC_SERVICE_PORT)-$$(LITERAL)-$(NOPE)-$"},
			{Name: "EMPTY"},
			{Name: "CM", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, Key: "b"}}},
			{Name: "SKIPPED", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "sec"}, Key: "no", Optional: ptr.To(true)}}},
			{Name: "FILE", ValueFrom: &corev1.EnvVarSource{FileKeyRef: &corev1.FileKeySelector{VolumeName: "v", Path: "f", Key: "KEY"}}},
			{Name: "IP", ValueFrom: ref("status.podIP")}, {Name: "IPS", ValueFrom: ref("status.podIPs")}, {Name: "HOST", ValueFrom: ref("status.hostIP")},
			{Name: "NODE", ValueFrom: ref("spec.nodeName")}, {Name: "LABEL", ValueFrom: ref("metadata.labels['app']")}, {Name: "LABELS", ValueFrom: ref("metadata.labels")},
			{Name: "CPU", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "limits.cpu"}}},
			{Name: "MEM", ValueFrom: &corev1.EnvVarSource{ResourceFieldRef: &corev1.ResourceFieldSelector{Resource: "requests.memory", Divisor: resource.MustParse("1Mi")}}},
		},
	}
	got, err := Make(pod, c, sources())
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, v := range got {
		m[v.Name] = v.Value
	}
	want := map[string]string{
		"LITERAL": "v", "EXPANDED": "v-from-cm-80-$(LITERAL)-$(NOPE)-$", "EMPTY": "", "P_a": "from-cm", "s": "hush", "CM": "$(LITERAL)",
		"FILE": "two\nlines", "IP": "10.244.0.5", "IPS": "10.244.0.5,fd00::5", "HOST": "192.0.2.1", "NODE": "n1", "LABEL": "x",
		"LABELS": "app=\"x\"\nb=\"q\\\"\"", "CPU": "2", "MEM": "100",
		"MY_SVC_SERVICE_HOST": "10.96.0.7", "MY_SVC_SERVICE_PORT_WEB_X": "80", "MY_SVC_PORT": "tcp://10.96.0.7:80", "MY_SVC_PORT_80_TCP_ADDR": "10.96.0.7",
	}
	for k, v := range want {
		if g, ok := m[k]; !ok || g != v {
			t.Errorf("%s = %q (present %v), want %q", k, g, ok, v)
		}
	}
	for _, k := range []string{"SKIPPED", "HEADLESS_SERVICE_HOST"} {
		if _, ok := m[k]; ok {
			t.Errorf("%s is set", k)
		}
	}
	if got[0].Name != "LITERAL" || got[1].Name != "EXPANDED" {
		t.Errorf("declared order is lost: %v", got[:2])
	}
}

func TestMakeErrors(t *testing.T) {
	key := func(cm string) corev1.EnvVar {
		return corev1.EnvVar{Name: "X", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: cm}, Key: "zz"}}}
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}}
	for cm, want := range map[string]string{"gone": `configmaps "gone" not found`, "cm": "couldn't find key zz in ConfigMap ns/cm"} {
		_, err := Make(pod, &corev1.Container{Env: []corev1.EnvVar{key(cm)}}, sources())
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %q", cm, err, want)
		}
	}
}

func TestParseFile(t *testing.T) {
	for _, tc := range []struct{ in, key, want, err string }{
		{"A='1'\nB='2'", "B", "2", ""},
		{"  A='x'y'", "A", "", "unexpected text"},
		{"A =  'x'", "A", "", "whitespace before"},
		{"A= 'x'\n", "A", "", ""},
		{"A=x", "A", "", "single quotes"},
		{"A='x", "A", "", "unclosed"},
		{"nonsense", "A", "", "missing"},
		{"\n\n#A='1'\nA='2'", "A", "2", ""},
	} {
		got, err := ParseFile([]byte(tc.in), tc.key)
		if got != tc.want || (err == nil) != (tc.err == "") || err != nil && !strings.Contains(err.Error(), tc.err) {
			t.Errorf("%q: %q, %v", tc.in, got, err)
		}
	}
}

func FuzzParseFile(f *testing.F) {
	f.Add([]byte("A='1'\nB='2\n3' # x\n"), "B")
	f.Fuzz(func(t *testing.T, raw []byte, key string) { _, _ = ParseFile(raw, key) })
}

func FuzzExpand(f *testing.F) {
	f.Add("$(A)$$(B)$($(A))$")
	f.Fuzz(func(t *testing.T, s string) {
		Expand(s, func(n string) (string, bool) { return "v", n == "A" })
	})
}
