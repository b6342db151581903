package admission

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/lookup/lookuptest"
	"github.com/skiff-k8s/skiff/apiserver/seams"
	"github.com/skiff-k8s/skiff/apiserver/webhook"
)

type mutatorFunc func(pod *corev1.Pod, second bool) bool

func (f mutatorFunc) Mutate(_ context.Context, w *match.Write, r *match.Reinvocation) error {
	r.Begin(w.Object)
	if r.Calls("f") {
		r.Called("f", f(w.Object.(*corev1.Pod), r.Second), true)
	}
	r.End(w.Object)
	return nil
}

type admitFunc func(*seams.Attributes)

func (f admitFunc) Admit(_ context.Context, a *seams.Attributes) error { f(a); return nil }
func (admitFunc) Validate(context.Context, *seams.Attributes) error    { return nil }

// TestReinvocation: plugins see what mutators added, and mutators what plugins made of that.
func TestReinvocation(t *testing.T) {
	plugin := admitFunc(func(a *seams.Attributes) {
		pod := a.Object.(*corev1.Pod)
		for i := range pod.Spec.Containers {
			pod.Spec.Containers[i].ImagePullPolicy = corev1.PullAlways
		}
	})
	sidecar := func(pod *corev1.Pod, second bool) bool {
		if second {
			for _, c := range pod.Spec.Containers {
				if c.ImagePullPolicy != corev1.PullAlways {
					t.Errorf("container %s was not seen by the plugin", c.Name)
				}
			}
			return false
		}
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "sidecar"})
		return true
	}
	rounds := 0
	d := &dynamicMutation{before: seams.Chain{plugin}, mutators: []mutator{mutatorFunc(func(pod *corev1.Pod, second bool) bool {
		rounds++
		return sidecar(pod, second)
	})}}
	pod := podIn("ns", nil)
	if err := admit(t, d, write(seams.Create, core("pods"), pod, nil)); err != nil {
		t.Fatal(err)
	}
	if len(pod.Spec.Containers) != 2 || pod.Spec.Containers[1].ImagePullPolicy != corev1.PullAlways || rounds != 2 {
		t.Errorf("after %d rounds: %+v", rounds, pod.Spec.Containers)
	}
}

// BenchmarkNothingConfigured is what webhooks and policies cost where there are none.
func BenchmarkNothingConfigured(b *testing.B) {
	caches := lookuptest.New(b)
	c := &Config{Caches: caches, Authorizer: allow(), Caller: webhook.New(caches), Scheme: runtime.NewScheme()}
	chain, err := c.dynamic(nil)
	if err != nil {
		b.Fatal(err)
	}
	a := write(seams.Create, core("pods"), podIn("ns", nil), nil)
	b.ReportAllocs()
	for b.Loop() {
		if err := admit(b, chain, a); err != nil {
			b.Fatal(err)
		}
	}
}
