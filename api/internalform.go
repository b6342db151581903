package api

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
)

// internalForm shows a value of k8s.io/api as upstream's unversioned types show theirs, which
// messages of validation do: fields under their Go names, empty ones too.
type internalForm struct{ v any }

// Internal is v in that form, for messages. Values of other packages stay as they are.
func Internal(v any) any {
	t := reflect.TypeOf(v)
	for t != nil && (t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice) {
		t = t.Elem()
	}
	if t == nil || t.Kind() != reflect.Struct || !versioned(t) {
		return v
	}
	return internalForm{v}
}

// versioned tells whether a type has an unversioned twin, that is not of the machinery's.
func versioned(t reflect.Type) bool { return strings.HasPrefix(t.PkgPath(), "k8s.io/api/") }

// MarshalJSON implements json.Marshaler.
func (f internalForm) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	err := writeInternal(&b, reflect.ValueOf(f.v))
	return b.Bytes(), err
}

func writeInternal(b *bytes.Buffer, v reflect.Value) error {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			b.WriteString("null")
			return nil
		}
		return writeInternal(b, v.Elem())
	case reflect.Slice:
		if v.IsNil() || v.Type().Elem().Kind() == reflect.Uint8 {
			break
		}
		b.WriteByte('[')
		for i := range v.Len() {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := writeInternal(b, v.Index(i)); err != nil {
				return err
			}
		}
		b.WriteByte(']')
		return nil
	case reflect.Struct:
		if !versioned(v.Type()) {
			break
		}
		b.WriteByte('{')
		first := true
		if err := writeFields(b, v, &first); err != nil {
			return err
		}
		b.WriteByte('}')
		return nil
	}
	j, err := json.Marshal(v.Interface())
	b.Write(j)
	return err
}

// writeFields writes the fields of a struct, those of embedded ones among them.
func writeFields(b *bytes.Buffer, v reflect.Value, first *bool) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		switch {
		case f.Anonymous && f.Type.Kind() == reflect.Struct && versioned(f.Type):
			if err := writeFields(b, v.Field(i), first); err != nil {
				return err
			}
			continue
		case f.Anonymous: // metadata, the same type there
			j, err := json.Marshal(v.Field(i).Interface())
			if err != nil {
				return err
			}
			if j = bytes.TrimSuffix(bytes.TrimPrefix(j, []byte("{")), []byte("}")); len(j) > 0 {
				separate(b, first)
				b.Write(j)
			}
			continue
		}
		separate(b, first)
		name, err := json.Marshal(f.Name)
		if err != nil {
			return err
		}
		b.Write(name)
		b.WriteByte(':')
		if err := writeInternal(b, v.Field(i)); err != nil {
			return err
		}
	}
	return nil
}

func separate(b *bytes.Buffer, first *bool) {
	if !*first {
		b.WriteByte(',')
	}
	*first = false
}
