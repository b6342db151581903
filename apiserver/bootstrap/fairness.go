package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/flowcontrol"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
)

var (
	flowSchemas    = schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: "flowschemas"}
	priorityLevels = schema.GroupResource{Group: flowcontrolv1.GroupName, Resource: "prioritylevelconfigurations"}
)

// fairness are the standard objects of priority and fairness: the mandatory ones, which are
// what they are, and the suggested ones, which are kept up to date unless their user says no
// (https://kubernetes.io/docs/concepts/cluster-administration/flow-control/#maintenance-of-the-mandatory-and-suggested-configuration-objects).
// They are the library's own, not to be changed.
func fairness() map[schema.GroupResource][]api.Object {
	out := map[schema.GroupResource][]api.Object{}
	for _, p := range slices.Concat(bootstrap.MandatoryPriorityLevelConfigurations, bootstrap.SuggestedPriorityLevelConfigurations) {
		out[priorityLevels] = append(out[priorityLevels], p)
	}
	for _, f := range slices.Concat(bootstrap.MandatoryFlowSchemas, bootstrap.SuggestedFlowSchemas) {
		out[flowSchemas] = append(out[flowSchemas], f)
	}
	return out
}

// fresh is a standard object as it is made.
func (b *Bootstrap) fresh(o api.Object) api.Object {
	o = o.DeepCopyObject().(api.Object)
	o.SetAnnotations(map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: "true"})
	o.SetGeneration(1)
	if f, ok := o.(*flowcontrolv1.FlowSchema); ok {
		c := flowcontrol.Dangling(f.Spec.PriorityLevelConfiguration.Name, true)
		c.LastTransitionTime = metav1.NewTime(b.Clock.Now()).Rfc3339Copy()
		f.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{c}
	}
	return o
}

// ensureFairness makes what is missing, keeps what is ours to keep, and removes what was once suggested.
func (b *Bootstrap) ensureFairness(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for gr, want := range fairness() {
		r, err := lookup.Resource(b.Caches, gr)
		if err != nil {
			return err
		}
		l, err := r.List(ctx, cacher.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return fmt.Errorf("list %s: %w", gr, err)
		}
		have := map[string]api.Object{}
		for _, o := range l.Items {
			if obj, ok := o.Runtime().(api.Object); ok {
				have[obj.GetName()] = obj
			}
		}
		for _, w := range want {
			current := have[w.GetName()]
			delete(have, w.GetName())
			if current != nil && kept(current, w) == nil {
				continue
			}
			g.Go(func() error {
				if err := b.ensureKept(ctx, r, w, current != nil); err != nil {
					return fmt.Errorf("%s %s: %w", gr, w.GetName(), err)
				}
				return nil
			})
		}
		for name, o := range have { // those of an earlier version
			if o.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey] != "true" {
				continue
			}
			uid := o.GetUID()
			g.Go(func() error {
				_, err := r.Delete(ctx, "", name, cacher.Preconditions{UID: &uid}, func(current cacher.Object) error {
					if current.Meta().GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey] != "true" {
						return errNothing
					}
					return nil
				})
				if err != nil && !apierrors.IsNotFound(err) && !errors.Is(err, errNothing) {
					return fmt.Errorf("%s %s: %w", gr, name, err)
				}
				return nil
			})
		}
	}
	return g.Wait()
}

func (b *Bootstrap) ensureKept(ctx context.Context, r cacher.Resource, w api.Object, exists bool) error {
	if !exists {
		return b.create(ctx, r, b.fresh(w))
	}
	_, err := r.Update(ctx, "", w.GetName(), false, cacher.Preconditions{}, func(current cacher.Object) (runtime.Object, time.Duration, error) {
		o, ok := current.Runtime().(api.Object)
		if !ok {
			return nil, 0, fmt.Errorf("the cache holds a %T", current.Runtime())
		}
		next := kept(o, w)
		if next == nil {
			return nil, 0, errNothing
		}
		return next, 0, nil
	})
	if errors.Is(err, errNothing) {
		return nil
	}
	if apierrors.IsNotFound(err) {
		return b.create(ctx, r, b.fresh(w))
	}
	return err
}

// kept is what an object must become; nil: it is as it should be, or as its user wants it.
func kept(current, want api.Object) api.Object {
	mandatory := want.GetName() == flowcontrolv1.FlowSchemaNameExempt || want.GetName() == flowcontrolv1.FlowSchemaNameCatchAll
	auto := current.GetAnnotations()[flowcontrolv1.AutoUpdateAnnotationKey]
	switch {
	case mandatory, auto == "true":
	case auto == "" && current.GetGeneration() == 1: // nobody has changed it since it was made
	default:
		return nil
	}
	// Looked at every heartbeat: what is right already is not copied.
	var next api.Object
	var right bool
	switch c := current.(type) {
	case *flowcontrolv1.FlowSchema:
		w := want.(*flowcontrolv1.FlowSchema)
		if right = apiequality.Semantic.DeepEqual(c.Spec, w.Spec); right && auto == "true" {
			return nil
		}
		n := c.DeepCopy()
		n.Spec, next = *w.Spec.DeepCopy(), n
	case *flowcontrolv1.PriorityLevelConfiguration:
		spec := want.(*flowcontrolv1.PriorityLevelConfiguration).Spec
		if c.Name == flowcontrolv1.PriorityLevelConfigurationNameExempt && c.Spec.Exempt != nil && c.Spec.Type == spec.Type {
			spec.Exempt = c.Spec.Exempt // its shares are for users to choose
		}
		if right = apiequality.Semantic.DeepEqual(c.Spec, spec); right && auto == "true" {
			return nil
		}
		n := c.DeepCopy()
		n.Spec, next = *spec.DeepCopy(), n
	default:
		return nil
	}
	a := maps.Clone(next.GetAnnotations())
	if a == nil {
		a = map[string]string{}
	}
	a[flowcontrolv1.AutoUpdateAnnotationKey] = "true"
	next.SetAnnotations(a)
	if !right { // the generation is the spec's
		next.SetGeneration(current.GetGeneration() + 1)
	}
	return next
}
