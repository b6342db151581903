package admission

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/skiff-k8s/skiff/apiserver/admission/match"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// mutator changes writes as users configured it.
type mutator interface {
	Mutate(ctx context.Context, w *match.Write, r *match.Reinvocation) error
}

// dynamicMutation runs the mutators that users configure after the plugins before it. When one
// changed the object, everything runs once more, so that the plugins see the change (KEP-492).
type dynamicMutation struct {
	mutating
	caches   lookup.Caches
	catalog  func() match.Catalog
	before   seams.Chain
	mutators []mutator
}

func (d *dynamicMutation) Admit(ctx context.Context, a *seams.Attributes) error {
	rounds := make([]match.Reinvocation, len(d.mutators))
	changed, err := d.round(ctx, a, rounds)
	if err != nil || !changed {
		return err
	}
	if err := d.before.Admit(ctx, a); err != nil {
		return err
	}
	for i := range rounds {
		rounds[i].Second = true
	}
	_, err = d.round(ctx, a, rounds)
	return err
}

func (d *dynamicMutation) round(ctx context.Context, a *seams.Attributes, rounds []match.Reinvocation) (changed bool, err error) {
	w := match.NewWrite(a, d.caches, catalogOf(d.catalog))
	for i, m := range d.mutators {
		if err := m.Mutate(ctx, w, &rounds[i]); err != nil {
			return false, err
		}
		changed = changed || rounds[i].Changed
	}
	return changed, nil
}

// validator refuses writes as users configured it.
type validator interface {
	Validate(ctx context.Context, w *match.Write) error
}

// dynamicValidation runs the validators that users configure.
type dynamicValidation struct {
	validating
	caches     lookup.Caches
	catalog    func() match.Catalog
	validators []validator
}

func (d *dynamicValidation) Validate(ctx context.Context, a *seams.Attributes) error {
	w := match.NewWrite(a, d.caches, catalogOf(d.catalog))
	for _, v := range d.validators {
		if err := v.Validate(ctx, w); err != nil {
			return err
		}
	}
	// What took the whole time of the request must not be stored after its end.
	if ctx.Err() != nil {
		return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
	}
	return nil
}

func catalogOf(f func() match.Catalog) match.Catalog {
	if f == nil {
		return nil
	}
	return f()
}
