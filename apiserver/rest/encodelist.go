package rest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// jsonList frames items, encoded but for their opening brace, as apimachinery would encode the list. Keys of custom
// lists are sorted, as those of maps are.
func jsonList(kind schema.GroupVersionKind, lm metav1.ListMeta, items [][]byte, custom bool) ([][]byte, error) {
	m, err := json.Marshal(lm)
	if err != nil {
		return nil, err
	}
	var head, tail []byte
	if custom {
		head = fmt.Appendf(nil, `{"apiVersion":%q,"items":[`, kind.GroupVersion().String())
		tail = fmt.Appendf(nil, `],"kind":%q,"metadata":%s}`, kind.Kind, customListMeta(lm))
	} else {
		head = fmt.Appendf(nil, `{"kind":%q,"apiVersion":%q,"metadata":%s,"items":[`, kind.Kind, kind.GroupVersion().String(), m)
		tail = []byte("]}")
	}
	parts := make([][]byte, 0, 2*len(items)+2)
	parts = append(parts, head)
	for i, it := range items {
		if i > 0 {
			parts = append(parts, nextItem, it)
		} else {
			parts = append(parts, firstItem, it)
		}
	}
	return append(parts, tail), nil
}

var firstItem, nextItem = []byte("{"), []byte(",{")

// customListMeta has its keys sorted; continue and resourceVersion are always there.
func customListMeta(lm metav1.ListMeta) []byte {
	m := map[string]any{"continue": lm.Continue, "resourceVersion": lm.ResourceVersion}
	if lm.RemainingItemCount != nil {
		m["remainingItemCount"] = *lm.RemainingItemCount
	}
	b, err := json.Marshal(m)
	if err != nil {
		return []byte("{}") // strings and an integer always encode
	}
	return b
}

type protoMessage interface {
	Size() int
	MarshalToSizedBuffer([]byte) (int, error)
}

// rawProto is the message of an object without the envelope.
func rawProto(obj runtime.Object) ([]byte, error) {
	m, ok := obj.(protoMessage)
	if !ok {
		return nil, fmt.Errorf("%T has no protobuf form", obj)
	}
	b := make([]byte, m.Size())
	n, err := m.MarshalToSizedBuffer(b)
	if err != nil {
		return nil, err
	}
	return b[len(b)-n:], nil
}

var protoMagic = []byte("k8s\x00")

// protoList frames encoded items as a List message (metadata is field 1, items field 2)
// inside runtime.Unknown inside the k8s\0 envelope.
func protoList(kind schema.GroupVersionKind, lm metav1.ListMeta, items [][]byte) ([][]byte, error) {
	meta, err := rawProto(&listMetaObject{lm})
	if err != nil {
		return nil, err
	}
	parts := make([][]byte, 0, 2*len(items)+3)
	size := 0
	add := func(b []byte) {
		parts = append(parts, b)
		size += len(b)
	}
	parts = append(parts, nil) // the envelope's head, once the size is known
	add(tag(1, len(meta)))
	add(meta)
	for _, it := range items {
		add(tag(2, len(it)))
		add(it)
	}
	parts[0] = unknownHead(kind, size)
	return append(parts, unknownTail), nil
}

// unknownHead starts runtime.Unknown{TypeMeta, Raw} up to the Raw bytes.
func unknownHead(kind schema.GroupVersionKind, size int) []byte {
	gv := kind.GroupVersion().String()
	tm := append(tag(1, len(gv)), gv...)
	tm = append(tm, tag(2, len(kind.Kind))...)
	tm = append(tm, kind.Kind...)
	head := append([]byte(nil), protoMagic...)
	head = append(head, tag(1, len(tm))...)
	head = append(head, tm...)
	return append(head, tag(2, size)...)
}

// unknownTail is the empty contentEncoding and contentType.
var unknownTail = []byte{0x1a, 0x00, 0x22, 0x00}

// tag is the tag and length of a length-delimited field.
func tag(number, length int) []byte {
	b := make([]byte, 0, 10)
	b = append(b, byte(number<<3|2))
	return binary.AppendUvarint(b, uint64(length))
}

// listMetaObject lets rawProto take a ListMeta.
type listMetaObject struct{ metav1.ListMeta }

func (*listMetaObject) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }
func (o *listMetaObject) DeepCopyObject() runtime.Object {
	return &listMetaObject{*o.ListMeta.DeepCopy()}
}

func marshal(obj any) ([]byte, error) { return json.Marshal(obj) }
