package rest

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/skiff-k8s/skiff/apiserver/negotiate"
)

// deleteOptionsAs encodes options as old clients do, in any group's name.
func deleteOptionsAs(t testing.TB, apiVersion string) []byte {
	t.Helper()
	s := protobuf.NewSerializer(nil, nil)
	o := &metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: apiVersion}, GracePeriodSeconds: new(int64(7))}
	b, err := runtime.Encode(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDecodeDelete(t *testing.T) {
	for _, c := range []struct {
		media negotiate.Media
		body  string
		fails bool
	}{
		{negotiate.JSON, `{"gracePeriodSeconds":7}`, false},
		{negotiate.JSON, `{"kind":"DeleteOptions","apiVersion":"apps/v1","gracePeriodSeconds":7}`, false},
		{negotiate.JSON, `{"kind":"DeleteOptions","apiVersion":"example.com/v1","gracePeriodSeconds":7}`, false},
		{negotiate.YAML, "kind: DeleteOptions\ngracePeriodSeconds: 7\n", false},
		{negotiate.JSON, `{"kind":"Pod","apiVersion":"v1"}`, true},
		{negotiate.JSON, `{"gracePeriodSeconds":"x"}`, true},
		{negotiate.Protobuf, string(deleteOptionsAs(t, "apps/v1")), false},
		{negotiate.Protobuf, "k8s\x00\xff", true},
		{negotiate.Protobuf, "nothing", true},
	} {
		var o metav1.DeleteOptions
		err := decodeDelete(c.media, []byte(c.body), &o)
		if (err != nil) != c.fails {
			t.Errorf("%q: %v", c.body, err)
		}
		if !c.fails && (o.GracePeriodSeconds == nil || *o.GracePeriodSeconds != 7) {
			t.Errorf("%q: %+v", c.body, o)
		}
	}
}

func FuzzDecodeDelete(f *testing.F) {
	f.Add(uint8(negotiate.JSON), []byte(`{"kind":"DeleteOptions"}`))
	f.Add(uint8(negotiate.Protobuf), deleteOptionsAs(f, "v1"))
	f.Fuzz(func(t *testing.T, media uint8, data []byte) {
		var o metav1.DeleteOptions
		if err := decodeDelete(negotiate.Media(media%3), data, &o); err == nil && o.Kind != "" && o.Kind != "DeleteOptions" {
			t.Errorf("took a %s", o.Kind)
		}
	})
}

// TestCollectorFinalizers: propagation becomes the garbage collector's finalizers.
func TestCollectorFinalizers(t *testing.T) {
	policy := func(p metav1.DeletionPropagation) *metav1.DeleteOptions {
		return &metav1.DeleteOptions{PropagationPolicy: &p}
	}
	yes, no := true, false
	for _, c := range []struct {
		have      []string
		byDefault metav1.DeletionPropagation
		o         *metav1.DeleteOptions
		want      []string
		changed   bool
	}{
		{nil, "", &metav1.DeleteOptions{}, nil, false},
		{[]string{"a"}, "", &metav1.DeleteOptions{}, []string{"a"}, false},
		{nil, metav1.DeletePropagationOrphan, &metav1.DeleteOptions{}, []string{"orphan"}, true},
		{nil, "", policy(metav1.DeletePropagationOrphan), []string{"orphan"}, true},
		{[]string{"a"}, "", policy(metav1.DeletePropagationForeground), []string{"a", "foregroundDeletion"}, true},
		{[]string{"orphan"}, "", policy(metav1.DeletePropagationBackground), nil, true},
		{[]string{"orphan"}, "", policy(metav1.DeletePropagationForeground), []string{"foregroundDeletion"}, true},
		{[]string{"foregroundDeletion", "a"}, "", &metav1.DeleteOptions{}, []string{"a", "foregroundDeletion"}, false},
		{nil, "", &metav1.DeleteOptions{OrphanDependents: &yes}, []string{"orphan"}, true},
		{nil, metav1.DeletePropagationOrphan, &metav1.DeleteOptions{OrphanDependents: &no}, nil, false},
	} {
		got, changed := collectorFinalizers(c.have, c.byDefault, c.o)
		if changed != c.changed || len(got) != len(c.want) {
			t.Errorf("%v %q %+v: %v %v, want %v %v", c.have, c.byDefault, c.o, got, changed, c.want, c.changed)
			continue
		}
		for i := range got {
			if got[i] != c.want[i] {
				t.Errorf("%v: %v, want %v", c.have, got, c.want)
			}
		}
	}
}
