package builtin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/builtin"
)

// fillings is how many random objects of each kind the tests below see.
const fillings = 20

func filler(seed int64) *randfill.Filler {
	return randfill.New().NilChance(.5).NumElements(1, 2).MaxDepth(14).RandSource(rand.NewSource(seed)).Funcs(
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewQuantity(c.Int63n(1<<40), resource.DecimalSI)
			_ = q.String() // both encodings then compare equal
		},
		func(v *intstr.IntOrString, c randfill.Continue) {
			*v = intstr.FromInt32(c.Int31n(100))
			if c.Bool() {
				*v = intstr.FromString("10%")
			}
		},
		func(t *metav1.Time, c randfill.Continue) { *t = metav1.Unix(c.Int63n(1<<31), 0) },
		func(t *metav1.MicroTime, c randfill.Continue) {
			*t = metav1.MicroTime{Time: time.Unix(c.Int63n(1<<31), 1000)}
		},
		func(d *metav1.Duration, c randfill.Continue) { d.Duration = time.Duration(c.Int63n(1 << 40)) },
		func(m *metav1.ObjectMeta, c randfill.Continue) {
			c.FillNoCustom(m)
			m.ManagedFields = nil
		},
		func(m *metav1.TypeMeta, _ randfill.Continue) {},
		func(f *metav1.FieldsV1, _ randfill.Continue) { f.Raw = []byte(`{}`) },
		func(r *runtime.RawExtension, _ randfill.Continue) { r.Raw = []byte(`{"a":"b"}`) },
		func(s *apiextensionsv1.JSONSchemaProps, c randfill.Continue) {
			s.Type = "object"
			s.Properties = map[string]apiextensionsv1.JSONSchemaProps{"a": {Type: "string"}}
		},
		func(j *apiextensionsv1.JSON, _ randfill.Continue) { j.Raw = []byte(`"x"`) },
		func(s *string, c randfill.Continue) { *s = string(rune('a'+c.Intn(26))) + string(rune('0'+c.Intn(10))) },
		func(m *map[string][]byte, c randfill.Continue) { *m = map[string][]byte{"k": []byte("v")} },
		func(l *corev1.ResourceList, c randfill.Continue) {
			*l = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m")}
			for _, q := range *l {
				_ = q.String()
			}
		},
	)
}

// each runs a test on random objects of every resource.
func each(t *testing.T, f func(t *testing.T, r *api.Resource, obj api.Object)) {
	t.Helper()
	for _, r := range builtin.Resources() {
		t.Run(r.GR().String()+"/"+r.Version, func(t *testing.T) {
			for seed := range int64(fillings) {
				obj := r.New()
				filler(seed).Fill(obj)
				if r.Default != nil {
					r.Default(obj)
				}
				f(t, r, obj)
			}
		})
	}
}

func same(t *testing.T, what string, want, got any) {
	t.Helper()
	if !equality.Semantic.DeepEqual(want, got) {
		t.Fatalf("%s:\n%s", what, diff.Diff(want, got))
	}
}

func TestDeclarationsAreConsistent(t *testing.T) {
	scheme := builtin.Scheme()
	seen := map[string]bool{}
	paths := map[string]string{}
	for _, r := range builtin.Resources() {
		name := r.GVR().String()
		if seen[name] {
			t.Errorf("%s is declared twice", name)
		}
		seen[name] = true
		if r.Kind == "" || r.Plural == "" || r.Version == "" || r.New == nil {
			t.Errorf("%s: incomplete declaration", name)
			continue
		}
		gvks, _, err := scheme.ObjectKinds(r.New())
		if err != nil || !slices.Contains(gvks, r.GVK()) {
			t.Errorf("%s: the scheme knows its type as %v, %v", name, gvks, err)
		}
		if r.StoragePath != "" {
			if r.NewList == nil {
				t.Errorf("%s: stored but no NewList", name)
				continue
			}
			if other, ok := paths[r.StoragePath]; ok && other != r.Kind {
				t.Errorf("%s: storage path is that of %s", name, other)
			}
			paths[r.StoragePath] = r.Kind
			list := r.ListKind
			if list == "" {
				list = r.Kind + "List"
			}
			gvks, _, err := scheme.ObjectKinds(r.NewList())
			if want := r.GVK().GroupVersion().WithKind(list); err != nil || !slices.Contains(gvks, want) {
				t.Errorf("%s: list type is %v, %v", name, gvks, err)
			}
		}
		if (r.Columns == nil) != (r.Row == nil) {
			t.Errorf("%s: columns and row go together", name)
		}
		if r.Fields != nil {
			for key := range r.Fields(r.New()) {
				if !slices.Contains(r.FieldLabels, key) {
					t.Errorf("%s: field %s is not in FieldLabels", name, key)
				}
			}
			if n := len(r.Fields(r.New())); n != len(r.FieldLabels) {
				t.Errorf("%s: %d fields, %d labels", name, n, len(r.FieldLabels))
			}
		}
	}
}

func TestDefaultingIsIdempotent(t *testing.T) {
	each(t, func(t *testing.T, r *api.Resource, obj api.Object) {
		if r.Default == nil {
			return
		}
		again := obj.DeepCopyObject()
		r.Default(again)
		same(t, "a second defaulting changes the object", obj, again)
	})
}

func TestRoundTrips(t *testing.T) {
	scheme := builtin.Scheme()
	proto := protobuf.NewSerializer(scheme, scheme)
	each(t, func(t *testing.T, r *api.Resource, obj api.Object) {
		text, err := json.Marshal(obj)
		if err != nil {
			t.Fatal(err)
		}
		fromJSON := r.New()
		if err := json.Unmarshal(text, fromJSON); err != nil {
			t.Fatal(err)
		}
		same(t, "JSON", obj, fromJSON)

		obj.GetObjectKind().SetGroupVersionKind(r.GVK())
		var b bytes.Buffer
		if err := proto.Encode(obj, &b); err != nil {
			t.Fatal(err)
		}
		fromProto, _, err := proto.Decode(b.Bytes(), nil, r.New())
		if err != nil {
			t.Fatal(err)
		}
		fromProto.GetObjectKind().SetGroupVersionKind(r.GVK())
		if r.Default != nil {
			r.Default(fromProto) // as on every read: protobuf has no kinds of embedded objects
		}
		same(t, "protobuf", obj, fromProto)
	})
}

func TestRowsFitColumns(t *testing.T) {
	now := time.Unix(1<<31, 0)
	each(t, func(t *testing.T, r *api.Resource, obj api.Object) {
		if r.Row == nil {
			return
		}
		for _, o := range []runtime.Object{obj, r.New()} {
			before := o.DeepCopyObject()
			cells := r.Row(o, now)
			same(t, "printing changes the object", before, o)
			if len(cells) != len(r.Columns) {
				t.Fatalf("%d cells in %d columns", len(cells), len(r.Columns))
			}
			for i, c := range cells {
				switch kind := r.Columns[i].Type; c.(type) {
				case string, nil:
					if kind != "string" && kind != "integer" && kind != "boolean" && kind != "date" {
						t.Errorf("column %s of type %s", r.Columns[i].Name, kind)
					}
				case int64, bool:
				default:
					t.Errorf("column %s: cell of type %T", r.Columns[i].Name, c)
				}
			}
		}
	})
}

// TestStrategiesKeepTheirHands runs every strategy over random objects: nothing panics,
// validation changes nothing, the old object is never changed, and an object that
// validates still does so as an update of itself.
func TestStrategiesKeepTheirHands(t *testing.T) {
	ctx := context.Background()
	each(t, func(t *testing.T, r *api.Resource, obj api.Object) {
		old := obj.DeepCopyObject()
		created := obj.DeepCopyObject()
		if r.PrepareCreate != nil {
			r.PrepareCreate(ctx, created)
		}
		valid := true
		if r.Validate != nil {
			before := created.DeepCopyObject()
			valid = len(r.Validate(ctx, created)) == 0
			same(t, "validation changes the object", before, created)
		}
		if r.Warnings != nil && valid {
			r.Warnings(ctx, created, nil)
		}
		strategies := map[string]api.Strategy{"": r.Strategy}
		for _, s := range r.Subresources {
			strategies[s.Name] = s.Strategy
		}
		for name, s := range strategies {
			next := obj.DeepCopyObject()
			kept := old.DeepCopyObject()
			if s.PrepareUpdate != nil {
				s.PrepareUpdate(ctx, next, old)
				same(t, name+": prepare changes the old object", kept, old)
			}
			valid := true
			if s.ValidateUpdate != nil {
				before := next.DeepCopyObject()
				valid = len(s.ValidateUpdate(ctx, next, old)) == 0
				same(t, name+": validation changes the object", before, next)
				same(t, name+": validation changes the old object", kept, old)
			}
			if s.Warnings != nil && valid {
				s.Warnings(ctx, next, old)
			}
			if s.SpecChanged != nil {
				s.SpecChanged(next, old)
				same(t, name+": comparing changes the old object", kept, old)
			}
		}
		if valid && r.ValidateUpdate != nil {
			again := created.DeepCopyObject()
			if errs := r.ValidateUpdate(ctx, again, created); len(errs) > 0 {
				t.Fatalf("valid on create, refused as an unchanged update: %v", errs)
			}
		}
		if r.Scale != nil {
			next := obj.DeepCopyObject()
			r.Scale.Set(next, 7)
			if n, _, _ := r.Scale.Get(next); n != 7 {
				t.Fatalf("scale: set 7, got %d", n)
			}
		}
	})
}

func TestShortNamesAreUnique(t *testing.T) {
	seen := map[string]string{}
	for _, r := range builtin.Resources() {
		for _, n := range append([]string{r.Plural, strings.ToLower(r.Kind)}, r.ShortNames...) {
			// The same kind may be served in several groups and versions.
			if other, ok := seen[n]; ok && other != r.Kind {
				t.Errorf("%s names %s and %s", n, other, r.Kind)
			}
			seen[n] = r.Kind
		}
	}
}
