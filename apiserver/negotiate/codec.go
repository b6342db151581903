package negotiate

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"mime"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	kjson "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	sjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// Codecs decode and encode the types of one scheme. No conversion, no defaulting.
type Codecs struct {
	loose, strict [2]*kjson.Serializer // by JSON, YAML
	proto         *protobuf.Serializer
}

// NewCodecs builds the codecs of a scheme.
func NewCodecs(scheme *runtime.Scheme) *Codecs {
	c := &Codecs{proto: protobuf.NewSerializer(scheme, scheme)}
	for _, m := range []Media{JSON, YAML} {
		o := kjson.SerializerOptions{Yaml: m == YAML}
		c.loose[m] = kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme, scheme, o)
		o.Strict = true
		c.strict[m] = kjson.NewSerializerWithOptions(kjson.DefaultMetaFactory, scheme, scheme, o)
	}
	return c
}

// Input is the media type of a request's body; empty means JSON. 415 if unknown.
func Input(contentType string, allow Allow) (Media, error) {
	if contentType == "" {
		return JSON, nil
	}
	if t, _, err := mime.ParseMediaType(contentType); err == nil {
		for _, m := range all {
			if t == m.Type() && (m != Protobuf || !allow.NoProtobuf) {
				return m, nil
			}
		}
	}
	var s []string
	for _, m := range all {
		if m != Protobuf || !allow.NoProtobuf {
			s = append(s, m.Type())
		}
	}
	return JSON, UnsupportedMediaType(s)
}

// Decode reads a typed object. into is a hint; the result is of the kind that the
// data names, if it names one. With strict, unknown and duplicate fields make a
// strict decoding error, returned together with the object.
func (c *Codecs) Decode(m Media, strict bool, data []byte, kind *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	switch {
	case m == Protobuf:
		return c.proto.Decode(data, kind, into)
	case strict:
		return c.strict[m].Decode(data, kind, into)
	}
	return c.loose[m].Decode(data, kind, into)
}

// DecodeUnstructured reads a custom object.
func DecodeUnstructured(m Media, strict bool, data []byte, kind schema.GroupVersionKind) (*unstructured.Unstructured, *schema.GroupVersionKind, error) {
	var problems []error
	if m == YAML {
		var err error
		if strict {
			if _, serr := yaml.YAMLToJSONStrict(data); serr != nil {
				problems = append(problems, serr)
			}
		}
		if data, err = yaml.YAMLToJSON(data); err != nil {
			return nil, nil, err
		}
	}
	u := &unstructured.Unstructured{}
	if strict && m == JSON {
		dup, err := sjson.UnmarshalStrict(data, &u.Object)
		if err != nil {
			return nil, nil, err
		}
		problems = append(problems, dup...)
	} else if err := sjson.UnmarshalCaseSensitivePreserveInts(data, &u.Object); err != nil {
		return nil, nil, err
	}
	if u.Object == nil {
		return nil, nil, errors.New("the object is empty")
	}
	gvk := u.GroupVersionKind()
	if gvk.Kind == "" {
		gvk.Kind = kind.Kind
	}
	if gvk.Group == "" && gvk.Version == "" {
		gvk.Group, gvk.Version = kind.Group, kind.Version
	}
	u.SetGroupVersionKind(gvk)
	if len(problems) > 0 {
		return u, &gvk, runtime.NewStrictDecodingError(problems)
	}
	return u, &gvk, nil
}

// Encode writes an object whose TypeMeta is set, as the server answers it.
func (c *Codecs) Encode(obj runtime.Object, o Output) ([]byte, error) {
	if o.Media == Protobuf {
		var buf bytes.Buffer
		if err := c.proto.Encode(obj, &buf); err != nil {
			return nil, fmt.Errorf("encoding %T as protobuf: %w", obj, err)
		}
		return buf.Bytes(), nil
	}
	data, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("encoding %T as JSON: %w", obj, err)
	}
	return FinishJSON(data, o)
}

// FinishJSON turns compact JSON without newline into what the client asked for.
func FinishJSON(data []byte, o Output) ([]byte, error) {
	switch {
	case o.Media == YAML:
		return yaml.JSONToYAML(data)
	case o.Pretty:
		var buf bytes.Buffer
		buf.Grow(len(data) * 2)
		if err := json.Indent(&buf, bytes.TrimRight(data, "\n"), "", "  "); err != nil {
			return nil, err
		}
		return buf.Bytes(), nil
	}
	if n := len(data); n > 0 && data[n-1] == '\n' {
		return data, nil
	}
	out := make([]byte, len(data)+1)
	copy(out, data)
	out[len(data)] = '\n'
	return out, nil
}
