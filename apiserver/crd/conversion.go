package crd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/skiff-k8s/skiff/apiserver/webhook"
)

// conversionTimeout is how long a conversion webhook may take.
const conversionTimeout = 30 * time.Second

// converter makes objects of one version objects of another. It never changes its argument.
type converter func(u *unstructured.Unstructured, to *version) (*unstructured.Unstructured, error)

// rename is the strategy None: only apiVersion changes.
func rename(u *unstructured.Unstructured, to *version) (*unstructured.Unstructured, error) {
	u = u.DeepCopy()
	u.SetGroupVersionKind(to.gvk)
	return u, nil
}

// converterOf is the converter of a definition.
func converterOf(d *apiextensionsv1.CustomResourceDefinition, caller *webhook.Caller) (converter, error) {
	c := d.Spec.Conversion
	if c == nil || c.Strategy == apiextensionsv1.NoneConverter {
		return rename, nil
	}
	if c.Strategy != apiextensionsv1.WebhookConverter || c.Webhook == nil || c.Webhook.ClientConfig == nil {
		return nil, fmt.Errorf("spec.conversion: strategy %q needs webhook.clientConfig", c.Strategy)
	}
	if caller == nil {
		return nil, fmt.Errorf("spec.conversion: strategy %q is not served here", c.Strategy)
	}
	i := slices.IndexFunc(c.Webhook.ConversionReviewVersions, func(v string) bool { return v == "v1" || v == "v1beta1" })
	if i < 0 {
		return nil, errors.New("spec.conversion.webhook.conversionReviewVersions: none is supported, name v1")
	}
	h := &conversionHook{caller: caller, target: webhook.Target{CABundle: c.Webhook.ClientConfig.CABundle},
		version: apiextensionsv1.GroupName + "/" + c.Webhook.ConversionReviewVersions[i]}
	if url := c.Webhook.ClientConfig.URL; url != nil {
		h.target.URL = *url
	}
	if s := c.Webhook.ClientConfig.Service; s != nil {
		h.target.Service = &webhook.Service{Namespace: s.Namespace, Name: s.Name}
		if s.Path != nil {
			h.target.Service.Path = *s.Path
		}
		if s.Port != nil {
			h.target.Service.Port = *s.Port
		}
	}
	return h.convert, nil
}

// conversionHook is a webhook that converts.
type conversionHook struct {
	caller  *webhook.Caller
	target  webhook.Target
	version string
}

func (h *conversionHook) convert(u *unstructured.Unstructured, to *version) (*unstructured.Unstructured, error) {
	if u.GroupVersionKind() == to.gvk {
		return &unstructured.Unstructured{Object: maps.Clone(u.Object)}, nil
	}
	out, err := h.ask(u, to)
	if err != nil {
		return nil, fmt.Errorf("conversion webhook for %v failed: %w", u.GroupVersionKind(), err)
	}
	return out, nil
}

func (h *conversionHook) ask(u *unstructured.Unstructured, to *version) (*unstructured.Unstructured, error) {
	ctx, cancel := context.WithTimeout(context.Background(), conversionTimeout)
	defer cancel()
	review := &apiextensionsv1.ConversionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: h.version, Kind: "ConversionReview"},
		Request: &apiextensionsv1.ConversionRequest{UID: uuid.NewUUID(), DesiredAPIVersion: to.gvk.GroupVersion().String(),
			Objects: []runtime.RawExtension{{Object: u}}},
	}
	answer := &apiextensionsv1.ConversionReview{}
	if err := h.caller.Post(ctx, &h.target, review, answer); err != nil {
		return nil, err
	}
	r := answer.Response
	switch {
	case r == nil:
		return nil, errors.New("no response provided")
	case h.version == "apiextensions.k8s.io/v1" && (answer.APIVersion != h.version || answer.Kind != "ConversionReview"):
		return nil, fmt.Errorf("expected webhook response of %s, Kind=ConversionReview, got %s", h.version, answer.GroupVersionKind())
	case h.version == "apiextensions.k8s.io/v1" && r.UID != review.Request.UID:
		return nil, fmt.Errorf("expected response.uid=%q, got %q", review.Request.UID, r.UID)
	case r.Result.Status != metav1.StatusSuccess && r.Result.Message != "":
		return nil, errors.New(r.Result.Message)
	case r.Result.Status != metav1.StatusSuccess:
		return nil, fmt.Errorf("response.result.status was '%s', not 'Success'", r.Result.Status)
	case len(r.ConvertedObjects) != 1:
		return nil, fmt.Errorf("returned %d objects, expected 1", len(r.ConvertedObjects))
	}
	out := &unstructured.Unstructured{}
	if err := json.Unmarshal(r.ConvertedObjects[0].Raw, out); err != nil {
		return nil, fmt.Errorf("returned invalid object: %w", err)
	}
	if err := keepsIdentity(u, out, to); err != nil {
		return nil, fmt.Errorf("returned invalid object: %w", err)
	}
	if err := restoreMetadata(u, out); err != nil {
		return nil, fmt.Errorf("returned invalid metadata: %w", err)
	}
	return out, nil
}

func keepsIdentity(in, out *unstructured.Unstructured, to *version) error {
	for _, same := range []struct{ what, want, got string }{
		{"apiVersion", to.gvk.GroupVersion().String(), out.GetAPIVersion()},
		{"kind", in.GetKind(), out.GetKind()},
		{"name", in.GetName(), out.GetName()},
		{"namespace", in.GetNamespace(), out.GetNamespace()},
		{"UID", string(in.GetUID()), string(out.GetUID())},
	} {
		if same.want != same.got {
			return fmt.Errorf("must have the same %s: %v != %v", same.what, same.want, same.got)
		}
	}
	return nil
}

// restoreMetadata undoes what a webhook did to metadata beyond labels and annotations.
func restoreMetadata(in, out *unstructured.Unstructured) error {
	if _, ok := out.Object["metadata"].(map[string]any); !ok {
		return errors.New("missing metadata in converted object")
	}
	labels, _, err := unstructured.NestedStringMap(out.Object, "metadata", "labels")
	if err != nil {
		return err
	}
	annotations, _, err := unstructured.NestedStringMap(out.Object, "metadata", "annotations")
	if err != nil {
		return err
	}
	metadata, _ := in.Object["metadata"].(map[string]any)
	out.Object["metadata"] = runtime.DeepCopyJSONValue(metadata)
	var errs field.ErrorList
	if !maps.Equal(labels, in.GetLabels()) {
		errs = metav1validation.ValidateLabels(labels, field.NewPath("metadata", "labels"))
		out.SetLabels(labels)
	}
	if !maps.Equal(annotations, in.GetAnnotations()) {
		errs = append(errs, apivalidation.ValidateAnnotations(annotations, field.NewPath("metadata", "annotations"))...)
		out.SetAnnotations(annotations)
	}
	return errs.ToAggregate()
}

// converted makes an object of any version one of v, to whose schema it is held.
func (c converter) converted(v *version) func(runtime.Object) (runtime.Object, error) {
	return func(obj runtime.Object) (runtime.Object, error) {
		u, ok := obj.(*unstructured.Unstructured)
		if !ok {
			return nil, fmt.Errorf("convert a %T to %s", obj, v.gvk)
		}
		same := u.GroupVersionKind() == v.gvk
		u, err := c(u, v)
		if err != nil {
			return nil, err
		}
		if !same {
			v.read(u)
		}
		return u, nil
	}
}
