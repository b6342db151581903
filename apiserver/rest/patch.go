package rest

import (
	"context"
	"fmt"
	"mime"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/skiff-k8s/skiff/apiserver/audit"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/negotiate"
	"github.com/skiff-k8s/skiff/apiserver/patch"
)

// patch handles PATCH of all four kinds.
func (c *call) patch(v *view) error {
	kind, err := c.patchType()
	if err != nil {
		return err
	}
	if err := c.negotiate(); err != nil {
		return err
	}
	body, err := c.body()
	if err != nil {
		return err
	}
	opts, err := c.patchOptions(kind)
	if err != nil {
		return err
	}
	if err := c.auditPatch(kind, body); err != nil {
		return err
	}
	w := c.newWrite(v, updateOptionsOf(opts), opts.DryRun)
	w.mayCreate = c.mayCreate
	applying := kind == types.ApplyYAMLPatchType
	p := &patcher{call: c, write: w, kind: kind, body: body, opts: opts}
	if !applying {
		w.manager = manager(opts.FieldManager, c.req.UserAgent())
	}
	res, err := w.update(c.ctx, applying && v.sub == "", cacher.Preconditions{}, p.next)
	if err != nil {
		return err
	}
	code := http.StatusOK
	if res.created {
		code = http.StatusCreated
	}
	return c.answer(code, res)
}

// auditPatch checks a patch and records it, as JSON.
func (c *call) auditPatch(kind types.PatchType, body []byte) error {
	if err := patch.Check(kind, body); err != nil {
		return err
	}
	if !audit.WantsPatch(c.ctx) {
		return nil
	}
	if kind == types.ApplyYAMLPatchType {
		b, err := yamlToJSON(body)
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		body = b
	}
	audit.RequestPatch(c.ctx, body)
	return nil
}

// patchType is the kind of patch by the content type; custom resources have no
// strategic merge.
func (c *call) patchType() (types.PatchType, error) {
	allowed := []string{string(types.JSONPatchType), string(types.MergePatchType)}
	if !c.r.custom {
		allowed = append(allowed, string(types.StrategicMergePatchType))
	}
	allowed = append(allowed, string(types.ApplyYAMLPatchType))
	t, _, err := mime.ParseMediaType(c.req.Header.Get("Content-Type"))
	if err == nil {
		for _, a := range allowed {
			if t == a {
				return types.PatchType(t), nil
			}
		}
	}
	if !c.r.custom {
		return "", routeError(http.StatusUnsupportedMediaType, "415: Unsupported Media Type")
	}
	return "", negotiate.UnsupportedMediaType(allowed)
}

func (c *call) patchOptions(kind types.PatchType) (*metav1.PatchOptions, error) {
	opts := &metav1.PatchOptions{}
	if c.req.URL.RawQuery != "" {
		if err := metainternal.ParameterCodec.DecodeParameters(c.req.URL.Query(), metav1.SchemeGroupVersion, opts); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	if errs := metavalidation.ValidatePatchOptions(opts, kind); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "PatchOptions"}, "", errs)
	}
	opts.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("PatchOptions"))
	return opts, nil
}

// updateOptionsOf are the options that admission sees for a patch.
func updateOptionsOf(o *metav1.PatchOptions) *metav1.UpdateOptions {
	u := &metav1.UpdateOptions{DryRun: o.DryRun, FieldManager: o.FieldManager, FieldValidation: o.FieldValidation}
	u.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("UpdateOptions"))
	return u
}

// patcher makes the next object of a patch.
type patcher struct {
	*call
	write *write
	kind  types.PatchType
	body  []byte
	opts  *metav1.PatchOptions
}

func (p *patcher) next(ctx context.Context, live runtime.Object) (runtime.Object, error) {
	obj, err := p.patched(ctx, live)
	if err != nil {
		return nil, err
	}
	obj.GetObjectKind().SetGroupVersionKind(p.r.gvk)
	m := accessor(obj)
	if err := ensureNamespace(p.namespace, m); err != nil {
		return nil, err
	}
	return obj, checkName(m, p.name)
}

func (p *patcher) patched(ctx context.Context, live runtime.Object) (runtime.Object, error) {
	if p.kind == types.ApplyYAMLPatchType {
		return p.apply(ctx, live)
	}
	if live == nil {
		return nil, apierrors.NewNotFound(p.r.gr, p.name)
	}
	var obj runtime.Object
	var err error
	if p.kind == types.StrategicMergePatchType {
		obj, err = p.strategic(ctx, live)
	} else {
		obj, err = p.json(ctx, live)
	}
	if err != nil {
		return nil, err
	}
	return p.write.own(live, obj)
}

func (p *patcher) strict() bool { return strict(p.opts.FieldValidation) }

// problems answers unknown and duplicate fields as the directive wants it.
func (p *patcher) problems(ctx context.Context, errs []error, patched string) error {
	if len(errs) == 0 {
		return nil
	}
	if p.opts.FieldValidation == metav1.FieldValidationStrict {
		return patch.Invalid(patched, runtime.NewStrictDecodingError(errs))
	}
	warnStrict(ctx, errs)
	return nil
}

func (p *patcher) strategic(ctx context.Context, live runtime.Object) (runtime.Object, error) {
	obj := p.r.New()
	errs, decoded, err := patch.Strategic(live, obj, p.body, p.strict())
	if err != nil {
		return nil, err
	}
	if err := p.problems(ctx, errs, fmt.Sprintf("%+v", decoded)); err != nil {
		return nil, err
	}
	p.r.fill(obj)
	return obj, nil
}

func (p *patcher) json(ctx context.Context, live runtime.Object) (runtime.Object, error) {
	before, err := marshal(live)
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", p.r.gr, err)
	}
	after, errs, err := patch.JSON(p.kind, before, p.body, p.strict())
	if err != nil {
		return nil, err
	}
	obj, more, err := p.decode(after)
	if err != nil {
		return nil, patch.Invalid(string(after), err)
	}
	if err := p.problems(ctx, append(errs, more...), string(after)); err != nil {
		return nil, err
	}
	p.r.fill(obj)
	return obj, nil
}

// decode reads the patched object; unknown fields come back as problems.
func (p *patcher) decode(data []byte) (obj runtime.Object, problems []error, err error) {
	if p.r.custom {
		obj, _, err = negotiate.DecodeUnstructured(negotiate.JSON, p.strict(), data, p.r.gvk)
	} else {
		kind := p.r.gvk
		obj, _, err = p.g.codecs.Decode(negotiate.JSON, p.strict(), data, &kind, p.r.New())
	}
	if err != nil {
		s, ok := runtime.AsStrictDecodingError(err)
		if !ok || obj == nil {
			return nil, nil, err
		}
		problems = s.Errors()
	}
	if got := obj.GetObjectKind().GroupVersionKind(); got != p.r.gvk {
		return nil, nil, fmt.Errorf("unable to decode %s into %s", got, p.r.gvk)
	}
	if unknown := p.r.prune(obj); p.strict() {
		problems = append(problems, unknown...)
	}
	return obj, problems, nil
}

// apply merges an apply configuration; live is nil where it creates.
func (p *patcher) apply(ctx context.Context, live runtime.Object) (runtime.Object, error) {
	switch {
	case live == nil:
		live = p.r.empty()
	case p.r.custom: // what comes out may hold parts of what goes in
		live = live.DeepCopyObject()
	}
	conf := &unstructured.Unstructured{Object: map[string]any{}}
	if err := yaml.Unmarshal(p.body, &conf.Object); err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
	}
	fm, err := p.write.fields()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	force := p.opts.Force != nil && *p.opts.Force
	obj, err := fm.Apply(live, conf, p.opts.FieldManager, force)
	if err != nil {
		return nil, err
	}
	if p.strict() {
		if err := yaml.UnmarshalStrict(p.body, &map[string]any{}); err != nil {
			if p.opts.FieldValidation == metav1.FieldValidationStrict {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("error strict decoding patch: %v", err))
			}
			warnStrict(ctx, []error{err})
		}
	}
	if obj == nil || obj == live { // nothing changes
		return live.DeepCopyObject(), nil
	}
	p.r.prune(obj) // what the live object had of fields that the schema lost
	return obj, nil
}
