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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

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
	w.manager = manager(opts.FieldManager, c.req.UserAgent())
	w.admission = nil // admission sees the Scale, below
	res, err := w.update(c.ctx, false, cacher.Preconditions{}, func(ctx context.Context, live runtime.Object) (runtime.Object, error) {
		old := c.r.scaleOf(live)
		s, err := change(old.DeepCopy())
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
		accessor(next).SetResourceVersion(s.ResourceVersion)
		return w.own(live, next)
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
	if s.Spec.Replicas < 0 {
		return apierrors.NewInvalid(schema.GroupKind{Group: ScaleKind.Group, Kind: "Scale"}, s.Name, field.ErrorList{
			field.Invalid(field.NewPath("spec", "replicas"), s.Spec.Replicas, "must be greater than or equal to 0").WithOrigin("minimum")})
	}
	return nil
}

// scaleChange reads the body as a function from the current Scale to the wanted one.
func (c *call) scaleChange(opts *metav1.UpdateOptions) (func(*autoscalingv1.Scale) (*autoscalingv1.Scale, error), error) {
	kind := ScaleKind
	if c.info.Verb == "update" {
		data, media, err := c.input(false)
		if err != nil {
			return nil, err
		}
		obj, gvk, err := c.g.codecs.Decode(media, false, data, &kind, &autoscalingv1.Scale{})
		if err != nil {
			return nil, decodeError(err, gvk, kind.Kind, data)
		}
		s, ok := obj.(*autoscalingv1.Scale)
		if !ok {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("wrong object passed to Scale update: %v", gvk))
		}
		s.SetGroupVersionKind(kind)
		audit.RequestObject(c.ctx, s)
		return func(*autoscalingv1.Scale) (*autoscalingv1.Scale, error) { return s.DeepCopy(), nil }, nil
	}
	t, err := c.patchType()
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
		if t == types.StrategicMergePatchType {
			next := &autoscalingv1.Scale{}
			_, _, err := patch.Strategic(old, next, body, false)
			return next, err
		}
		if t == types.ApplyYAMLPatchType { // a Scale has no lists: applying is merging
			var err error
			if body, err = yamlToJSON(body); err != nil {
				return nil, apierrors.NewBadRequest(err.Error())
			}
		}
		before, err := marshal(old)
		if err != nil {
			return nil, err
		}
		mt := t
		if t == types.ApplyYAMLPatchType {
			mt = types.MergePatchType
		}
		after, _, err := patch.JSON(mt, before, body, false)
		if err != nil {
			return nil, err
		}
		obj, gvk, err := c.g.codecs.Decode(negotiate.JSON, false, after, &kind, &autoscalingv1.Scale{})
		if err != nil {
			return nil, decodeError(err, gvk, kind.Kind, after)
		}
		s, ok := obj.(*autoscalingv1.Scale)
		if !ok {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("wrong object passed to Scale update: %v", gvk))
		}
		return s, nil
	}, nil
}
