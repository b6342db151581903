package admission

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// defaultTolerationSeconds lets pods stay for five minutes on a node that became
// unreachable or not ready, unless they say otherwise.
type defaultTolerationSeconds struct{ mutating }

const tolerated = 300

func (*defaultTolerationSeconds) Admit(_ context.Context, a *seams.Attributes) error {
	pod, ok := a.Object.(*corev1.Pod)
	if !ok || !is(a, pods, "") || (a.Operation != seams.Create && a.Operation != seams.Update) {
		return nil
	}
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if tolerates(pod.Spec.Tolerations, taint) {
			continue
		}
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, corev1.Toleration{
			Key: taint, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute,
			TolerationSeconds: ptr.To[int64](tolerated),
		})
	}
	return nil
}

func tolerates(list []corev1.Toleration, taint string) bool {
	for _, t := range list {
		if (t.Key == taint || t.Key == "") && (t.Effect == corev1.TaintEffectNoExecute || t.Effect == "") {
			return true
		}
	}
	return false
}
