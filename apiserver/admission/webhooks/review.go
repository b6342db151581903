package webhooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/admission"
	annotations "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/warning"

	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/webhook"
)

// callError is a call that gave no answer to go by; the failure policy decides what follows.
type callError struct {
	webhook string
	reason  error
}

func (e *callError) Error() string {
	return fmt.Sprintf("failed calling webhook %q: %v", e.webhook, e.reason)
}

func (e *callError) Unwrap() error { return e.reason }

// review asks a webhook about a write. The answer allows it, or the error says why not.
func (h *hook) review(ctx context.Context, caller *webhook.Caller, w *match.Write, hit match.Hit, view *admission.VersionedAttributes) (*admissionv1.AdmissionResponse, error) {
	if w.DryRun {
		switch {
		case h.sideEffects == nil:
			return nil, &callError{h.name, errors.New("Webhook SideEffects is nil")}
		case *h.sideEffects != admissionregistrationv1.SideEffectClassNone && *h.sideEffects != admissionregistrationv1.SideEffectClassNoneOnDryRun:
			return nil, apierrors.NewBadRequest(fmt.Sprintf("admission webhook %q does not support dry run", h.name))
		}
	}
	i := slices.IndexFunc(h.versions, func(v string) bool { return v == "v1" || v == "v1beta1" })
	if i < 0 {
		return nil, &callError{h.name, errors.New("could not create admission objects: webhook does not accept known AdmissionReview versions (v1, v1beta1)")}
	}
	version := admissionv1.GroupName + "/" + h.versions[i]
	request := newReview(version, w, hit, view)
	// A client may have less time left than the webhook would get.
	ctx, cancel := context.WithTimeout(ctx, h.timeout)
	defer cancel()
	answer := &admissionv1.AdmissionReview{}
	if err := caller.Post(ctx, &h.target, request, answer); err != nil {
		return nil, &callError{h.name, fmt.Errorf("failed to call webhook: %w", err)}
	}
	if err := h.check(version, request.Request.UID, answer); err != nil {
		return nil, &callError{h.name, fmt.Errorf("received invalid webhook response: %w", err)}
	}
	for k, v := range answer.Response.AuditAnnotations {
		annotations.AddAuditAnnotation(ctx, h.name+"/"+k, v)
	}
	for _, text := range answer.Response.Warnings {
		warning.AddWarning(ctx, "", text)
	}
	if !answer.Response.Allowed {
		return nil, denied(h.name, answer.Response.Result)
	}
	return answer.Response, nil
}

// newReview is the same in v1 and v1beta1 but for the version it names.
func newReview(version string, w *match.Write, hit match.Hit, view *admission.VersionedAttributes) *admissionv1.AdmissionReview {
	user := authenticationv1.UserInfo{Username: w.User.GetName(), UID: w.User.GetUID(), Groups: w.User.GetGroups(), Extra: map[string]authenticationv1.ExtraValue{}}
	for k, v := range w.User.GetExtra() {
		user.Extra[k] = v
	}
	dryRun := w.DryRun
	r := &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: version, Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID:  uuid.NewUUID(),
			Kind: metav1.GroupVersionKind(hit.Kind), Resource: metav1.GroupVersionResource(hit.Resource), SubResource: w.Subresource,
			RequestKind:     (*metav1.GroupVersionKind)(&w.Kind),
			RequestResource: (*metav1.GroupVersionResource)(&w.Resource), RequestSubResource: w.Subresource,
			Name: w.Name, Namespace: w.Namespace, Operation: admissionv1.Operation(w.Operation), UserInfo: user,
			Object:    runtime.RawExtension{Object: view.VersionedObject.Object()},
			OldObject: runtime.RawExtension{Object: view.VersionedOldObject.Object()},
			DryRun:    &dryRun,
		},
	}
	if w.Options != nil {
		r.Request.Options = runtime.RawExtension{Object: match.Named(w.Options, metav1.SchemeGroupVersion.WithKind(optionsKind(w.Options)))}
	}
	return r
}

func optionsKind(o runtime.Object) string {
	switch o.(type) {
	case *metav1.CreateOptions:
		return "CreateOptions"
	case *metav1.DeleteOptions:
		return "DeleteOptions"
	}
	return "UpdateOptions"
}

// check holds an answer to its protocol. v1beta1 asked for neither kind, uid nor patchType.
func (h *hook) check(version string, uid types.UID, answer *admissionv1.AdmissionReview) error {
	r := answer.Response
	if r == nil {
		return errors.New("webhook response was absent")
	}
	if version == "admission.k8s.io/v1beta1" {
		if len(r.Patch) > 0 {
			t := admissionv1.PatchTypeJSONPatch
			r.PatchType = &t
		}
		return nil
	}
	switch {
	case r.UID != uid:
		return fmt.Errorf("expected response.uid=%q, got %q", uid, r.UID)
	case answer.APIVersion != version || answer.Kind != "AdmissionReview":
		return fmt.Errorf("expected webhook response of %s, Kind=AdmissionReview, got %s", version, answer.GroupVersionKind().String())
	case !h.mutating && len(r.Patch) > 0:
		return errors.New("validating webhook may not return response.patch")
	case !h.mutating && r.PatchType != nil:
		return errors.New("validating webhook may not return response.patchType")
	case len(r.Patch) > 0 && r.PatchType == nil:
		return errors.New("webhook returned response.patch but not response.patchType")
	case len(r.Patch) == 0 && r.PatchType != nil:
		return errors.New("webhook returned response.patchType but not response.patch")
	case r.PatchType != nil && *r.PatchType == "":
		return errors.New(`webhook returned invalid response.patchType of ""`)
	}
	return nil
}

// denied is the error of a write that a webhook does not allow, whatever its status says of itself.
func denied(name string, result *metav1.Status) error {
	status := metav1.Status{}
	if result != nil {
		status = *result
	}
	status.Code = max(status.Code, 400)
	status.Status = metav1.StatusFailure
	by := fmt.Sprintf("admission webhook %q denied the request", name)
	switch {
	case status.Message != "":
		status.Message = by + ": " + status.Message
	case status.Reason != "":
		status.Message = by + ": " + string(status.Reason)
	default:
		status.Message = by + " without explanation"
	}
	return &apierrors.StatusError{ErrStatus: status}
}

// failed is what a failed call makes of a write; nil: nothing, by the webhook's policy.
func (h *hook) failed(ctx context.Context, err error) error {
	var call *callError
	if !errors.As(err, &call) {
		return err
	}
	if !h.ignore {
		return apierrors.NewInternalError(err)
	}
	if ctx.Err() != nil {
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	return nil
}

func encode(obj runtime.Object) ([]byte, error) {
	raw, err := json.Marshal(obj)
	if err != nil {
		return nil, fmt.Errorf("encode %T: %w", obj, err)
	}
	return raw, nil
}

const defaultTimeout = 10 * time.Second
