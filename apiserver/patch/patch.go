// Package patch changes objects by JSON patch (RFC 6902), JSON merge patch (RFC 7386)
// and strategic merge patch.
//
// Owns: the three algorithms' use and their error answers. Must not: store, default or
// validate objects.
package patch

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/mergepatch"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	sjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// maxOperations bounds a JSON patch.
const maxOperations = 10000

// Check refuses a body that is not even JSON (YAML for apply).
func Check(t types.PatchType, body []byte) error {
	if t == types.ApplyYAMLPatchType {
		if _, err := yaml.YAMLToJSON(body); err != nil {
			return apierrors.NewBadRequest(fmt.Sprintf("error encoding patch: %v", err))
		}
		return nil
	}
	if !json.Valid(body) {
		return apierrors.NewBadRequest("invalid JSON patch")
	}
	return nil
}

// JSON applies a JSON or merge patch to an encoded object. problems are duplicate and
// unknown fields in the patch itself, looked for when strict.
func JSON(t types.PatchType, original, body []byte, strict bool) (patched []byte, problems []error, err error) {
	if t == types.MergePatchType {
		return merge(original, body, strict)
	}
	if strict {
		var ops []operation
		if problems, err = sjson.UnmarshalStrict(body, &ops); err != nil {
			// Upstream's name of the type is in its message.
			text := strings.ReplaceAll(err.Error(), "[]patch.operation", "[]handlers.jsonPatchOp")
			return nil, nil, apierrors.NewBadRequest("error decoding patch: " + text)
		}
		for i, p := range problems {
			problems[i] = fmt.Errorf("json patch %v", p)
		}
	}
	p, err := jsonpatch.DecodePatch(body)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	if len(p) > maxOperations {
		return nil, nil, apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("The allowed maximum operations in a JSON patch is %d, got %d", maxOperations, len(p)))
	}
	patched, err = p.Apply(original)
	if err != nil {
		return nil, nil, unprocessable(err)
	}
	return patched, problems, nil
}

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	From  string `json:"from"`
	Value any    `json:"value"`
}

func merge(original, body []byte, strict bool) (patched []byte, problems []error, err error) {
	if strict {
		if problems, err = sjson.UnmarshalStrict(body, &map[string]any{}); err != nil {
			return nil, nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
		}
	}
	patched, err = jsonpatch.MergePatch(original, body)
	if errors.Is(err, jsonpatch.ErrBadJSONPatch) {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	return patched, problems, err
}

// Strategic applies a strategic merge patch to original, which is not changed, and puts
// the result into an empty object of the same type. It returns unknown and duplicate
// fields as problems when strict, and the patch as decoded for error messages.
func Strategic(original, into runtime.Object, body []byte, strict bool) (problems []error, patch map[string]any, err error) {
	before, err := runtime.DefaultUnstructuredConverter.ToUnstructured(original)
	if err != nil {
		return nil, nil, fmt.Errorf("converting %T: %w", original, err)
	}
	patch = map[string]any{}
	if strict {
		problems, err = sjson.UnmarshalStrict(body, &patch)
	} else {
		err = sjson.UnmarshalCaseSensitivePreserveInts(body, &patch)
	}
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(err.Error())
	}
	after, err := strategicpatch.StrategicMergeMapPatch(before, patch, into)
	if err != nil {
		return nil, patch, strategicError(err)
	}
	err = runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(after, into, strict)
	if err == nil {
		return problems, patch, nil
	}
	if s, ok := runtime.AsStrictDecodingError(err); ok {
		return append(problems, s.Errors()...), patch, nil
	}
	return nil, patch, Invalid(fmt.Sprintf("%+v", patch), err)
}

// Invalid is the answer to a patch that makes something undecodable.
func Invalid(patch string, err error) error {
	return apierrors.NewInvalid(schema.GroupKind{}, "", field.ErrorList{field.Invalid(field.NewPath("patch"), patch, err.Error())})
}

func strategicError(err error) error {
	switch {
	case errors.Is(err, mergepatch.ErrBadJSONDoc), errors.Is(err, mergepatch.ErrBadPatchFormatForPrimitiveList),
		errors.Is(err, mergepatch.ErrBadPatchFormatForRetainKeys), errors.Is(err, mergepatch.ErrBadPatchFormatForSetElementOrderList),
		errors.Is(err, mergepatch.ErrUnsupportedStrategicMergePatchFormat):
		return apierrors.NewBadRequest(err.Error())
	case errors.Is(err, mergepatch.ErrNoListOfLists), errors.Is(err, mergepatch.ErrPatchContentNotMatchRetainKeys):
		return unprocessable(err)
	}
	return err
}

func unprocessable(err error) error {
	return apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
}
