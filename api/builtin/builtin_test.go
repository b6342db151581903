package builtin

import (
	"bytes"
	"math/rand"
	"slices"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/equality"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"sigs.k8s.io/randfill"

	"github.com/skiff-k8s/skiff/api"
)

func TestResourcesAgreeWithTheScheme(t *testing.T) {
	scheme := Scheme()
	served, stored := map[string]bool{}, map[string]string{}
	for _, r := range Resources() {
		name := r.GVR().String()
		if served[name] {
			t.Errorf("%s is declared twice", name)
		}
		served[name] = true
		if got, _, err := scheme.ObjectKinds(r.New()); err != nil || !slices.Contains(got, r.GVK()) {
			t.Errorf("%s: New is a %v (%v), want %v", name, got, err, r.GVK())
		}
		if r.NewList != nil {
			kind := r.ListKind
			if kind == "" {
				kind = r.Kind + "List"
			}
			if got, _, err := scheme.ObjectKinds(r.NewList()); err != nil || got[0].Kind != kind {
				t.Errorf("%s: NewList is a %v (%v), want %s", name, got, err, kind)
			}
		}
		if r.StoragePath != "" {
			// Events of both groups are the same stored objects.
			if other, taken := stored[r.StoragePath]; taken && r.Plural != "events" && r.GR().String() != other {
				t.Errorf("%s and %s share storage path %s", name, other, r.StoragePath)
			}
			stored[r.StoragePath] = r.GR().String()
		}
		names := map[string]bool{}
		for _, s := range r.Subresources {
			if names[s.Name] {
				t.Errorf("%s: subresource %s is declared twice", name, s.Name)
			}
			names[s.Name] = true
		}
	}
}

func TestFieldsAndRowsHaveTheDeclaredShape(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	fill := filler(t, 1)
	for _, r := range Resources() {
		t.Run(r.GVR().String(), func(t *testing.T) {
			if (r.Fields == nil) != (len(r.FieldLabels) == 0) {
				t.Error("Fields and FieldLabels are not declared together")
			}
			if (r.Row == nil) != (len(r.Columns) == 0) {
				t.Error("Row and Columns are not declared together")
			}
			for range 20 {
				obj := r.New()
				fill(obj)
				if r.Default != nil {
					r.Default(obj)
				}
				if r.Fields != nil {
					set := r.Fields(obj)
					for _, label := range r.FieldLabels {
						if _, has := set[label]; !has {
							t.Fatalf("field %s is declared but has no value", label)
						}
					}
					if len(set) != len(r.FieldLabels) {
						t.Fatalf("fields %v, declared %v", set, r.FieldLabels)
					}
				}
				if r.Row != nil {
					if cells := r.Row(obj, now); len(cells) != len(r.Columns) {
						t.Fatalf("%d cells in %d columns: %v", len(cells), len(r.Columns), cells)
					}
				}
			}
		})
	}
}

// Objects are defaulted on every read from etcd: doing it again must change
// nothing, and encodings must keep everything.
func TestDefaultingIsIdempotentAndEncodingsKeepIt(t *testing.T) {
	scheme := Scheme()
	proto := protobuf.NewSerializer(scheme, scheme)
	text := json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{})
	for _, r := range Resources() {
		t.Run(r.GVR().String(), func(t *testing.T) {
			if r.StoragePath == "" {
				t.Skip("not stored")
			}
			fill := filler(t, 2)
			for i := range 50 {
				obj := r.New()
				fill(obj)
				obj.GetObjectKind().SetGroupVersionKind(r.GVK())
				defaulted(r, obj)
				again := obj.DeepCopyObject()
				defaulted(r, again)
				if !equality.Semantic.DeepEqual(obj, again) {
					t.Fatalf("object %d: defaulting twice differs\nonce:  %s\ntwice: %s", i, encode(t, text, obj), encode(t, text, again))
				}
				for name, s := range map[string]runtime.Serializer{"JSON": text, "protobuf": proto} {
					if name == "protobuf" && isNotProto(obj) {
						continue
					}
					// The first pass drops what no encoding keeps: empty against missing.
					first := encode(t, s, pass(t, r, s, obj))
					second := encode(t, s, pass(t, r, s, pass(t, r, s, obj)))
					if !bytes.Equal(first, second) {
						t.Fatalf("object %d: %s changes on the way\nfirst:  %q\nsecond: %q", i, name, first, second)
					}
				}
			}
		})
	}
}

func pass(t *testing.T, r *api.Resource, s runtime.Serializer, obj runtime.Object) runtime.Object {
	t.Helper()
	decoded, _, err := s.Decode(encode(t, s, obj), nil, nil)
	if err != nil {
		t.Fatalf("decode: %v", err)
	}
	defaulted(r, decoded)
	return decoded
}

func encode(t *testing.T, s runtime.Serializer, obj runtime.Object) []byte {
	t.Helper()
	var buf bytes.Buffer
	if err := s.Encode(obj, &buf); err != nil {
		t.Fatalf("encode: %v", err)
	}
	return buf.Bytes()
}

// Strategies must take any object that decodes: they see requests before
// validation, and validation sees whatever is wrong.
func TestStrategiesNeverPanic(t *testing.T) {
	ctx := t.Context()
	for _, r := range Resources() {
		t.Run(r.GVR().String(), func(t *testing.T) {
			fill := filler(t, 3)
			strategies := map[string]api.Strategy{"": r.Strategy}
			for _, s := range r.Subresources {
				strategies[s.Name] = s.Strategy
			}
			for range 50 {
				obj, old := r.New(), r.New()
				fill(obj)
				fill(old)
				if r.Default != nil {
					r.Default(obj)
					r.Default(old)
				}
				for name, s := range strategies {
					obj := obj.DeepCopyObject()
					before := old.DeepCopyObject()
					if s.PrepareCreate != nil {
						created := obj.DeepCopyObject()
						s.PrepareCreate(ctx, created)
						if s.Validate != nil {
							s.Validate(ctx, created)
						}
						if s.Warnings != nil {
							s.Warnings(ctx, created, nil)
						}
					}
					if s.PrepareUpdate != nil {
						s.PrepareUpdate(ctx, obj, before)
					}
					if s.ValidateUpdate != nil {
						s.ValidateUpdate(ctx, obj, before)
					}
					if s.Warnings != nil {
						s.Warnings(ctx, obj, before)
					}
					if s.Canonicalize != nil {
						s.Canonicalize(obj)
					}
					if !equality.Semantic.DeepEqual(before, old) {
						t.Fatalf("strategy %q writes to the old object", name)
					}
				}
			}
		})
	}
}

func defaulted(r *api.Resource, obj runtime.Object) {
	if r.Default != nil {
		r.Default(obj)
	}
}

func isNotProto(obj runtime.Object) bool {
	_, is := obj.(interface{ Marshal() ([]byte, error) })
	return !is
}

func filler(t *testing.T, seed int64) func(runtime.Object) {
	t.Helper()
	codecs := serializer.NewCodecFactory(Scheme())
	f := fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, func(serializer.CodecFactory) []any {
		return []any{
			// A schema holds schemas: filled at random it would not end.
			func(s *apiextensionsv1.JSONSchemaProps, c randfill.Continue) { s.Type = c.String(0) },
		}
	}), rand.NewSource(seed), codecs)
	return func(obj runtime.Object) {
		f.Fill(obj)
		if m, err := apimeta.Accessor(obj); err == nil {
			m.SetManagedFields(nil)
		}
	}
}
