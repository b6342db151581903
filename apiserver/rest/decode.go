package rest

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/yaml"

	"github.com/skiff-k8s/skiff/apiserver/negotiate"
)

// input reads the body and its media type.
func (c *call) input(custom bool) ([]byte, negotiate.Media, error) {
	media, err := negotiate.Input(c.req.Header.Get("Content-Type"), negotiate.Allow{NoProtobuf: custom})
	if err != nil {
		return nil, media, err
	}
	data, err := c.body()
	return data, media, err
}

// strict tells whether unknown and duplicate fields matter.
func strict(directive string) bool { return directive != metav1.FieldValidationIgnore }

// decode reads an object with its defaults. The directive says whether unknown and
// duplicate fields are errors, warnings (also the default) or nothing.
func (r *resource) decode(ctx context.Context, media negotiate.Media, data []byte, directive string) (runtime.Object, error) {
	if r.custom {
		return r.decodeCustom(ctx, media, data, directive)
	}
	kind := r.gvk
	obj, gvk, err := r.g.codecs.Decode(media, strict(directive), data, &kind, r.New())
	if err != nil {
		s, isStrict := runtime.AsStrictDecodingError(err)
		if !isStrict || obj == nil || directive == metav1.FieldValidationStrict {
			return nil, decodeError(err, gvk, r.Kind, data)
		}
		warnStrict(ctx, s.Errors())
	}
	if err := r.expect(*gvk); err != nil {
		return nil, err
	}
	r.fill(obj)
	return obj, nil
}

// expect refuses objects of another kind.
func (r *resource) expect(gvk schema.GroupVersionKind) error {
	if gvk.Kind != r.Kind {
		return inconvertible(gvk, r.gvk)
	}
	if gvk.GroupVersion() != r.gvk.GroupVersion() {
		return apierrors.NewBadRequest(fmt.Sprintf("the API version in the data (%s) does not match the expected API version (%s)",
			gvk.GroupVersion(), r.gvk.GroupVersion()))
	}
	return nil
}

// inconvertible is the error for an object of a kind that is not the one wanted.
func inconvertible(gvk, want schema.GroupVersionKind) error {
	return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: converting (%s.%s) to (%s): unknown conversion",
		gvk.Kind, gvk.Version, want.Kind, gvk.Version, gvk.Kind, internalName(want.Group, want.Kind)))
}

// internalName is what upstream calls its unversioned type of a kind: messages show it.
func internalName(group, kind string) string {
	if group == "" {
		return "core." + kind
	}
	first, _, _ := strings.Cut(group, ".")
	return first + "." + kind
}

func (r *resource) decodeCustom(ctx context.Context, media negotiate.Media, data []byte, directive string) (runtime.Object, error) {
	u, gvk, err := negotiate.DecodeUnstructured(media, strict(directive), data, r.gvk)
	var problems []error
	if err != nil {
		s, isStrict := runtime.AsStrictDecodingError(err)
		if !isStrict || u == nil {
			return nil, decodeError(err, gvk, r.Kind, data)
		}
		problems = s.Errors()
	}
	if gvk.GroupVersion() == r.gvk.GroupVersion() && gvk.Kind != r.Kind { // found by validation
		return nil, apierrors.NewInvalid(gvk.GroupKind(), u.GetName(), field.ErrorList{
			field.Invalid(field.NewPath("kind"), gvk.Kind, "must be "+r.Kind)})
	}
	if err := r.expect(*gvk); err != nil {
		if directive != metav1.FieldValidationIgnore && gvk.Group == r.Group {
			warnStrict(ctx, unknownVersion(u)) // no schema knows its fields
		}
		return nil, err
	}
	if err := checkMeta(u); err != nil {
		return nil, decodeError(err, gvk, r.Kind, data)
	}
	problems = append(problems, r.prune(u)...)
	if len(problems) > 0 && strict(directive) {
		if directive == metav1.FieldValidationStrict {
			return nil, decodeError(runtime.NewStrictDecodingError(problems), gvk, r.Kind, data)
		}
		warnStrict(ctx, problems)
	}
	r.fill(u)
	return u, nil
}

// unknownVersion are the fields of an object in a version that is not served.
func unknownVersion(u *unstructured.Unstructured) []error {
	var out []error
	for _, k := range slices.Sorted(maps.Keys(u.Object)) {
		if k != "apiVersion" && k != "kind" && k != "metadata" {
			out = append(out, fmt.Errorf("unknown field %q", k))
		}
	}
	return out
}

// checkMeta says whether a custom object's metadata have the types they must have.
func checkMeta(u *unstructured.Unstructured) error {
	m, ok := u.Object["metadata"]
	if !ok {
		return nil
	}
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, &metav1.ObjectMeta{})
}

// prune drops what the schema does not know.
func (r *resource) prune(obj runtime.Object) []error {
	if r.Prune == nil {
		return nil
	}
	var errs []error
	for _, p := range r.Prune(obj) {
		errs = append(errs, fmt.Errorf("unknown field %q", p))
	}
	return errs
}

// decodeError says what could not be read, in upstream's words.
func decodeError(err error, gvk *schema.GroupVersionKind, want string, data []byte) error {
	if gvk != nil && gvk.Kind != "" {
		return apierrors.NewBadRequest(fmt.Sprintf("%s in version %q cannot be handled as a %s: %v", gvk.Kind, gvk.Version, want, err))
	}
	return apierrors.NewBadRequest(fmt.Sprintf("the object provided is unrecognized (must be of type %s): %v (%s)", want, err, summary(data)))
}

func summary(data []byte) string {
	const most = 30
	switch {
	case len(data) == 0:
		return "<empty>"
	case data[0] == '{':
		if len(data) > most {
			return string(data[:most]) + " ..."
		}
		return string(data)
	case len(data) > most:
		return hex.EncodeToString(data[:most]) + " ..."
	}
	return hex.EncodeToString(data)
}

// warnStrict turns decoding problems into warnings, one for each line of YAML's.
func warnStrict(ctx context.Context, errs []error) {
	for _, err := range errs {
		text := err.Error()
		for _, prefix := range []string{"yaml: unmarshal errors:\n", "error converting YAML to JSON: yaml: unmarshal errors:\n"} {
			if rest, ok := strings.CutPrefix(text, prefix); ok {
				for line := range strings.SplitSeq(rest, "\n") {
					warning.AddWarning(ctx, "", strings.TrimSpace(line))
				}
				text = ""
				break
			}
		}
		if text != "" {
			warning.AddWarning(ctx, "", text)
		}
	}
}

// decodeDelete reads DeleteOptions, whatever group's name they come in: clients of old
// encode them in the group of the resource.
func decodeDelete(media negotiate.Media, data []byte, into *metav1.DeleteOptions) error {
	if media == negotiate.Protobuf {
		body, ok := bytes.CutPrefix(data, protoMagic)
		if !ok {
			return apierrors.NewBadRequest("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")
		}
		var u runtime.Unknown
		if err := u.Unmarshal(body); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if err := into.Unmarshal(u.Raw); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		into.Kind, into.APIVersion = u.Kind, u.APIVersion
	} else if err := wellFormed(media, data); err != nil {
		return err
	} else if err := yaml.Unmarshal(data, into); err != nil {
		return apierrors.NewBadRequest(err.Error())
	}
	if into.Kind != "" && into.Kind != "DeleteOptions" {
		return apierrors.NewBadRequest(runtime.NewNotRegisteredErrForKind("pkg/runtime/scheme.go:111", into.GroupVersionKind()).Error())
	}
	return nil
}

func wellFormed(media negotiate.Media, data []byte) error {
	if media != negotiate.JSON {
		return nil
	}
	if err := json.Unmarshal(data, &struct{}{}); err != nil {
		return apierrors.NewBadRequest(fmt.Sprintf("couldn't get version/kind; json parse error: %v", err))
	}
	return nil
}

func yamlToJSON(data []byte) ([]byte, error) { return yaml.YAMLToJSON(data) }

// inputOf is the media type of a body that is not a resource's own kind.
func inputOf(req *http.Request) (negotiate.Media, error) {
	return negotiate.Input(req.Header.Get("Content-Type"), negotiate.Allow{})
}
