package apply

import (
	"fmt"
	"math/rand"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/randfill"

	"github.com/skiff-k8s/skiff/api/openapi"
)

func unchecked(t testing.TB) func(*runtime.Scheme) managedfields.TypeConverter {
	return func(s *runtime.Scheme) managedfields.TypeConverter {
		p, err := openapi.Parser()
		if err != nil {
			t.Fatal(err)
		}
		return NewTypes(s, p)
	}
}

// random are deployments with all kinds of content: nil, empty and filled, doubled and wrong.
func random(seed int64) *appsv1.Deployment {
	f := randfill.NewWithSeed(seed).NilChance(0.5).NumElements(0, 3).MaxDepth(14).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewQuantity(c.Int63n(1000), resource.DecimalSI)
		},
		func(t *metav1.Time, c randfill.Continue) { *t = metav1.Unix(c.Int63n(1e9), 0) },
		func(v *intstr.IntOrString, c randfill.Continue) { *v = intstr.FromInt32(c.Int31n(100)) },
		func(o *metav1.ObjectMeta, c randfill.Continue) { c.Fill(&o.Labels) },
	)
	d := empty().(*appsv1.Deployment)
	f.Fill(&d.Spec)
	f.Fill(&d.Status)
	f.Fill(&d.Labels)
	f.Fill(&d.Finalizers)
	if r := rand.New(rand.NewSource(seed)); r.Intn(3) == 0 {
		c := &d.Spec.Template.Spec
		c.Containers = append(c.Containers, c.Containers...)
		d.Finalizers = append(d.Finalizers, d.Finalizers...)
	}
	return d
}

// TestUncheckedTypesOwnTheSame: leaving out the check changes nothing in what managers own.
func TestUncheckedTypesOwnTheSame(t *testing.T) {
	checked, fast := deployments(t, builtin(t), "status"), deployments(t, unchecked(t), "status")
	same := 0
	for seed := range int64(300) {
		live, obj := random(seed), random(seed+1)
		if seed%4 == 0 {
			live = empty().(*appsv1.Deployment) // a create
		}
		first, errFirst := checked.Update(live, obj.DeepCopy(), "one")
		if errFirst != nil {
			continue // a check that fails leaves fields without owner; values that were decoded and validated pass
		}
		second, err := fast.Update(live, obj.DeepCopy(), "one")
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		a, b := first.(*appsv1.Deployment), second.(*appsv1.Deployment)
		for _, d := range []*appsv1.Deployment{a, b} {
			for i := range d.ManagedFields {
				d.ManagedFields[i].Time = nil
			}
		}
		if !equality.Semantic.DeepEqual(a, b) {
			t.Fatalf("seed %d:\nchecked   %s\nunchecked %s", seed, fields(a), fields(b))
		}
		same++
	}
	if same < 50 {
		t.Errorf("only %d of the objects could be compared", same)
	}
}

func fields(d *appsv1.Deployment) string {
	out := ""
	for _, m := range d.ManagedFields {
		out += fmt.Sprintf("%s %s %s\n", m.Manager, m.Operation, m.FieldsV1.Raw)
	}
	return out
}

// usual is a deployment as people write them.
func usual(image string) *appsv1.Deployment {
	d := empty().(*appsv1.Deployment)
	labels := map[string]string{"app": "web", "tier": "front"}
	d.Spec.Selector, d.Spec.Template.Labels = &metav1.LabelSelector{MatchLabels: labels}, labels
	c := corev1.Container{Name: "c", Image: image, Ports: []corev1.ContainerPort{{ContainerPort: 80, Protocol: corev1.ProtocolTCP}}}
	for i := range 10 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("NAME_%d", i), Value: "some value"})
	}
	d.Spec.Template.Spec.Containers = []corev1.Container{c}
	return d
}

func BenchmarkUpdate(b *testing.B) {
	t := &testing.T{}
	for name, types := range map[string]func(*runtime.Scheme) managedfields.TypeConverter{"checked": builtin(t), "unchecked": unchecked(t)} {
		m := deployments(t, types)
		created, err := m.Update(empty(), usual("one"), "creator")
		if err != nil {
			b.Fatal(err)
		}
		b.Run("create/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := m.Update(empty(), usual("one"), "creator"); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("change/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				next := created.DeepCopyObject().(*appsv1.Deployment)
				next.Spec.Template.Spec.Containers[0].Image = "two"
				if _, err := m.Update(created, next, "changer"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
