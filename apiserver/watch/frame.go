// Package watch frames watch events for the wire: JSON lines, length-delimited
// protobuf, and WebSocket messages.
//
// Owns: the framing and the loop that writes it. Must not: encode objects, know
// resources.
package watch

import (
	"encoding/binary"
	"strconv"
)

// Framing appends one event to a buffer. object is the complete encoding: JSON without
// newline, or protobuf with its envelope.
type Framing interface {
	ContentType() string
	Text() bool
	Append(buf []byte, eventType string, object []byte) []byte
}

// JSON frames as one line of JSON.
type JSON struct{}

func (JSON) ContentType() string { return "application/json" }
func (JSON) Text() bool          { return true }

func (JSON) Append(buf []byte, eventType string, object []byte) []byte {
	buf = append(buf, `{"type":`...)
	buf = strconv.AppendQuote(buf, eventType)
	buf = append(buf, `,"object":`...)
	buf = append(buf, object...)
	return append(buf, '}', '\n')
}

// Protobuf frames as four bytes of length and a metav1.WatchEvent message without
// envelope: type is field 1, object field 2, a RawExtension whose raw is field 1.
type Protobuf struct{}

func (Protobuf) ContentType() string { return "application/vnd.kubernetes.protobuf;stream=watch" }
func (Protobuf) Text() bool          { return false }

func (Protobuf) Append(buf []byte, eventType string, object []byte) []byte {
	raw := 1 + uvarintLen(len(object)) + len(object)
	size := 1 + uvarintLen(len(eventType)) + len(eventType) + 1 + uvarintLen(raw) + raw
	buf = binary.BigEndian.AppendUint32(buf, uint32(size))
	buf = append(buf, 0x0a)
	buf = binary.AppendUvarint(buf, uint64(len(eventType)))
	buf = append(buf, eventType...)
	buf = append(buf, 0x12)
	buf = binary.AppendUvarint(buf, uint64(raw))
	buf = append(buf, 0x0a)
	buf = binary.AppendUvarint(buf, uint64(len(object)))
	return append(buf, object...)
}

func uvarintLen(n int) int {
	l := 1
	for v := uint64(n); v >= 0x80; v >>= 7 {
		l++
	}
	return l
}
