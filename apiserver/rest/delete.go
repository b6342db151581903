package rest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/warning"

	"github.com/skiff-k8s/skiff/apiserver/audit"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// delete handles DELETE of one object.
func (c *call) delete(v *view) error {
	if err := c.negotiate(); err != nil {
		return err
	}
	opts, err := c.deleteOptions()
	if err != nil {
		return err
	}
	w := c.newWrite(v, opts, opts.DryRun)
	res, err := w.delete(c.ctx, opts)
	if err != nil {
		return err
	}
	if text := c.r.Strategy.DeleteWarning; text != "" && opts.PropagationPolicy == nil && opts.OrphanDependents == nil { //nolint:staticcheck // old clients
		warning.AddWarning(c.ctx, "", text)
	}
	code := http.StatusOK
	if !res.gone && opts.OrphanDependents != nil && !*opts.OrphanDependents { //nolint:staticcheck // old clients
		code = http.StatusAccepted
	}
	if res.gone && !returnsDeleted(c.r) {
		m := res.meta()
		return c.encode(code, &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
			Details: &metav1.StatusDetails{Name: m.GetName(), Group: c.r.Group, Kind: c.r.Plural, UID: m.GetUID()}})
	}
	return c.answer(code, res)
}

func (r result) meta() metav1.Object {
	if r.stored != nil {
		return r.stored.Meta()
	}
	return accessor(r.obj)
}

// returnsDeleted tells whether DELETE answers with the object that is gone, as upstream
// does for these, and not with a Status.
func returnsDeleted(r *resource) bool {
	switch r.Group {
	case "":
		return slices.Contains([]string{"pods", "services", "namespaces", "serviceaccounts", "persistentvolumes",
			"persistentvolumeclaims", "resourcequotas", "podtemplates"}, r.Plural)
	case "storage.k8s.io":
		return r.Plural != "csistoragecapacities"
	case "resource.k8s.io":
		return true
	}
	return false
}

// deleteOptions come in the body or the query.
func (c *call) deleteOptions() (*metav1.DeleteOptions, error) {
	opts := &metav1.DeleteOptions{}
	data, err := c.body()
	if err != nil {
		return nil, err
	}
	if len(data) > 0 {
		media, err := inputOf(c.req)
		if err != nil {
			return nil, err
		}
		if err := decodeDelete(media, data, opts); err != nil {
			return nil, err
		}
		opts.SetGroupVersionKind(schema.GroupVersionKind{Group: metav1.GroupName, Version: runtime.APIVersionInternal, Kind: "DeleteOptions"}) // as upstream records it
		audit.RequestObject(c.ctx, opts)
	} else if c.req.URL.RawQuery != "" {
		if err := metainternal.ParameterCodec.DecodeParameters(c.req.URL.Query(), metav1.SchemeGroupVersion, opts); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	opts.IgnoreStoreReadErrorWithClusterBreakingPotential = nil // its gate is off
	if errs := metavalidation.ValidateDeleteOptions(opts); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	opts.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("DeleteOptions"))
	return opts, nil
}

// Outcomes of looking at an object to be deleted.
var (
	errNow     = errors.New("delete now")
	errPending = errors.New("deletion is pending already")
)

// delete marks the object or removes it: finalizers, grace and propagation decide.
func (w *write) delete(ctx context.Context, opts *metav1.DeleteOptions) (result, error) {
	cache, err := w.cache()
	if err != nil {
		return result{}, err
	}
	var pre cacher.Preconditions
	if p := opts.Preconditions; p != nil {
		if err := w.checkPreconditions(ctx, cache, p); err != nil {
			return result{}, err
		}
		pre = cacher.Preconditions{UID: p.UID, ResourceVersion: p.ResourceVersion}
	}
	for {
		d := &deletion{write: w, ctx: ctx, opts: opts.DeepCopy()}
		marked, err := cache.Update(ctx, w.namespace, w.name, false, pre, d.mark)
		switch {
		case errors.Is(err, errPending):
			return result{obj: d.live}, nil
		case errors.Is(err, errDryRun):
			return result{obj: d.obj, gone: d.now}, nil
		case errors.Is(err, errNow):
		case err != nil:
			return result{}, err
		default:
			return result{stored: marked}, nil
		}
		// It goes now, in the state that was decided on.
		o, err := cache.Delete(ctx, w.namespace, w.name, cacher.Preconditions{UID: pre.UID, ResourceVersion: &d.revision}, nil)
		if apierrors.IsConflict(err) && pre.ResourceVersion == nil {
			continue // someone else changed it: decide again
		}
		if err != nil {
			return result{}, err
		}
		last, err := w.seen(o)
		if err != nil {
			return result{stored: o, gone: true}, nil
		}
		w.deleted(ctx, last)
		if d.obj == nil || accessor(d.obj).GetDeletionTimestamp() == nil {
			return result{stored: o, gone: true}, nil
		}
		accessor(d.obj).SetResourceVersion(accessor(last).GetResourceVersion())
		return result{obj: d.obj, gone: true}, nil
	}
}

// checkPreconditions says early, in words of its own, what cannot be deleted; the store
// decides again.
func (w *write) checkPreconditions(ctx context.Context, cache cacher.Resource, p *metav1.Preconditions) error {
	o, err := cache.Get(ctx, w.namespace, w.name, "")
	if err != nil {
		return err
	}
	kind := schema.GroupResource{Group: w.gvk.Group, Resource: w.gvk.Kind}
	if have := o.Meta().GetUID(); p.UID != nil && *p.UID != have {
		return apierrors.NewConflict(kind, w.name, fmt.Errorf("the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID, have))
	}
	if have := o.Meta().GetResourceVersion(); p.ResourceVersion != nil && *p.ResourceVersion != have {
		return apierrors.NewConflict(kind, w.name, fmt.Errorf("the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified", *p.ResourceVersion, have))
	}
	return nil
}

// deleted runs what follows a delete.
func (w *write) deleted(ctx context.Context, obj runtime.Object) {
	for _, h := range w.hooks {
		if h.AfterDelete != nil {
			h.AfterDelete(context.WithoutCancel(ctx), obj)
		}
	}
}

// deletion is one attempt.
type deletion struct {
	*write
	ctx      context.Context
	opts     *metav1.DeleteOptions
	live     runtime.Object
	obj      runtime.Object
	revision string
	// now: nothing holds the object.
	now bool
}

// mark sets what a deletion sets on an object that stays for a while.
func (d *deletion) mark(current cacher.Object) (runtime.Object, time.Duration, error) {
	live, err := d.seen(current)
	if err != nil {
		return nil, 0, err
	}
	d.live, d.now = live, false
	d.revision = accessor(live).GetResourceVersion()
	if d.admission != nil {
		if err := d.admit(d.ctx, seams.Delete, nil, live); err != nil {
			return nil, 0, err
		}
		if err := d.validate(d.ctx, seams.Delete, nil, live); err != nil {
			return nil, 0, err
		}
	}
	obj := live.DeepCopyObject()
	err = d.decide(obj)
	if err != nil && !errors.Is(err, errNow) {
		return nil, 0, err
	}
	d.obj = obj
	if d.dryRun {
		return nil, 0, errDryRun
	}
	if err != nil {
		return nil, 0, err
	}
	put, perr := d.stored(obj)
	return put, 0, perr
}

// decide changes obj, a private copy. errNow: remove it as it is.
func (d *deletion) decide(obj runtime.Object) error {
	m := accessor(obj)
	first := m.GetDeletionTimestamp() == nil
	if first {
		for _, h := range d.hooks {
			if h.Deleting != nil {
				h.Deleting(d.ctx, obj)
			}
		}
	}
	graceful, err := d.grace(obj)
	if err != nil {
		return err
	}
	if f, changed := collectorFinalizers(m.GetFinalizers(), d.Strategy.DefaultGC, d.opts); changed {
		m.SetFinalizers(f)
	}
	held := len(m.GetFinalizers()) > 0
	now := metav1.NewTime(d.g.Clock.Now().Truncate(time.Second))
	if ns, ok := obj.(*corev1.Namespace); ok {
		// A namespace stays until its content is gone: spec.finalizers say when.
		if len(ns.Spec.Finalizers) > 0 || first {
			if first {
				ns.DeletionTimestamp = &now
			}
			ns.Status.Phase = corev1.NamespaceTerminating
			return nil
		}
	}
	if _, ok := obj.(*apiextensionsv1.CustomResourceDefinition); ok && held {
		// It only begins to end; neither grace nor a new generation is told.
		if first {
			m.SetDeletionTimestamp(&now)
		}
		return nil
	}
	if graceful && (held || *d.opts.GracePeriodSeconds > 0) {
		return nil
	}
	if !held { // a grace of zero need not be stored first
		d.now = true
		return errNow
	}
	if first && m.GetGeneration() > 0 {
		m.SetGeneration(m.GetGeneration() + 1)
	}
	if t := m.GetDeletionTimestamp(); t == nil || t.After(now.Time) {
		m.SetDeletionTimestamp(&now)
	}
	var zero int64
	m.SetDeletionGracePeriodSeconds(&zero)
	return nil
}

// grace sets the deletion's time for resources that end gracefully; true if it did.
// errPending: a deletion as short or shorter is under way.
func (d *deletion) grace(obj runtime.Object) (bool, error) {
	m := accessor(obj)
	if g := d.opts.GracePeriodSeconds; g != nil && *g < 0 {
		one := int64(1)
		d.opts.GracePeriodSeconds = &one
	}
	if d.Strategy.Grace == nil {
		return false, nil
	}
	now := d.g.Clock.Now().Truncate(time.Second)
	if t := m.GetDeletionTimestamp(); t != nil {
		had := m.GetDeletionGracePeriodSeconds()
		if had == nil || *had == 0 {
			return false, nil
		}
		want := d.opts.GracePeriodSeconds
		if want == nil || *want >= *had {
			return false, errPending
		}
		// Deletion may only come sooner, and not before now.
		period := *want
		at := metav1.NewTime(t.Add(time.Duration(period-*had) * time.Second))
		if at.Time.Before(now) {
			at = metav1.NewTime(now)
			if period != 0 {
				period = 1
			}
		}
		m.SetDeletionTimestamp(&at)
		m.SetDeletionGracePeriodSeconds(&period)
		return true, nil
	}
	if !d.Strategy.Grace(obj, d.opts) {
		return false, nil
	}
	if d.opts.GracePeriodSeconds == nil {
		return false, apierrors.NewInternalError(fmt.Errorf("%s: no grace period was decided on", d.gr))
	}
	at := metav1.NewTime(now.Add(time.Duration(*d.opts.GracePeriodSeconds) * time.Second))
	period := *d.opts.GracePeriodSeconds
	m.SetDeletionTimestamp(&at)
	m.SetDeletionGracePeriodSeconds(&period)
	if m.GetGeneration() > 0 {
		m.SetGeneration(m.GetGeneration() + 1)
	}
	return true, nil
}

// collectorFinalizers are the finalizers once the garbage collector's two follow the
// options; false: nothing changes.
func collectorFinalizers(have []string, byDefault metav1.DeletionPropagation, o *metav1.DeleteOptions) ([]string, bool) {
	orphan, foreground := false, false
	switch {
	case o.OrphanDependents != nil: //nolint:staticcheck // old clients
		orphan = *o.OrphanDependents //nolint:staticcheck // old clients
	case o.PropagationPolicy != nil:
		orphan = *o.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *o.PropagationPolicy == metav1.DeletePropagationForeground
	case slices.Contains(have, metav1.FinalizerOrphanDependents):
		orphan = true
	case slices.Contains(have, metav1.FinalizerDeleteDependents):
		foreground = true
	default:
		orphan = byDefault == metav1.DeletePropagationOrphan
	}
	var out []string
	for _, f := range have {
		if f != metav1.FinalizerOrphanDependents && f != metav1.FinalizerDeleteDependents {
			out = append(out, f)
		}
	}
	if orphan {
		out = append(out, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		out = append(out, metav1.FinalizerDeleteDependents)
	}
	a, b := slices.Sorted(slices.Values(have)), slices.Sorted(slices.Values(out))
	return out, !slices.Equal(a, b)
}

// deletedByUpdate tells whether an update took the last thing that held an object
// whose deletion was asked for.
func deletedByUpdate(obj, old runtime.Object) bool {
	m, o := accessor(obj), accessor(old)
	if len(m.GetFinalizers()) > 0 || o.GetDeletionTimestamp() == nil {
		return false
	}
	if ns, ok := obj.(*corev1.Namespace); ok && len(ns.Spec.Finalizers) > 0 {
		return false
	}
	g := o.GetDeletionGracePeriodSeconds()
	return g == nil || *g == 0
}
