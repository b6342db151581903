package apiserver_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"k8s.io/client-go/kubernetes/scheme"

	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

// benchmark is a server with a namespace and an in-process client.
func benchmark(b *testing.B, change ...func(*apiserver.Config)) (*servertest.Server, kubernetes.Interface) {
	b.Helper()
	s := servertest.New(b, change...)
	k, err := kubernetes.NewForConfig(&rest.Config{Host: "http://skiff.local", Transport: s.Transport(&user.DefaultInfo{Name: "bench"}), QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf"}})
	if err != nil {
		b.Fatal(err)
	}
	if _, err := k.CoreV1().Namespaces().Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	return s, k
}

func benchPod(name string) *corev1.Pod {
	c := corev1.Container{Name: "c", Image: "registry.example.com/some/image:v1.2.3", Ports: []corev1.ContainerPort{{ContainerPort: 80}}}
	for i := range 10 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("NAME_%d", i), Value: "some value of an ordinary length"})
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "bench", "tier": "front"}}, Spec: corev1.PodSpec{Containers: []corev1.Container{c}}}
}

func BenchmarkCreatePod(b *testing.B) {
	_, k := benchmark(b)
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		if _, err := k.CoreV1().Pods("default").Create(b.Context(), benchPod(fmt.Sprintf("p%d", i)), metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkGetPod(b *testing.B) {
	_, k := benchmark(b)
	if _, err := k.CoreV1().Pods("default").Create(b.Context(), benchPod("p"), metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := k.CoreV1().Pods("default").Get(b.Context(), "p", metav1.GetOptions{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkPatchStatus(b *testing.B) {
	_, k := benchmark(b)
	if _, err := k.CoreV1().Pods("default").Create(b.Context(), benchPod("p"), metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		body := fmt.Appendf(nil, `{"status":{"message":"%d"}}`, i)
		if _, err := k.CoreV1().Pods("default").Patch(b.Context(), "p", types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkListPods(b *testing.B) {
	certificate, ca := pair(b)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	s, k := benchmark(b, func(c *apiserver.Config) {
		c.Listener, c.TLS = ln, &tls.Config{Certificates: []tls.Certificate{certificate}}
	})
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for i := range 1000 {
		if _, err := k.CoreV1().Pods("default").Create(b.Context(), benchPod(fmt.Sprintf("p%d", i)), metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	for _, media := range []string{"application/json", "application/vnd.kubernetes.protobuf"} {
		for _, gzip := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/gzip=%v", media, gzip), func(b *testing.B) {
				c := &rest.Config{Host: "https://" + ln.Addr().String(), TLSClientConfig: rest.TLSClientConfig{CAData: ca}, QPS: -1, DisableCompression: !gzip}
				c.GroupVersion, c.NegotiatedSerializer = &corev1.SchemeGroupVersion, scheme.Codecs.WithoutConversion()
				r, err := rest.UnversionedRESTClientFor(c)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportAllocs()
				for b.Loop() {
					raw, err := r.Get().AbsPath("/api/v1/pods").SetHeader("Accept", media).DoRaw(b.Context())
					if err != nil {
						b.Fatal(err)
					}
					b.SetBytes(int64(len(raw)))
				}
			})
		}
	}
}
