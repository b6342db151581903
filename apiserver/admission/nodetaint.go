package admission

import (
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// taintNodes keeps pods off a new node until its controller has seen it ready.
type taintNodes struct{ mutating }

func (*taintNodes) Admit(_ context.Context, a *seams.Attributes) error {
	node, ok := a.Object.(*corev1.Node)
	if !ok || a.Operation != seams.Create || !is(a, nodes, "") {
		return nil
	}
	taint := corev1.Taint{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}
	if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == taint.Key && t.Effect == taint.Effect }) {
		node.Spec.Taints = append(node.Spec.Taints, taint)
	}
	return nil
}

// topologyLabels copies zone and region of a node to the pods that are bound to it (KEP-4742).
type topologyLabels struct {
	mutating
	caches lookup.Caches
}

func (t *topologyLabels) Admit(ctx context.Context, a *seams.Attributes) error {
	if a.Operation != seams.Create || a.Resource.GroupResource() != pods {
		return nil
	}
	switch obj := a.Object.(type) {
	case *corev1.Pod:
		if a.Subresource == "" && obj.Spec.NodeName != "" {
			return t.copyTo(ctx, obj.Spec.NodeName, &obj.Labels)
		}
	case *corev1.Binding:
		if a.Subresource == "binding" && (obj.Target.Kind == "Node" || obj.Target.Kind == "") {
			return t.copyTo(ctx, obj.Target.Name, &obj.Labels)
		}
	}
	return nil
}

func (t *topologyLabels) copyTo(ctx context.Context, name string, labels *map[string]string) error {
	node, err := lookup.Cached[*corev1.Node](ctx, t.caches, nodes, "", name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	found := map[string]string{}
	for _, key := range []string{corev1.LabelTopologyZone, corev1.LabelTopologyRegion} {
		if v, ok := node.Labels[key]; ok {
			found[key] = v
		}
	}
	if len(found) == 0 {
		return nil
	}
	if *labels == nil {
		*labels = map[string]string{}
	}
	maps.Copy(*labels, found)
	return nil
}
