package objects

import (
	"context"
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/skiff-k8s/skiff/kubelet/internal/fakeapi"
)

func TestCache(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm", Namespace: "ns"}, Data: map[string]string{"k": "1"}}
	client := fakeapi.New(cm)
	changed := make(chan Ref, 10)
	c := New(Config{Client: client, Logger: slog.New(slog.DiscardHandler), Changed: func(r Ref) { changed <- r }})
	defer c.Close()

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: "u"},
		Spec: corev1.PodSpec{
			Volumes:    []corev1.Volume{{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}}}},
			Containers: []corev1.Container{{EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "gone"}}}}}},
		},
	}
	c.Register(pod)
	got, err := c.ConfigMap(ctx, "ns", "cm")
	if err != nil || got.Data["k"] != "1" {
		t.Fatal(got, err)
	}
	if _, err := c.Secret(ctx, "ns", "gone"); !apierrors.IsNotFound(err) {
		t.Errorf("absent secret: %v", err)
	}
	next := cm.DeepCopy()
	next.Data["k"] = "2"
	if _, err := client.CoreV1().ConfigMaps("ns").Update(ctx, next, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	select {
	case r := <-changed:
		if want := (Ref{"ConfigMap", "ns", "cm"}); r != want {
			t.Errorf("changed %v", r)
		}
		if users := c.Users(r); len(users) != 1 || users[0] != "u" {
			t.Errorf("users %v", users)
		}
	case <-ctx.Done():
		t.Fatal("no change was reported")
	}
	if got, _ := c.ConfigMap(ctx, "ns", "cm"); got.Data["k"] != "2" {
		t.Errorf("stale: %v", got.Data)
	}
	c.Unregister("u")
	if len(c.items) != 0 {
		t.Errorf("still followed: %v", c.items)
	}
}

func TestServiceLinks(t *testing.T) {
	svc := func(ns, name string) *corev1.Service {
		return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	}
	s := NewServices(fakeapi.New(svc("default", "kubernetes"), svc("ns", "a"), svc("other", "b")), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { s.Run(ctx); close(done) }()
	<-s.Synced()
	if n := len(s.Links("ns", true)); n != 2 {
		t.Errorf("with links: %d", n)
	}
	if l := s.Links("ns", false); len(l) != 1 || l[0].Name != "kubernetes" {
		t.Errorf("without links: %v", l)
	}
	if n := len(s.Links("default", true)); n != 1 {
		t.Errorf("default namespace: %d", n)
	}
	cancel()
	<-done
}
