package rest

import (
	"context"
	"fmt"
	"net/http"
	"slices"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/skiff-k8s/skiff/apiserver/audit"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/negotiate"
	"github.com/skiff-k8s/skiff/apiserver/patch"
)

// ScaleKind is what the scale subresource speaks.
var ScaleKind = autoscalingv1.SchemeGroupVersion.WithKind("Scale")

// scale handles the scale subresource: get, update and patch of autoscaling/v1 Scale.
func (c *call) scale() error {
	ctx, cancel := context.WithTimeout(c.ctx, timeLimit)
	defer cancel()
	c.ctx = ctx
	if !slices.Contains([]string{"get", "update", "patch"}, c.info.Verb) {
		return methodNotAllowed()
	}
	out, err := negotiate.Accept(c.req, negotiate.Allow{})
	if err != nil {
		return err
	}
	c.out = out
	if c.info.Verb == "get" {
		cache, err := c.r.cache()
		if err != nil {
			return err
		}
		o, err := cache.Get(c.ctx, c.namespace, c.name, "")
		if err != nil {
			return err
		}
		obj, err := c.r.seen(o)
		if err != nil {
			return err
		}
		return c.encode(http.StatusOK, c.r.scaleOf(obj))
	}
	return c.rescale()
}

// scaleOf shows an object as its Scale.
func (r *resource) scaleOf(obj runtime.Object) *autoscalingv1.Scale {
	m := accessor(obj)
	s := &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: m.GetName(), Namespace: m.GetNamespace(), UID: m.GetUID(),
		ResourceVersion: m.GetResourceVersion(), CreationTimestamp: m.GetCreationTimestamp()}}
	s.SetGroupVersionKind(ScaleKind)
	s.Spec.Replicas, s.Status.Replicas, s.Status.Selector = r.Scale.Get(obj)
	return s
}

// rescale changes the replicas through the resource's own update.
func (c *call) rescale() error {
	opts := &metav1.UpdateOptions{}
	if c.req.URL.RawQuery != "" {
		if err := metainternal.ParameterCodec.DecodeParameters(c.req.URL.Query(), metav1.SchemeGroupVersion, opts); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	opts.SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind("UpdateOptions"))
	change, err := c.scaleChange(opts)
	if err != nil {
		return err
	}
	w := c.newWrite(c.r.views[""], opts, opts.DryRun)
	w.admission = nil // admission sees the Scale, below
	res, err := w.update(c.ctx, false, cacher.Preconditions{}, func(ctx context.Context, live runtime.Object) (runtime.Object, error) {
		owners, err := c.r.replicaFields(accessor(live).GetManagedFields())
		if err != nil {
			return nil, err
		}
		old := c.r.scaleOf(live)
		if old.ManagedFields, err = owners.ToSubresource(); err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		s, err := change(old)
		if err != nil {
			return nil, err
		}
		if err := c.checkScale(s, old); err != nil {
			return nil, err
		}
		if a := c.g.Admission; a != nil {
			at := c.newWrite(c.r.views[""], opts, opts.DryRun).attributes("UPDATE", s, old)
			at.Subresource, at.Kind = "scale", ScaleKind
			if err := a.Admit(ctx, at); err != nil {
				return nil, err
			}
			if err := a.Validate(ctx, at); err != nil {
				return nil, err
			}
		}
		next := live.DeepCopyObject()
		c.r.Scale.Set(next, s.Spec.Replicas)
		m := accessor(next)
		if s.ResourceVersion != "" {
			m.SetResourceVersion(s.ResourceVersion)
		}
		fields, err := owners.ToParent(s.ManagedFields)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		m.SetManagedFields(fields)
		return next, nil
	})
	if err != nil {
		return err
	}
	obj := res.obj
	if res.stored != nil {
		if obj, err = c.r.seen(res.stored); err != nil {
			return err
		}
	}
	return c.encode(http.StatusOK, c.r.scaleOf(obj))
}

func (c *call) checkScale(s, old *autoscalingv1.Scale) error {
	if err := checkName(s, c.name); err != nil {
		return err
	}
	if err := ensureNamespace(c.namespace, s); err != nil {
		return err
	}
	if s.UID != "" && s.UID != old.UID {
		return apierrors.NewConflict(c.r.gr, c.name, fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", s.UID, old.UID))
	}
	if s.Spec.Replicas < 0 && !c.r.custom { // that of custom resources has rules of its own
		return apierrors.NewInvalid(schema.GroupKind{Group: ScaleKind.Group, Kind: "Scale"}, s.Name, field.ErrorList{
			field.Invalid(field.NewPath("spec", "replicas"), s.Spec.Replicas, "must be greater than or equal to 0").WithOrigin("minimum")})
	}
	return nil
}

// scaleChange reads the body as a function from the current Scale, which it does not
// change, to the wanted one with its managed fields.
func (c *call) scaleChange(opts *metav1.UpdateOptions) (func(*autoscalingv1.Scale) (*autoscalingv1.Scale, error), error) {
	fm, err := c.g.fieldsOf(ScaleKind, "scale", func() runtime.Object { return &autoscalingv1.Scale{} })
	if err != nil {
		return nil, err
	}
	who := manager(opts.FieldManager, c.req.UserAgent())
	owned := func(old, s *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
		return asScale(fm.UpdateNoErrors(old, s, who))
	}
	if c.info.Verb == "update" {
		data, media, err := c.input(false)
		if err != nil {
			return nil, err
		}
		s, err := c.decodeScale(media, data)
		if err != nil {
			return nil, err
		}
		audit.RequestObject(c.ctx, s)
		return func(old *autoscalingv1.Scale) (*autoscalingv1.Scale, error) { return owned(old, s.DeepCopy()) }, nil
	}
	t, err := c.patchType()
	if err != nil {
		return nil, err
	}
	patchOpts, err := c.patchOptions(t)
	if err != nil {
		return nil, err
	}
	body, err := c.body()
	if err != nil {
		return nil, err
	}
	if err := c.auditPatch(t, body); err != nil {
		return nil, err
	}
	return func(old *autoscalingv1.Scale) (*autoscalingv1.Scale, error) {
		switch t {
		case types.ApplyYAMLPatchType:
			conf := &unstructured.Unstructured{Object: map[string]any{}}
			if err := yaml.Unmarshal(body, &conf.Object); err != nil {
				return nil, apierrors.NewBadRequest(fmt.Sprintf("error decoding patch: %v", err))
			}
			s, err := fm.Apply(old, conf, patchOpts.FieldManager, patchOpts.Force != nil && *patchOpts.Force)
			if err != nil {
				return nil, err
			}
			if s == nil { // nothing changes
				return old.DeepCopy(), nil
			}
			return asScale(s)
		case types.StrategicMergePatchType:
			next := &autoscalingv1.Scale{}
			if _, _, err := patch.Strategic(old, next, body, false); err != nil {
				return nil, err
			}
			return owned(old, next)
		}
		before, err := marshal(old)
		if err != nil {
			return nil, err
		}
		after, _, err := patch.JSON(t, before, body, false)
		if err != nil {
			return nil, err
		}
		s, err := c.decodeScale(negotiate.JSON, after)
		if err != nil {
			return nil, err
		}
		return owned(old, s)
	}, nil
}

// asScale is what a field manager returns.
func asScale(obj runtime.Object) (*autoscalingv1.Scale, error) {
	s, ok := obj.(*autoscalingv1.Scale)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("managed fields of a Scale: got %T", obj))
	}
	return s, nil
}

func (c *call) decodeScale(media negotiate.Media, data []byte) (*autoscalingv1.Scale, error) {
	kind := ScaleKind
	obj, gvk, err := c.g.codecs.Decode(media, false, data, &kind, &autoscalingv1.Scale{})
	if err != nil {
		return nil, decodeError(err, gvk, kind.Kind, data)
	}
	s, ok := obj.(*autoscalingv1.Scale)
	if !ok {
		return nil, inconvertible(*gvk, ScaleKind)
	}
	s.SetGroupVersionKind(ScaleKind)
	return s, nil
}
