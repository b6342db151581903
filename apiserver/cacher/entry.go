package cacher

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/api"
)

// entry implements Object. At least one of raw and the pinned decoded form is always
// there; every other form is made on demand and kept within the budget.
type entry struct {
	res *resource
	key string // namespace/name or name
	rev int64
	raw atomic.Pointer[[]byte] // the etcd form
	// base is the object of a Deleted event before it took the delete's revision.
	base *entry

	// plain: the etcd form differs from the served one by nothing but the
	// resourceVersion, as was found when both were at hand. Encoding again, after
	// the budget has evicted the first, then needs no decoding.
	plain atomic.Bool

	obj   atomic.Pointer[form]
	json  atomic.Pointer[form]
	proto atomic.Pointer[form]
}

var _ Object = (*entry)(nil)

func newEntry(r *resource, key string, rev int64, raw []byte) *entry {
	e := &entry{res: r, key: key, rev: rev}
	e.raw.Store(&raw)
	return e
}

// Revision implements Object.
func (e *entry) Revision() int64 { return e.rev }

// decode returns the decoded form.
func (e *entry) decode() (*form, error) {
	if f := e.obj.Load(); f != nil {
		f.used.Store(true)
		return f, nil
	}
	var obj api.Object
	var size int64
	if e.base != nil {
		f, err := e.base.decode()
		if err != nil {
			return nil, err
		}
		obj = withRevision(f.obj.(api.Object), e.rev)
		size = 512 // everything but the top level is shared
	} else {
		raw := e.raw.Load()
		if raw == nil { // just pinned by another goroutine
			if f := e.obj.Load(); f != nil {
				return f, nil
			}
			return nil, errors.New("object has no form")
		}
		var err error
		if obj, err = e.res.codec.decode(*raw, e.rev); err != nil {
			return nil, fmt.Errorf("decode %s%s at revision %d: %w", e.res.prefix, e.key, e.rev, err)
		}
		size = int64(len(*raw))
		e.res.caches.mutations.observe(e, obj)
	}
	return e.adopt(obj, size), nil
}

// decodedFactor is about how much larger than its protobuf a decoded object is.
const decodedFactor = 3

// adopt keeps obj as the decoded form. Once in-process informers hold the objects of
// a resource anyway, the decoded form stays and the etcd form goes.
func (e *entry) adopt(obj api.Object, size int64) *form {
	f := &form{obj: obj, meta: obj, cost: decodedFactor * size}
	if !e.res.pinned.Load() {
		return e.res.caches.budget.keep(&e.obj, f)
	}
	if e.obj.CompareAndSwap(nil, f) {
		e.raw.Store(nil)
		return f
	}
	if other := e.obj.Load(); other != nil {
		return other
	}
	return f
}

// Runtime implements Object.
func (e *entry) Runtime() runtime.Object {
	f, err := e.decode()
	if err != nil {
		return e.placeholder(err).obj
	}
	return f.obj
}

// Meta implements Object.
func (e *entry) Meta() metav1.Object {
	f, err := e.decode()
	if err != nil {
		return e.placeholder(err).meta
	}
	return f.meta
}

// placeholder stands for an object that cannot be decoded where no error can be
// returned. Everything that returns errors has checked before.
func (e *entry) placeholder(err error) *form {
	e.res.caches.log.Error("stored object cannot be decoded", "err", err)
	obj := e.res.api.New()
	obj.GetObjectKind().SetGroupVersionKind(e.res.codec.gvk)
	ns, name := e.res.split(e.key)
	obj.SetNamespace(ns)
	obj.SetName(name)
	obj.SetResourceVersion(strconv.FormatInt(e.rev, 10))
	return &form{obj: obj, meta: obj}
}

// JSON implements Object.
func (e *entry) JSON() ([]byte, error) {
	if f := e.json.Load(); f != nil {
		f.used.Store(true)
		return f.bytes, nil
	}
	d, err := e.decode()
	if err != nil {
		return nil, storeReadError(err)
	}
	var v any = d.obj
	if u, ok := d.obj.(*unstructured.Unstructured); ok {
		v = u.Object
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, internalError(fmt.Errorf("encode %s%s as JSON: %w", e.res.prefix, e.key, err))
	}
	return e.res.caches.budget.keep(&e.json, &form{bytes: b, cost: int64(cap(b))}).bytes, nil
}

// Proto implements Object.
func (e *entry) Proto() ([]byte, error) {
	f, err := e.protoForm()
	if err != nil {
		return nil, err
	}
	return f.bytes, nil
}

// RawProto implements Object.
func (e *entry) RawProto() ([]byte, error) {
	f, err := e.protoForm()
	if err != nil {
		return nil, err
	}
	return f.bytes[f.offset:f.end:f.end], nil
}

func (e *entry) protoForm() (*form, error) {
	if f := e.proto.Load(); f != nil {
		f.used.Store(true)
		return f, nil
	}
	if e.res.codec.custom {
		return nil, internalError(fmt.Errorf("%s has no protobuf encoding", e.res.codec.gvk))
	}
	raw := e.raw.Load()
	if raw != nil && e.plain.Load() {
		return e.res.caches.budget.keep(&e.proto, withRevisionSpliced(*raw, e.rev)), nil
	}
	d, err := e.decode()
	if err != nil {
		return nil, storeReadError(err)
	}
	f, err := envelope(d.obj, e.res.codec.gvk)
	if err != nil {
		return nil, internalError(err)
	}
	if raw != nil {
		if spliced := withRevisionSpliced(*raw, e.rev); spliced != nil && bytes.Equal(spliced.bytes, f.bytes) {
			e.plain.Store(true)
		}
	}
	return e.res.caches.budget.keep(&e.proto, f), nil
}

// etcdForm is the object as stored, or as it would be stored now.
func (e *entry) etcdForm() ([]byte, error) {
	if raw := e.raw.Load(); raw != nil {
		return *raw, nil
	}
	d, err := e.decode()
	if err != nil {
		return nil, err
	}
	return e.res.codec.encode(withRevision(d.obj.(api.Object), 0))
}

// at is the object as a Deleted event delivers it: carrying the event's revision.
func (e *entry) at(rev int64) *entry {
	return &entry{res: e.res, key: e.key, rev: rev, base: e}
}

// size is about what the entry keeps in memory for good.
func (e *entry) size() int64 {
	if raw := e.raw.Load(); raw != nil {
		return int64(len(*raw)) + 256
	}
	return 2048
}

// release gives up the budgeted forms once the entry has left the cache.
func (e *entry) release() {
	b := e.res.caches.budget
	b.release(&e.obj)
	b.release(&e.json)
	b.release(&e.proto)
}

// withRevision copies the top level of obj, sharing all below, with another
// resourceVersion; 0 clears it.
func withRevision(obj api.Object, rev int64) api.Object {
	s := ""
	if rev != 0 {
		s = strconv.FormatInt(rev, 10)
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		top := maps.Clone(u.Object)
		if meta, ok := top["metadata"].(map[string]any); ok {
			meta = maps.Clone(meta)
			delete(meta, "resourceVersion")
			if s != "" {
				meta["resourceVersion"] = s
			}
			top["metadata"] = meta
		}
		return &unstructured.Unstructured{Object: top}
	}
	// Metadata is part of the struct by value, and resourceVersion a string in it.
	v := reflect.New(reflect.TypeOf(obj).Elem())
	v.Elem().Set(reflect.ValueOf(obj).Elem())
	out := v.Interface().(api.Object)
	out.SetResourceVersion(s)
	return out
}

// split cuts a key into namespace and name.
func (r *resource) split(key string) (namespace, name string) {
	if !r.api.Namespaced {
		return "", key
	}
	namespace, name, _ = strings.Cut(key, "/")
	return namespace, name
}
