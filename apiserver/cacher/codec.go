package cacher

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/api"
)

// codec translates between a resource's objects and their form in etcd, which is
// upstream's: protobuf in a runtime.Unknown envelope for built-in types, JSON for
// custom resources and for the kinds of upstream's two delegated servers. Metadata there has no resourceVersion.
type codec struct {
	api     *api.Resource
	scheme  *runtime.Scheme
	gvk     schema.GroupVersionKind // served
	storage schema.GroupVersionKind
	custom  bool
}

// message is what the generated protobuf code of a type offers.
type message interface {
	Size() int
	MarshalToSizedBuffer(b []byte) (int, error)
	Unmarshal(b []byte) error
}

var protoMagic = []byte("k8s\x00")

func newCodec(r *api.Resource, scheme *runtime.Scheme) (*codec, error) {
	if r.New == nil {
		return nil, errors.New("the resource has no New")
	}
	c := &codec{api: r, scheme: scheme, gvk: r.GVK(), storage: r.GVK()}
	if !r.StorageVersion.Empty() {
		c.storage = r.StorageVersion.WithKind(r.Kind)
	}
	_, c.custom = r.New().(*unstructured.Unstructured)
	if !c.custom {
		if _, ok := r.New().(message); !ok {
			return nil, fmt.Errorf("%T has no protobuf code", r.New())
		}
	}
	return c, nil
}

// encode returns the etcd form. It clears obj's resourceVersion.
func (c *codec) encode(obj runtime.Object) ([]byte, error) {
	o, ok := obj.(api.Object)
	if !ok {
		return nil, fmt.Errorf("%T has no metadata", obj)
	}
	o.SetResourceVersion("")
	o.SetSelfLink("")
	if c.custom {
		u, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return nil, fmt.Errorf("%T is not a custom resource", obj)
		}
		// The object was converted to the version that it names. The stored version may have
		// moved since: to call its content by another version's name would spoil it.
		if own := u.GroupVersionKind(); own.Version == "" || own.Group != c.storage.Group {
			u.SetGroupVersionKind(c.storage)
		}
		return encodeJSON(u.Object)
	}
	stored := obj
	if c.storage != c.gvk && c.scheme.Recognizes(c.storage) {
		var err error
		if stored, err = c.convert(obj, c.storage); err != nil {
			return nil, err
		}
	}
	if c.api.StoredAsJSON {
		stored.GetObjectKind().SetGroupVersionKind(c.storage)
		return encodeJSON(stored)
	}
	f, err := envelope(stored, c.storage)
	if err != nil {
		return nil, err
	}
	return f.bytes, nil
}

// encodeJSON ends in a newline, as upstream's serializer does: a server that finds other bytes
// than it would write itself writes them anew with each update that changes nothing.
func encodeJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	if err := json.NewEncoder(&b).Encode(v); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// decode reads any version of the kind that the scheme knows, and returns an object of
// the served version with defaults, TypeMeta and resourceVersion set.
func (c *codec) decode(raw []byte, rev int64) (api.Object, error) {
	obj, err := c.decodeStored(raw)
	if err != nil {
		return nil, err
	}
	// A custom object names the version it was stored in, and Default knows what follows from that.
	if !c.custom || c.api.Default == nil {
		obj.GetObjectKind().SetGroupVersionKind(c.gvk)
	}
	if c.api.Default != nil {
		c.api.Default(obj)
	}
	if c.api.OnRead != nil {
		c.api.OnRead(obj)
	}
	obj.SetResourceVersion(strconv.FormatInt(rev, 10))
	return obj, nil
}

func (c *codec) decodeStored(raw []byte) (api.Object, error) {
	if c.custom {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(raw); err != nil {
			return nil, err
		}
		return u, nil
	}
	gvk, content, unmarshal, err := c.open(raw)
	if err != nil {
		return nil, err
	}
	// Kinds that upstream stores as beta, and whose beta Go type is not linked in, have the
	// same fields under the same numbers in both versions: a v1 is promoted as it is.
	if gvk == c.gvk || gvk == c.storage && !c.scheme.Recognizes(gvk) {
		obj := c.api.New()
		return obj, unmarshal(content, obj)
	}
	stored, err := c.scheme.New(gvk)
	if err != nil {
		return nil, fmt.Errorf("stored version: %w", err)
	}
	if err := unmarshal(content, stored); err != nil {
		return nil, err
	}
	obj, err := c.convert(stored, c.gvk)
	if err != nil {
		return nil, err
	}
	o, ok := obj.(api.Object)
	if !ok {
		return nil, fmt.Errorf("%T has no metadata", obj)
	}
	return o, nil
}

// open reads the version and kind of a stored built-in object; JSON is what upstream
// writes under --storage-media-type=application/json.
func (c *codec) open(raw []byte) (schema.GroupVersionKind, []byte, func([]byte, runtime.Object) error, error) {
	if rest, ok := bytes.CutPrefix(raw, protoMagic); ok {
		var u runtime.Unknown
		if err := u.Unmarshal(rest); err != nil {
			return schema.GroupVersionKind{}, nil, nil, fmt.Errorf("envelope: %w", err)
		}
		return schema.FromAPIVersionAndKind(u.APIVersion, u.Kind), u.Raw, unmarshalProto, nil
	}
	var t struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.Unmarshal(raw, &t); err != nil {
		return schema.GroupVersionKind{}, nil, nil, errors.New("neither protobuf nor JSON")
	}
	return schema.FromAPIVersionAndKind(t.APIVersion, t.Kind), raw, unmarshalJSON, nil
}

func unmarshalProto(b []byte, obj runtime.Object) error {
	m, ok := obj.(message)
	if !ok {
		return fmt.Errorf("%T has no protobuf code", obj)
	}
	return m.Unmarshal(b)
}

func unmarshalJSON(b []byte, obj runtime.Object) error { return json.Unmarshal(b, obj) }

// convert makes an object of another version: by the scheme's conversion where it has
// one, else by field names, which is how versions of one kind correspond.
func (c *codec) convert(obj runtime.Object, to schema.GroupVersionKind) (runtime.Object, error) {
	out, err := c.scheme.New(to)
	if err != nil {
		return nil, fmt.Errorf("convert to %s: %w", to, err)
	}
	if err := c.scheme.Convert(obj, out, nil); err != nil {
		b, err := json.Marshal(obj)
		if err != nil {
			return nil, fmt.Errorf("convert to %s: %w", to, err)
		}
		if err := json.Unmarshal(b, out); err != nil {
			return nil, fmt.Errorf("convert to %s: %w", to, err)
		}
	}
	out.GetObjectKind().SetGroupVersionKind(to)
	return out, nil
}

// envelope encodes obj as k8s\0 and a runtime.Unknown, in one buffer that also holds
// the bare message: list items are written without an envelope.
func envelope(obj runtime.Object, gvk schema.GroupVersionKind) (*form, error) {
	m, ok := obj.(message)
	if !ok {
		return nil, fmt.Errorf("%T has no protobuf code", obj)
	}
	apiVersion, kind := gvk.ToAPIVersionAndKind()
	n := m.Size()
	typeMeta := 2 + len(apiVersion) + varintLen(len(apiVersion)) - 1 + 2 + len(kind) + varintLen(len(kind)) - 1
	size := len(protoMagic) + 1 + varintLen(typeMeta) + typeMeta + 1 + varintLen(n) + n + 4
	b := make([]byte, 0, size)
	b = append(b, protoMagic...)
	b = append(b, 0x0a) // Unknown.typeMeta
	b = appendVarint(b, typeMeta)
	b = append(b, 0x0a) // TypeMeta.apiVersion
	b = appendVarint(b, len(apiVersion))
	b = append(b, apiVersion...)
	b = append(b, 0x12) // TypeMeta.kind
	b = appendVarint(b, len(kind))
	b = append(b, kind...)
	b = append(b, 0x12) // Unknown.raw
	b = appendVarint(b, n)
	start := len(b)
	b = b[:start+n]
	written, err := m.MarshalToSizedBuffer(b[start:])
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", kind, err)
	}
	if written != n {
		return nil, fmt.Errorf("encode %s: %d bytes where %d were announced: the object was modified meanwhile", kind, written, n)
	}
	b = append(b, 0x1a, 0x00, 0x22, 0x00) // contentEncoding and contentType, both empty
	return &form{bytes: b, offset: start, end: start + n, cost: int64(cap(b))}, nil
}

func varintLen(n int) int {
	l := 1
	for n >= 0x80 {
		n >>= 7
		l++
	}
	return l
}

func appendVarint(b []byte, n int) []byte {
	for n >= 0x80 {
		b = append(b, byte(n)|0x80)
		n >>= 7
	}
	return append(b, byte(n))
}

// withRevisionSpliced makes, from the etcd form of an object, the envelope of the same
// object carrying a resourceVersion, without decoding it; nil if raw is not as the
// generated code writes it. Whether defaults would add anything it cannot know.
func withRevisionSpliced(raw []byte, rev int64) *form {
	rest, ok := bytes.CutPrefix(raw, protoMagic)
	if !ok {
		return nil
	}
	typeMeta, rest, ok := cutField(rest, 0x0a)
	if !ok {
		return nil
	}
	msg, rest, ok := cutField(rest, 0x12)
	if !ok || !bytes.Equal(rest, []byte{0x1a, 0x00, 0x22, 0x00}) {
		return nil
	}
	meta, body, ok := cutField(msg, 0x0a) // every kind has its metadata first
	if !ok {
		return nil
	}
	// ObjectMeta's first fields are strings, which are written even when empty: name,
	// generateName, namespace, selfLink, uid, and then resourceVersion.
	after := meta
	for _, tag := range []byte{0x0a, 0x12, 0x1a, 0x22, 0x2a} {
		if _, after, ok = cutField(after, tag); !ok {
			return nil
		}
	}
	before := meta[:len(meta)-len(after)]
	old, after, ok := cutField(after, 0x32)
	if !ok || len(old) != 0 {
		return nil
	}
	v := strconv.FormatInt(rev, 10)
	metaLen := len(before) + 2 + len(v) + len(after) // v is shorter than 128 bytes
	n := 1 + varintLen(metaLen) + metaLen + len(body)
	size := len(protoMagic) + 1 + varintLen(len(typeMeta)) + len(typeMeta) + 1 + varintLen(n) + n + 4
	b := make([]byte, 0, size)
	b = append(b, protoMagic...)
	b = append(b, 0x0a)
	b = appendVarint(b, len(typeMeta))
	b = append(b, typeMeta...)
	b = append(b, 0x12)
	b = appendVarint(b, n)
	start := len(b)
	b = append(b, 0x0a)
	b = appendVarint(b, metaLen)
	b = append(b, before...)
	b = append(b, 0x32, byte(len(v)))
	b = append(b, v...)
	b = append(b, after...)
	b = append(b, body...)
	end := len(b)
	b = append(b, 0x1a, 0x00, 0x22, 0x00)
	return &form{bytes: b, offset: start, end: end, cost: int64(cap(b))}
}

// cutField takes a length-delimited field with a one-byte tag off b.
func cutField(b []byte, tag byte) (content, rest []byte, ok bool) {
	if len(b) < 2 || b[0] != tag {
		return nil, nil, false
	}
	n, l := binary.Uvarint(b[1:])
	if l <= 0 || n > uint64(len(b)-1-l) {
		return nil, nil, false
	}
	b = b[1+l:]
	return b[:n], b[n:], true
}
