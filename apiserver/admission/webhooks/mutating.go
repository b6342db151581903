package webhooks

import (
	"context"
	"encoding/json"
	"fmt"
	"reflect"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	kjson "sigs.k8s.io/json"

	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

// Mutating asks the webhooks of MutatingWebhookConfigurations, one after the other.
type Mutating struct {
	Config
	memo match.Memo[*admissionregistrationv1.MutatingWebhookConfiguration, []*hook]
}

// NewMutating returns a Mutating.
func NewMutating(c Config) (*Mutating, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	m := &Mutating{Config: c}
	m.memo.Build = newReader().mutating
	return m, nil
}

// Mutate runs one round: the object of the write becomes what the webhooks make of it.
func (m *Mutating) Mutate(ctx context.Context, w *match.Write, r *match.Reinvocation) error {
	if match.Exempt(w.Kind) {
		return nil
	}
	all, err := lookup.CachedList[*admissionregistrationv1.MutatingWebhookConfiguration](ctx, m.Caches, mutatingConfigurations, "")
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if len(all) == 0 {
		return nil
	}
	r.Begin(w.Object)
	at := place{}
	if r.Second {
		at.round = 1
	}
	for _, hooks := range m.memo.Of(all) {
		for _, h := range hooks {
			if err := m.call(ctx, h, w, r, at); err != nil {
				return err
			}
			at.index++
		}
	}
	r.End(w.Object)
	return nil
}

func (m *Mutating) call(ctx context.Context, h *hook, w *match.Write, r *match.Reinvocation, at place) error {
	if !r.Calls(h.key) {
		return nil
	}
	hit, ok, err := h.concerns(ctx, &m.Config, w)
	if err != nil || !ok {
		return err
	}
	view, err := w.View(hit.Kind)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	changed := false
	response, err := h.review(ctx, m.Caller, w, hit, view)
	if err == nil && len(response.Patch) > 0 {
		changed, err = h.patch(ctx, w, hit, view.VersionedObject.Object(), response, at)
	}
	h.noteMutation(ctx, at, changed)
	r.Called(h.key, changed, h.reinvoke)
	if err == nil {
		return nil
	}
	if err = h.failed(ctx, err); err == nil {
		h.noteIgnored(ctx, failedMutationPrefix, at)
		m.Log.Warn("webhook failed, its policy is to ignore that", "webhook", h.name)
	}
	return err
}

// patch applies the answer to the object.
func (h *hook) patch(ctx context.Context, w *match.Write, hit match.Hit, obj runtime.Object, response *admissionv1.AdmissionResponse, at place) (changed bool, err error) {
	if *response.PatchType != admissionv1.PatchTypeJSONPatch {
		return false, &callError{h.name, fmt.Errorf("unsupported patch type %q", *response.PatchType)}
	}
	patch, err := jsonpatch.DecodePatch(response.Patch)
	if err != nil {
		return false, &callError{h.name, fmt.Errorf("received undecodable patch in webhook response: %w", err)}
	}
	if len(patch) == 0 {
		return false, nil
	}
	if obj == nil {
		return false, apierrors.NewInternalError(fmt.Errorf("admission webhook %q attempted to modify the object, which is not supported for this operation", h.name))
	}
	before, err := encode(obj)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	after, err := patch.Apply(before)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	next, err := decode(after, obj)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	h.notePatch(ctx, at, patch)
	if equality.Semantic.DeepEqual(obj, next) {
		return false, nil
	}
	if err := w.Set(next, hit.Kind); err != nil {
		return false, apierrors.NewInternalError(err)
	}
	return true, nil
}

// decode reads an object of the type of another.
func decode(raw []byte, like runtime.Object) (runtime.Object, error) {
	if _, ok := like.(*unstructured.Unstructured); ok {
		u := &unstructured.Unstructured{}
		if err := json.Unmarshal(raw, u); err != nil {
			return nil, fmt.Errorf("decode patched object: %w", err)
		}
		return u, nil
	}
	obj := reflect.New(reflect.TypeOf(like).Elem()).Interface().(runtime.Object)
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, obj); err != nil {
		return nil, fmt.Errorf("decode patched object: %w", err)
	}
	return obj, nil
}
