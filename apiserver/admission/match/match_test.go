package match

import (
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// versions serves autoscalers as v2, which is stored, and v1, which knows no behavior.
type versions struct{}

func (versions) All() []*seams.Served                                { return nil }
func (versions) TypeConverter() (managedfields.TypeConverter, error) { return nil, nil }

func (versions) Served(gr schema.GroupResource) []*seams.Served {
	if gr.Resource != "horizontalpodautoscalers" {
		return nil
	}
	return []*seams.Served{
		{Resource: &api.Resource{Group: gr.Group, Version: "v2", Kind: "HorizontalPodAutoscaler", Plural: gr.Resource}},
		{Resource: &api.Resource{Group: gr.Group, Version: "v1", Kind: "HorizontalPodAutoscaler", Plural: gr.Resource,
			Default: func(obj runtime.Object) {
				if h := obj.(*autoscalingv1.HorizontalPodAutoscaler); h.Spec.MinReplicas == nil {
					h.Spec.MinReplicas = ptr.To[int32](1)
				}
			}},
			FromStored: func(obj runtime.Object) (runtime.Object, error) {
				in := obj.(*autoscalingv2.HorizontalPodAutoscaler)
				return &autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: in.ObjectMeta, Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
					MinReplicas: in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas}}, nil
			},
			ToStored: func(obj runtime.Object) (runtime.Object, error) {
				in := obj.(*autoscalingv1.HorizontalPodAutoscaler)
				return &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: in.ObjectMeta, Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
					MinReplicas: in.Spec.MinReplicas, MaxReplicas: in.Spec.MaxReplicas}}, nil
			}},
	}
}

func TestEquivalentVersions(t *testing.T) {
	rules := []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.OperationAll},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{"autoscaling"}, APIVersions: []string{"v1"}, Resources: []string{"horizontalpodautoscalers/*", "horizontalpodautoscalers"}},
	}}
	obj := &autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{MaxReplicas: 5}}
	w := NewWrite(&seams.Attributes{Operation: seams.Update, Resource: autoscalingv2.SchemeGroupVersion.WithResource("horizontalpodautoscalers"),
		Kind: autoscalingv2.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler"), Object: obj, OldObject: obj.DeepCopy()}, nil, versions{})

	exact := ForWebhook(nil, nil, rules, ptr.To(admissionregistrationv1.Exact))
	if _, ok, err := exact.Match(t.Context(), w); ok || err != nil {
		t.Errorf("Exact matched another version (%v)", err)
	}
	equivalent := ForWebhook(nil, nil, rules, ptr.To(admissionregistrationv1.Equivalent))
	hit, ok, err := equivalent.Match(t.Context(), w)
	if err != nil || !ok || hit.Resource.Version != "v1" || hit.Kind != autoscalingv1.SchemeGroupVersion.WithKind("HorizontalPodAutoscaler") {
		t.Fatalf("Equivalent: %v %v %v", hit, ok, err)
	}
	view, err := w.View(hit.Kind)
	if err != nil {
		t.Fatal(err)
	}
	seen, is := view.VersionedObject.Object().(*autoscalingv1.HorizontalPodAutoscaler)
	if !is || seen.Spec.MaxReplicas != 5 || seen.APIVersion != "autoscaling/v1" || view.GetKind().Version != "v2" {
		t.Fatalf("view: %#v", view.VersionedObject.Object())
	}
	if _, is := view.VersionedOldObject.Object().(*autoscalingv1.HorizontalPodAutoscaler); !is {
		t.Errorf("old object: %T", view.VersionedOldObject.Object())
	}
	next := seen.DeepCopy()
	next.Spec.MaxReplicas = 9
	if err := w.Set(next, hit.Kind); err != nil {
		t.Fatal(err)
	}
	if obj.Spec.MaxReplicas != 9 || *obj.Spec.MinReplicas != 1 || obj.Kind != "" {
		t.Errorf("object of the request: %+v", obj)
	}
	if again, err := w.View(hit.Kind); err != nil || again == view {
		t.Errorf("the view survived a change (%v)", err)
	}
	w.Subresource, w.Kind = "scale", autoscalingv1.SchemeGroupVersion.WithKind("Scale")
	w.asked, w.hits = false, nil
	if hit, ok, _ := equivalent.Match(t.Context(), w); !ok || hit.Kind.Kind != "Scale" {
		t.Errorf("a subresource keeps its kind: %v %v", hit, ok)
	}
}

func TestMemo(t *testing.T) {
	built := 0
	m := Memo[*int, int]{Build: func(i *int) int { built++; return *i * 10 }}
	a, b, c := ptr.To(1), ptr.To(2), ptr.To(3)
	check := func(want int, objs ...*int) {
		t.Helper()
		got := m.Of(objs)
		for i, o := range objs {
			if got[i] != *o*10 {
				t.Fatalf("%v of %v", got, objs)
			}
		}
		if built != want {
			t.Fatalf("built %d, want %d", built, want)
		}
	}
	check(2, a, b)
	check(2, a, b)
	check(3, b, c)
	check(3, c)
	check(4, a, c)
	if m.Of(nil) != nil {
		t.Error("something of nothing")
	}
}
