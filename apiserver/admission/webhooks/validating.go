package webhooks

import (
	"context"
	"sync"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/admission"

	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

// Validating asks the webhooks of ValidatingWebhookConfigurations, all at once.
type Validating struct {
	Config
	memo match.Memo[*admissionregistrationv1.ValidatingWebhookConfiguration, []*hook]
}

// NewValidating returns a Validating.
func NewValidating(c Config) (*Validating, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	v := &Validating{Config: c}
	v.memo.Build = newReader().validating
	return v, nil
}

type question struct {
	hook *hook
	hit  match.Hit
	view *admission.VersionedAttributes
}

// Validate returns the error of the first webhook, in the order of their configurations,
// that refuses or whose failure does.
func (v *Validating) Validate(ctx context.Context, w *match.Write) error {
	if match.Exempt(w.Kind) {
		return nil
	}
	all, err := lookup.CachedList[*admissionregistrationv1.ValidatingWebhookConfiguration](ctx, v.Caches, validatingConfigurations, "")
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	var ask []question
	for _, hooks := range v.memo.Of(all) {
		for _, h := range hooks {
			hit, ok, err := h.concerns(ctx, &v.Config, w)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			view, err := w.View(hit.Kind)
			if err != nil {
				return apierrors.NewInternalError(err)
			}
			ask = append(ask, question{h, hit, view})
		}
	}
	errs := make([]error, len(ask))
	var wg sync.WaitGroup
	for i, q := range ask {
		wg.Go(func() {
			_, err := q.hook.review(ctx, v.Caller, w, q.hit, q.view)
			if err == nil {
				return
			}
			if errs[i] = q.hook.failed(ctx, err); errs[i] == nil {
				q.hook.noteIgnored(ctx, failedValidationPrefix, place{index: i})
				v.Log.Warn("webhook failed, its policy is to ignore that", "webhook", q.hook.name, "err", err)
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
