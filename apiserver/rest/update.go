package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// update handles PUT.
func (c *call) update(v *view) error {
	if err := c.negotiate(); err != nil {
		return err
	}
	opts := &metav1.UpdateOptions{}
	if c.req.URL.RawQuery != "" {
		if err := metainternal.ParameterCodec.DecodeParameters(c.req.URL.Query(), metav1.SchemeGroupVersion, opts); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	if errs := metavalidation.ValidateUpdateOptions(opts); len(errs) > 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "UpdateOptions"}, "", errs)
	}
	opts.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("UpdateOptions"))
	obj, err := c.decode(c.r, opts.FieldValidation)
	if err != nil {
		return err
	}
	m := accessor(obj)
	if err := ensureNamespace(c.namespace, m); err != nil {
		return err
	}
	if err := checkName(m, c.name); err != nil {
		return err
	}
	dedupOwners(c.ctx, obj, false)

	w := c.newWrite(v, opts, opts.DryRun)
	w.manager = manager(opts.FieldManager, c.req.UserAgent())
	w.mayCreate = c.mayCreate
	res, err := w.update(c.ctx, v.sub == "" && v.strategy.CreateOnUpdate, uidPrecondition(m.GetUID()),
		func(_ context.Context, live runtime.Object) (runtime.Object, error) {
			next := obj.DeepCopyObject()
			if live == nil {
				live = c.r.empty()
			}
			return w.own(live, next)
		})
	if err != nil {
		return err
	}
	code := http.StatusOK
	if res.created {
		code = http.StatusCreated
	}
	return c.answer(code, res)
}

func checkName(m metav1.Object, name string) error {
	if m.GetName() == "" {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s based on URL) was undeterminable: name must be provided", name))
	}
	if m.GetName() != name {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", m.GetName(), name))
	}
	return nil
}

// next makes the new object from the live one, which is shared (never to be changed)
// and nil on create. It may be called again after a lost race.
type next func(ctx context.Context, live runtime.Object) (runtime.Object, error)

// changedMeanwhile is the cause of a conflict, in words that clients match.
var errChangedMeanwhile = errors.New("the object has been modified; please apply your changes to the latest version and try again")

// Outcomes of a try that store nothing.
var (
	errDryRun  = errors.New("dry run")
	errEmptied = errors.New("the last finalizer is gone")
)

// update changes an object, or creates it where create allows that.
func (w *write) update(ctx context.Context, create bool, pre cacher.Preconditions, make next) (result, error) {
	cache, err := w.cache()
	if err != nil {
		return result{}, err
	}
	for {
		t := &try{write: w, ctx: ctx, make: make}
		o, err := cache.Update(ctx, w.namespace, w.name, create, pre, t.change)
		switch {
		case err == nil:
			t.end(true)
			return result{stored: o, created: t.created}, nil
		case errors.Is(err, errDryRun):
			t.end(false)
			return result{obj: t.obj, created: t.created, gone: t.emptied}, nil
		case errors.Is(err, errEmptied):
			t.end(true)
			o, err := cache.Delete(ctx, w.namespace, w.name, cacher.Preconditions{ResourceVersion: &t.revision}, nil)
			if apierrors.IsConflict(err) {
				continue // someone else changed it: decide again
			}
			if err != nil && !apierrors.IsNotFound(err) {
				return result{}, err
			}
			if err == nil {
				if obj, serr := w.seen(o); serr == nil {
					w.deleted(ctx, obj)
				}
			}
			return result{obj: t.obj, gone: true}, nil
		case apierrors.IsAlreadyExists(err) && t.created:
			t.end(false)
			continue // created by another meanwhile: update that
		case unknown(err):
			return result{}, err
		}
		t.end(false)
		return result{}, err
	}
}

// try is one attempt, or several within the cache, at an update.
type try struct {
	*write
	ctx      context.Context
	make     next
	finish   func(context.Context, bool)
	obj      runtime.Object // of the last attempt
	revision string         // of the object it started from
	created  bool
	emptied  bool
}

// end ends the hooks of the last attempt.
func (t *try) end(ok bool) {
	if t.finish != nil {
		t.finish(context.WithoutCancel(t.ctx), ok)
		t.finish = nil
	}
}

func (t *try) change(current cacher.Object) (runtime.Object, time.Duration, error) {
	t.end(false)
	t.created, t.emptied = current == nil, false
	var obj runtime.Object
	var err error
	if current == nil {
		obj, err = t.create()
	} else {
		var live runtime.Object
		if live, err = t.seen(current); err != nil {
			return nil, 0, err
		}
		t.revision = accessor(live).GetResourceVersion()
		obj, err = t.update(live)
	}
	if err != nil {
		return nil, 0, err
	}
	obj.GetObjectKind().SetGroupVersionKind(t.gvk)
	t.obj = obj
	if t.dryRun {
		return nil, 0, errDryRun
	}
	if t.emptied {
		return nil, 0, errEmptied
	}
	var ttl time.Duration
	if t.TTL != nil {
		ttl = t.TTL(obj)
	}
	put, err := t.stored(obj)
	return put, ttl, err
}

// create is the way of PUT and apply to a name that does not exist.
func (t *try) create() (runtime.Object, error) {
	obj, err := t.make(t.ctx, nil)
	if err != nil {
		return nil, err
	}
	m := accessor(obj)
	if uid := m.GetUID(); uid != "" {
		return nil, apierrors.NewConflict(t.gr, t.name, fmt.Errorf("uid mismatch: the provided object specified uid %s, and no existing object was found", uid))
	}
	if t.mayCreate != nil {
		if err := t.mayCreate(t.ctx); err != nil {
			return nil, err
		}
	}
	if t.Unavailable != nil {
		if err := t.Unavailable(); err != nil {
			return nil, err
		}
	}
	as := *t.write
	as.options = createOptionsOf(t.options)
	if err := as.admit(t.ctx, seams.Create, obj, nil); err != nil {
		return nil, err
	}
	dedupOwners(t.ctx, obj, true)
	wipeSystemFields(m)
	fillSystemFields(m, t.g.Clock.Now())
	if t.finish, err = begin(t.hooks, func(h *seams.Hooks) (seams.Finish, error) {
		if h.BeginCreate == nil {
			return nil, nil
		}
		return h.BeginCreate(t.ctx, obj, t.dryRun)
	}); err != nil {
		return nil, err
	}
	if err := t.prepareCreate(t.ctx, obj); err != nil {
		return nil, err
	}
	return obj, as.validate(t.ctx, seams.Create, obj, nil)
}

// update is one attempt on the live object.
func (t *try) update(live runtime.Object) (runtime.Object, error) {
	obj, err := t.make(t.ctx, live)
	if err != nil {
		return nil, err
	}
	m, old := accessor(obj), accessor(live)
	if err := t.admit(t.ctx, seams.Update, obj, live); err != nil {
		return nil, err
	}
	dedupOwners(t.ctx, obj, true)
	switch rv := m.GetResourceVersion(); {
	case (rv == "" || rv == "0") && !t.Strategy.RequireRevision:
		m.SetResourceVersion(old.GetResourceVersion())
	case rv == "" || rv == "0":
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: t.gr.Group, Kind: t.gr.Resource}, t.name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update")})
	case rv != old.GetResourceVersion():
		return nil, apierrors.NewConflict(t.gr, t.name, errChangedMeanwhile)
	}
	if t.sub == "" {
		if t.finish, err = begin(t.hooks, func(h *seams.Hooks) (seams.Finish, error) {
			if h.BeginUpdate == nil {
				return nil, nil
			}
			return h.BeginUpdate(t.ctx, obj, live, t.dryRun)
		}); err != nil {
			return nil, err
		}
	}
	if err := t.prepareUpdate(t.ctx, obj, live); err != nil {
		return nil, err
	}
	keepTimes(obj, live)
	if err := t.validate(t.ctx, seams.Update, obj, live); err != nil {
		return nil, err
	}
	t.emptied = deletedByUpdate(obj, live)
	return obj, nil
}

// prepareUpdate does what every update does short of admission and storing.
func (w *write) prepareUpdate(ctx context.Context, obj, live runtime.Object) error {
	m, old := accessor(obj), accessor(live)
	if err := ensureNamespace(w.namespace, m); err != nil {
		return err
	}
	s := w.strategy
	m.SetGeneration(old.GetGeneration())
	if s.PrepareUpdate != nil {
		s.PrepareUpdate(ctx, obj, live)
	}
	if s.HasGeneration {
		changed := s.SpecChanged
		if changed == nil {
			changed = specChanged
		}
		if changed(obj, live) {
			m.SetGeneration(old.GetGeneration() + 1)
		}
	}
	if m.GetUID() == "" {
		m.SetUID(old.GetUID())
	}
	if created := old.GetCreationTimestamp(); !created.IsZero() {
		m.SetCreationTimestamp(created)
	}
	if !old.GetDeletionTimestamp().IsZero() {
		m.SetDeletionTimestamp(old.GetDeletionTimestamp())
	}
	if g := old.GetDeletionGracePeriodSeconds(); g != nil && m.GetDeletionGracePeriodSeconds() == nil {
		m.SetDeletionGracePeriodSeconds(g)
	}
	metaPath := field.NewPath("metadata")
	errs := validation.ValidateObjectMetaAccessor(m, w.Namespaced, pathSegment, metaPath)
	errs = append(errs, validation.ValidateObjectMetaAccessorUpdate(m, old, metaPath)...)
	if s.ValidateUpdate != nil {
		errs = append(errs, s.ValidateUpdate(ctx, obj, live)...)
	}
	if len(errs) > 0 {
		return invalid(w.gvk.GroupKind(), m.GetName(), errs)
	}
	if s.Warnings != nil {
		for _, text := range s.Warnings(ctx, obj, live) {
			warning.AddWarning(ctx, "", text)
		}
	}
	if s.Canonicalize != nil {
		s.Canonicalize(obj)
	}
	return nil
}

// keepTimes takes the managed fields over from live where nothing but their times
// differs, so that an update without change writes nothing.
func keepTimes(obj, live runtime.Object) {
	m, old := accessor(obj), accessor(live)
	a, b := m.GetManagedFields(), old.GetManagedFields()
	if len(a) != len(b) {
		return
	}
	later := false
	for i := range a {
		x, y := a[i], b[i]
		if x.Time != nil && y.Time != nil && !x.Time.Equal(y.Time) {
			later = true
		}
		x.Time, y.Time = nil, nil
		if !equal(x, y) {
			return
		}
	}
	if !later {
		return
	}
	m.SetManagedFields(b)
	if !equal(obj, live) {
		m.SetManagedFields(a)
	}
}

// createOptionsOf are the options that admission sees where an update creates.
func createOptionsOf(o runtime.Object) runtime.Object {
	c := &metav1.CreateOptions{}
	switch o := o.(type) {
	case *metav1.UpdateOptions:
		c.DryRun, c.FieldManager, c.FieldValidation = o.DryRun, o.FieldManager, o.FieldValidation
	case *metav1.PatchOptions:
		c.DryRun, c.FieldManager, c.FieldValidation = o.DryRun, o.FieldManager, o.FieldValidation
	default:
		return o
	}
	c.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("CreateOptions"))
	return c
}
