package cacher

import (
	"bytes"
	"encoding/json"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"github.com/skiff-k8s/skiff/store/mem"
)

// Encodings are byte for byte what apimachinery's serializers make.
func TestEncodings(t *testing.T) {
	w := start(t)
	p := pod("ns", "a")
	p.Labels = map[string]string{"b": "2", "a": "<1>"}
	p.Spec.Containers[0].Command = []string{"sh", "-c", "a && b > c"}
	o := w.create(t, p)

	serializers := protobuf.NewSerializer(w.set.cfg.Scheme, w.set.cfg.Scheme)
	var want bytes.Buffer
	if err := serializers.Encode(o.Runtime(), &want); err != nil {
		t.Fatal(err)
	}
	got, err := o.Proto()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("protobuf\n%q, want\n%q", got, want.Bytes())
	}
	raw, err := o.RawProto()
	if err != nil {
		t.Fatal(err)
	}
	var back corev1.Pod
	if err := back.Unmarshal(raw); err != nil || back.ResourceVersion != o.Meta().GetResourceVersion() {
		t.Errorf("the bare message does not decode: %v", err)
	}

	codecs := serializer.NewCodecFactory(w.set.cfg.Scheme)
	info, _ := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	want.Reset()
	if err := info.Serializer.Encode(o.Runtime(), &want); err != nil {
		t.Fatal(err)
	}
	b, err := o.JSON()
	if err != nil {
		t.Fatal(err)
	}
	if string(b)+"\n" != want.String() {
		t.Errorf("JSON\n%s, want\n%s", b, want.String())
	}
	again, err := o.JSON()
	if err != nil || &again[0] != &b[0] {
		t.Error("the encoding was made twice")
	}

	// In etcd there is the same message without resourceVersion.
	kv, _, err := w.store.Get(t.Context(), "/registry/pods/ns/a")
	if err != nil {
		t.Fatal(err)
	}
	want.Reset()
	stored := pod("ns", "a")
	stored.Labels, stored.Spec.Containers = p.Labels, p.Spec.Containers
	stored.TypeMeta.Kind, stored.TypeMeta.APIVersion = "Pod", "v1"
	if err := serializers.Encode(stored, &want); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(kv.Value, want.Bytes()) {
		t.Errorf("stored\n%q, want\n%q", kv.Value, want.Bytes())
	}
}

// What an API server with --storage-media-type=application/json has stored is read.
func TestStoredJSON(t *testing.T) {
	w := start(t)
	p := pod("ns", "a")
	p.Kind, p.APIVersion = "Pod", "v1"
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.store.Create(t.Context(), "/registry/pods/ns/a", b, 0); err != nil {
		t.Fatal(err)
	}
	o, err := w.pods.Get(t.Context(), "ns", "a", "")
	if err != nil {
		t.Fatal(err)
	}
	if got := o.Runtime().(*corev1.Pod); got.Spec.Containers[0].Image != "i" || got.Spec.RestartPolicy != corev1.RestartPolicyAlways {
		t.Errorf("got %v", got)
	}
}

func TestBudget(t *testing.T) {
	w := start(t, func(c *Config) { c.Budget = 20_000 })
	for _, ns := range []string{"a", "b", "c"} {
		for i := range 100 {
			w.create(t, pod(ns, "p"+string(rune('a'+i%26))+string(rune('a'+i/26))))
		}
	}
	l, err := w.pods.List(t.Context(), ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range l.Items {
		if _, err := o.JSON(); err != nil {
			t.Fatal(err)
		}
		if _, err := o.Proto(); err != nil {
			t.Fatal(err)
		}
		if got := w.set.budget.size(); got > 20_000 {
			t.Fatalf("%d bytes are kept", got)
		}
	}
	for _, o := range l.Items {
		ns, name := o.(*entry).res.split(o.(*entry).key)
		w.remove(t, ns, name)
	}
}

// Everything ends in a bubble, too, and time there is the bubble's.
func TestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{store: mem.New(mem.Config{})}
		w.set = runCaches(t, w.store)
		w.pods = w.cache(t, "pods")
		watcher := open(t, w, WatchOptions{ResourceVersion: "0", Bookmarks: true})
		w.create(t, pod("ns", "a"))
		if e := <-watcher.Events(); e.Object == nil {
			t.Fatalf("event %v", e)
		}
		began := time.Now()
		for range 60 {
			if e := <-watcher.Events(); e.Type != "BOOKMARK" {
				t.Fatalf("event %v", e)
			}
		}
		if d := time.Since(began); d < 50*time.Minute || d > 70*time.Minute {
			t.Errorf("60 bookmarks took %v", d)
		}
		watcher.Stop()
	})
}

// A StorageVersion is written, and both it and the served version are read.
func TestStorageVersion(t *testing.T) {
	for _, known := range []bool{true, false} {
		scheme := testScheme(t)
		r := podResource()
		r.StorageVersion = schema.GroupVersion{Group: "old.example.com", Version: "v1beta1"}
		if known {
			scheme.AddKnownTypes(r.StorageVersion, &corev1.Pod{})
		}
		c, err := newCodec(r, scheme)
		if err != nil {
			t.Fatal(err)
		}
		raw, err := c.encode(pod("ns", "a"))
		if err != nil {
			t.Fatal(err)
		}
		var u runtime.Unknown
		if err := u.Unmarshal(raw[len(protoMagic):]); err != nil || u.APIVersion != "old.example.com/v1beta1" || u.Kind != "Pod" {
			t.Errorf("stored as %s %s, %v", u.APIVersion, u.Kind, err)
		}
		f, err := envelope(pod("ns", "a"), c.gvk)
		if err != nil {
			t.Fatal(err)
		}
		for _, raw := range [][]byte{raw, f.bytes} {
			obj, err := c.decode(raw, 5)
			if err != nil {
				t.Fatal(err)
			}
			if p := obj.(*corev1.Pod); p.APIVersion != "v1" || p.Kind != "Pod" || p.Name != "a" || p.ResourceVersion != "5" {
				t.Errorf("decoded %v", p.TypeMeta)
			}
		}
	}
}

// Making the protobuf again after eviction gives the same bytes as the first time.
func TestSplice(t *testing.T) {
	w := start(t)
	full := pod("ns", "a")
	full.Spec.RestartPolicy = corev1.RestartPolicyAlways
	for _, test := range []struct {
		pod   *corev1.Pod
		plain bool
	}{
		{full, true},
		{pod("ns", "defaulted-on-read"), false},
		{typicalPod("ns", "typical"), false},
	} {
		e := w.create(t, test.pod).(*entry)
		first, err := e.Proto()
		if err != nil {
			t.Fatal(err)
		}
		if e.plain.Load() != test.plain {
			t.Errorf("%s: plain is %t", e.key, !test.plain)
		}
		e.release()
		again, err := e.Proto()
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(first, again) {
			t.Errorf("%s: first\n%q, then\n%q", e.key, first, again)
		}
		if test.plain && e.obj.Load() != nil {
			t.Errorf("%s was decoded again", e.key)
		}
	}
}

func FuzzSplice(f *testing.F) {
	c, err := newCodec(podResource(), runtime.NewScheme())
	if err != nil {
		f.Fatal(err)
	}
	for _, p := range []*corev1.Pod{pod("ns", "a"), typicalPod("ns", "b"), {}} {
		raw, err := c.encode(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, int64(7))
	}
	f.Fuzz(func(t *testing.T, raw []byte, rev int64) {
		if rev <= 0 {
			return
		}
		spliced := withRevisionSpliced(raw, rev)
		if spliced == nil {
			return
		}
		var u runtime.Unknown
		if err := u.Unmarshal(raw[len(protoMagic):]); err != nil {
			return
		}
		var before, after corev1.Pod
		if before.Unmarshal(u.Raw) != nil {
			return
		}
		if canonical, err := before.Marshal(); err != nil || !bytes.Equal(canonical, u.Raw) {
			return // entries compare before they rely on splicing
		}
		if err := after.Unmarshal(spliced.bytes[spliced.offset:spliced.end]); err != nil {
			t.Fatalf("the result does not decode: %v", err)
		}
		before.ResourceVersion = after.ResourceVersion
		if !equality.Semantic.DeepEqual(before, after) || after.ResourceVersion != strconv.FormatInt(rev, 10) {
			t.Errorf("spliced %v, want %v", after, before)
		}
	})
}
