package cacher

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// mutations checks a sample of the shared objects for being what they were when they
// were decoded. A component that changes an object it got from an informer changes it
// for everybody here, the API's clients included: better to hear of that early.
type mutations struct {
	every  uint64
	report func(error)
	n      atomic.Uint64

	mu      sync.Mutex
	samples [mutationSamples]sample
	next    int
}

type sample struct {
	e    *entry
	obj  runtime.Object
	then []byte
}

const (
	mutationEvery   = 64
	mutationSamples = 64
)

// observe takes obj, which nobody else has yet, as a sample now and then.
func (m *mutations) observe(e *entry, obj runtime.Object) {
	if m.n.Add(1)%m.every != 0 {
		return
	}
	then, err := e.res.codec.fingerprint(obj)
	if err != nil {
		return // whoever needs the encoding gets the error
	}
	m.mu.Lock()
	old := m.samples[m.next]
	m.samples[m.next] = sample{e, obj, then}
	m.next = (m.next + 1) % mutationSamples
	m.mu.Unlock()
	m.verify(old)
}

// verifyAll checks the samples.
func (m *mutations) verifyAll() {
	m.mu.Lock()
	samples := m.samples
	m.mu.Unlock()
	for i, s := range samples {
		if m.verify(s) {
			continue
		}
		m.mu.Lock() // tell of each once
		if m.samples[i].obj == s.obj {
			m.samples[i] = sample{}
		}
		m.mu.Unlock()
	}
}

func (m *mutations) verify(s sample) (same bool) {
	if s.obj == nil {
		return true
	}
	now, err := s.e.res.codec.fingerprint(s.obj)
	if err == nil && bytes.Equal(now, s.then) {
		return true
	}
	m.report(fmt.Errorf("a shared object was changed: %s%s at revision %d: %s",
		s.e.res.prefix, s.e.key, s.e.rev, s.e.res.codec.difference(s.then, s.obj)))
	return false
}

// fingerprint is an encoding that changes with the object.
func (c *codec) fingerprint(obj runtime.Object) ([]byte, error) {
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return json.Marshal(u.Object)
	}
	f, err := envelope(obj, c.gvk)
	if err != nil {
		return nil, err
	}
	return f.bytes[f.offset:f.end], nil
}

// difference names the first field that differs. It never shows values: they may be secret.
func (c *codec) difference(then []byte, now runtime.Object) string {
	before := then
	if !c.custom {
		obj := c.api.New()
		if err := unmarshalProto(then, obj); err != nil {
			return "in an unknown field"
		}
		obj.GetObjectKind().SetGroupVersionKind(c.gvk)
		before, _ = json.Marshal(obj) // an object just decoded
	}
	var a, b any
	after, err := json.Marshal(now)
	if err != nil || json.Unmarshal(before, &a) != nil || json.Unmarshal(after, &b) != nil {
		return "it cannot be encoded any more"
	}
	if path, differs := firstDifference(a, b); differs {
		return "field " + path
	}
	return "in a field that JSON does not show"
}

// firstDifference is the path of the first field that differs, as .spec.containers[0].image.
func firstDifference(a, b any) (path string, differs bool) {
	if reflect.DeepEqual(a, b) {
		return "", false
	}
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok {
			return "", true
		}
		all := maps.Clone(a)
		maps.Copy(all, b)
		for _, k := range slices.Sorted(maps.Keys(all)) {
			_, in := a[k]
			_, still := b[k]
			if in != still {
				return "." + k, true
			}
			if path, differs := firstDifference(a[k], b[k]); differs {
				return "." + k + path, true
			}
		}
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return "", true
		}
		for i := range a {
			if path, differs := firstDifference(a[i], b[i]); differs {
				return fmt.Sprintf("[%d]%s", i, path), true
			}
		}
	}
	return "", true
}
