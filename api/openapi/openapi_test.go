package openapi_test

import (
	"reflect"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/schema"

	"github.com/skiff-k8s/skiff/api/builtin"
	"github.com/skiff-k8s/skiff/api/openapi"
)

func TestEveryResourceHasASchema(t *testing.T) {
	raw, err := openapi.Raw()
	if err != nil {
		t.Fatal(err)
	}
	parser, err := openapi.Parser()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range builtin.Resources() {
		name := openapi.DefinitionName(r.New())
		if _, ok := raw[name]; !ok {
			t.Errorf("%s: no schema %q: run make generate in tools/openapi", r.GVK(), name)
		}
		if !parser.Type(name).IsValid() {
			t.Errorf("%s: no merge schema %q", r.GVK(), name)
		}
	}
}

func TestDefinitionsParseAndReferToEachOther(t *testing.T) {
	all, err := openapi.Definitions()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := all["io.k8s.api.core.v1.Pod"].Extensions["x-kubernetes-group-version-kind"]; !ok {
		t.Error("Pod has no x-kubernetes-group-version-kind")
	}
	raw, err := openapi.Raw()
	if err != nil {
		t.Fatal(err)
	}
	for name := range raw {
		if _, err := openapi.Closure(raw, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestClosureHoldsWhatIsNeeded(t *testing.T) {
	raw, err := openapi.Raw()
	if err != nil {
		t.Fatal(err)
	}
	some, err := openapi.Closure(raw, openapi.DefinitionName(&appsv1.Deployment{}))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"io.k8s.api.apps.v1.DeploymentSpec", "io.k8s.api.core.v1.Container",
		"io.k8s.apimachinery.pkg.apis.meta.v1.ManagedFieldsEntry", "io.k8s.apimachinery.pkg.util.intstr.IntOrString"} {
		if _, ok := some[want]; !ok {
			t.Errorf("%s is missing", want)
		}
	}
	if _, ok := some["io.k8s.api.core.v1.Node"]; ok {
		t.Error("Node has nothing to do with Deployments")
	}
	if _, err := openapi.Closure(raw, "nothing"); err == nil {
		t.Error("an unknown name must fail")
	}
}

// TestContainersMergeByName: the schema knows which lists are associative, and by what.
func TestContainersMergeByName(t *testing.T) {
	parser, err := openapi.Parser()
	if err != nil {
		t.Fatal(err)
	}
	converter := managedfields.NewSchemeTypeConverter(builtin.Scheme(), parser)
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "p"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "x", Ports: []corev1.ContainerPort{{ContainerPort: 80, Protocol: "TCP"}}}}},
	}
	v, err := converter.ObjectToTyped(pod)
	if err != nil {
		t.Fatal(err)
	}
	set, err := v.ToFieldSet()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []fieldpath.Path{
		fieldpath.MakePathOrDie("spec", "containers", fieldpath.KeyByFields("name", "a"), "image"),
		fieldpath.MakePathOrDie("spec", "containers", fieldpath.KeyByFields("name", "a"), "ports",
			fieldpath.KeyByFields("containerPort", 80, "protocol", "TCP"), "containerPort"),
	} {
		if !set.Has(p) {
			t.Errorf("%s is not in the field set", p)
		}
	}
}

func TestSchemaCodec(t *testing.T) {
	scalar, atomic, name := schema.Numeric, schema.Atomic, "x"
	types := []schema.TypeDef{
		{Name: "x", Atom: schema.Atom{Scalar: &scalar}},
		{Name: "y", Atom: schema.Atom{
			List: &schema.List{ElementType: schema.TypeRef{NamedType: &name, Nullable: true}, ElementRelationship: schema.Associative, Keys: []string{"a", "b"}},
			Map: &schema.Map{
				Fields: []schema.StructField{{Name: "f", Type: schema.TypeRef{NamedType: &name, ElementRelationship: &atomic}, Default: map[string]any{"k": "v"}},
					{Name: "g", Type: schema.TypeRef{Inlined: schema.Atom{Scalar: &scalar}}}},
				ElementType: schema.TypeRef{NamedType: &name}, ElementRelationship: schema.Separable,
			},
		}},
	}
	data, err := openapi.EncodeSchema(types)
	if err != nil {
		t.Fatal(err)
	}
	back, err := openapi.DecodeSchema(data)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(types, back) {
		t.Errorf("got %+v", back)
	}
	for cut := range data {
		if _, err := openapi.DecodeSchema(data[:cut]); err == nil {
			t.Errorf("cut at %d of %d goes unnoticed", cut, len(data))
		}
	}
}

func FuzzDecodeSchema(f *testing.F) {
	scalar := schema.String
	data, err := openapi.EncodeSchema([]schema.TypeDef{{Name: "x", Atom: schema.Atom{Scalar: &scalar}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = openapi.DecodeSchema(data) // must neither panic nor take for ever
	})
}

func BenchmarkParser(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := openapi.Parser(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRaw(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if _, err := openapi.Raw(); err != nil {
			b.Fatal(err)
		}
	}
}
