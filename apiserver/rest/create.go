package rest

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/google/uuid"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"

	"github.com/skiff-k8s/skiff/apiserver/audit"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// create handles POST to a collection.
func (c *call) create(v *view) error {
	if c.r.Unavailable != nil {
		if err := c.r.Unavailable(); err != nil {
			return err
		}
	}
	if err := c.negotiate(); err != nil {
		return err
	}
	opts, err := c.createOptions()
	if err != nil {
		return err
	}
	obj, err := c.decode(c.r, opts.FieldValidation)
	if err != nil {
		return err
	}
	m := accessor(obj)
	wipeSystemFields(m)
	if err := ensureNamespace(c.namespace, m); err != nil {
		return err
	}
	w := c.newWrite(v, opts, opts.DryRun)
	w.name = m.GetName()
	w.manager = manager(opts.FieldManager, c.req.UserAgent())
	res, err := w.create(c.ctx, obj)
	if err != nil {
		return err
	}
	return c.answer(http.StatusCreated, res)
}

func (c *call) createOptions() (*metav1.CreateOptions, error) {
	opts := &metav1.CreateOptions{}
	if c.req.URL.RawQuery != "" {
		if err := metainternal.ParameterCodec.DecodeParameters(c.req.URL.Query(), metav1.SchemeGroupVersion, opts); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if errs := metavalidation.ValidateCreateOptions(opts); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "CreateOptions"}, "", errs)
	}
	opts.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("CreateOptions"))
	return opts, nil
}

func wipeSystemFields(m metav1.Object) {
	m.SetCreationTimestamp(metav1.Time{})
	m.SetUID("")
	m.SetDeletionTimestamp(nil)
	m.SetDeletionGracePeriodSeconds(nil)
	m.SetSelfLink("")
}

// errRevisionOnCreate is answered as 500, as upstream does.
var errRevisionOnCreate = errors.New("resourceVersion should not be set on objects to be created")

// nameAttempts is how often a generated name is drawn again when it is taken (KEP-4420).
const nameAttempts = 8

// create admits and stores a decoded object, which it owns.
func (w *write) create(ctx context.Context, obj runtime.Object) (result, error) {
	dedupOwners(ctx, obj, false)
	var err error
	if obj, err = w.own(w.empty(), obj); err != nil {
		return result{}, err
	}
	if err := w.admit(ctx, seams.Create, obj, nil); err != nil {
		return result{}, err
	}
	dedupOwners(ctx, obj, true)
	m := accessor(obj)
	if m.GetGenerateName() == "" || m.GetName() != "" {
		return w.store(ctx, obj)
	}
	var res result
	for range nameAttempts {
		if res, err = w.store(ctx, obj.DeepCopyObject()); err == nil || !apierrors.IsAlreadyExists(err) {
			return res, err
		}
	}
	return res, err
}

// generatedBase bounds the prefix so that names stay within 63 characters.
const generatedBase, generatedSuffix = 58, 5

// store makes one attempt to store a new object.
func (w *write) store(ctx context.Context, obj runtime.Object) (result, error) {
	m := accessor(obj)
	fillSystemFields(m, w.g.Clock.Now())
	if base := m.GetGenerateName(); base != "" && m.GetName() == "" {
		if len(base) > generatedBase {
			base = base[:generatedBase]
		}
		m.SetName(base + rand.String(generatedSuffix))
	}
	finish, err := begin(w.hooks, func(h *seams.Hooks) (seams.Finish, error) {
		if h.BeginCreate == nil {
			return nil, nil
		}
		return h.BeginCreate(ctx, obj, w.dryRun)
	})
	if err != nil {
		return result{}, err
	}
	res, err := w.storePrepared(ctx, obj)
	if !unknown(err) {
		finish(context.WithoutCancel(ctx), err == nil && !w.dryRun)
	}
	return res, err
}

// unknown says whether an error leaves it open if the object was stored: then neither what
// it holds (hooks) may be given to others, nor what it held before.
func unknown(err error) bool { return apierrors.IsTimeout(err) }

func (w *write) storePrepared(ctx context.Context, obj runtime.Object) (result, error) {
	if err := w.prepareCreate(ctx, obj); err != nil {
		return result{}, err
	}
	if err := w.validate(ctx, seams.Create, obj, nil); err != nil {
		return result{}, err
	}
	m := accessor(obj)
	name := m.GetName()
	if rv, err := strconv.ParseUint(m.GetResourceVersion(), 10, 64); err == nil && rv != 0 {
		return result{}, errRevisionOnCreate
	}
	cache, err := w.cache()
	if err != nil {
		return result{}, err
	}
	if w.dryRun {
		current, err := cache.Get(ctx, w.namespace, name, "")
		if err == nil {
			return result{}, w.exists(obj, current.Meta())
		}
		if !apierrors.IsNotFound(err) {
			return result{}, err
		}
		obj.GetObjectKind().SetGroupVersionKind(w.gvk)
		return result{obj: obj, created: true}, nil
	}
	put, err := w.stored(obj)
	if err != nil {
		return result{}, err
	}
	var ttl time.Duration
	if w.TTL != nil {
		ttl = w.TTL(obj)
	}
	o, err := cache.Create(ctx, put, ttl)
	if apierrors.IsAlreadyExists(err) {
		var current metav1.Object
		if c, gerr := cache.Get(ctx, w.namespace, name, ""); gerr == nil {
			current = c.Meta()
		}
		return result{}, w.exists(obj, current)
	}
	if err != nil {
		return result{}, err
	}
	return result{stored: o, created: true}, nil
}

// exists is the error for a name that is taken. current may be nil.
func (w *write) exists(obj runtime.Object, current metav1.Object) error {
	m := accessor(obj)
	err := apierrors.NewAlreadyExists(w.gr, m.GetName())
	if m.GetGenerateName() != "" {
		err = apierrors.NewGenerateNameConflict(w.gr, m.GetName(), 1)
	}
	if current != nil && current.GetDeletionTimestamp() != nil {
		err.ErrStatus.Message = "object is being deleted: " + err.ErrStatus.Message
	}
	return err
}

// prepareCreate does what every create does short of admission and storing.
func (w *write) prepareCreate(ctx context.Context, obj runtime.Object) error {
	m := accessor(obj)
	if err := ensureNamespace(w.namespace, m); err != nil {
		return err
	}
	s := w.strategy
	if s.HasGeneration {
		m.SetGeneration(1)
	}
	if s.PrepareCreate != nil {
		s.PrepareCreate(ctx, obj)
	}
	errs := validation.ValidateObjectMetaAccessor(m, w.Namespaced, w.nameErrors, field.NewPath("metadata"))
	if s.Validate != nil {
		errs = append(errs, s.Validate(ctx, obj)...)
	}
	if len(errs) > 0 {
		return invalid(w.gvk.GroupKind(), m.GetName(), errs)
	}
	if s.Warnings != nil {
		for _, text := range s.Warnings(ctx, obj, nil) {
			warning.AddWarning(ctx, "", text)
		}
	}
	if s.Canonicalize != nil {
		s.Canonicalize(obj)
	}
	return nil
}

// nameErrors checks a name by the resource's rule, or as a DNS subdomain.
func (w *write) nameErrors(name string, prefix bool) []string {
	if f := w.Strategy.NameErrors; f != nil {
		return f(name, prefix)
	}
	if prefix {
		return append(path.IsValidPathSegmentPrefix(name), validation.NameIsDNSSubdomain(name, true)...)
	}
	return append(path.IsValidPathSegmentName(name), validation.NameIsDNSSubdomain(name, false)...)
}

// decode reads the body as an object of the resource, with defaults.
func (c *call) decode(r *resource, directive string) (runtime.Object, error) {
	data, media, err := c.input(r.custom)
	if err != nil {
		return nil, err
	}
	obj, err := r.decode(c.ctx, media, data, directive)
	if err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(r.gvk)
	audit.RequestObject(c.ctx, obj)
	return obj, nil
}

// fillSystemFields sets what the server alone sets on every new object.
func fillSystemFields(m metav1.Object, now time.Time) {
	m.SetCreationTimestamp(metav1.NewTime(now.Truncate(time.Second)))
	m.SetUID(types.UID(uuid.NewString()))
}

// pathSegment is the least a name must be: that of an existing object is not judged again.
func pathSegment(name string, prefix bool) []string {
	if prefix {
		return path.IsValidPathSegmentPrefix(name)
	}
	return path.IsValidPathSegmentName(name)
}
