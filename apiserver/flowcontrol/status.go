package flowcontrol

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
)

// retryStatus is how long after a write that failed it is tried again.
const retryStatus = time.Second

// keepStatus keeps the Dangling conditions true.
func (k *Controller) keepStatus(ctx context.Context) {
	if k.WaitReady(ctx) != nil {
		return
	}
	for {
		k.mu.Lock()
		all, levels := maps.Clone(k.fs), k.table.Load().levels
		k.mu.Unlock()
		var again <-chan time.Time
		for _, fs := range all {
			level := fs.Spec.PriorityLevelConfiguration.Name
			want := Dangling(level, levels[level] != nil)
			if have := condition(fs); have != nil && same(have, &want) {
				continue
			}
			if err := k.writeStatus(ctx, fs, want); err != nil && ctx.Err() == nil {
				k.Log.Warn("write the status of a FlowSchema", "flowschema", fs.Name, "err", err)
				again = k.Clock.After(retryStatus)
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-again:
		}
	}
}

// Dangling is the condition that says whether a FlowSchema's level exists.
func Dangling(level string, exists bool) flowcontrolv1.FlowSchemaCondition {
	c := flowcontrolv1.FlowSchemaCondition{Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionFalse, Reason: "Found",
		Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists", level)}
	if !exists {
		c.Status, c.Reason = flowcontrolv1.ConditionTrue, "NotFound"
		c.Message = fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q but there is no such object", level)
	}
	return c
}

func condition(fs *flowcontrolv1.FlowSchema) *flowcontrolv1.FlowSchemaCondition {
	i := slices.IndexFunc(fs.Status.Conditions, func(c flowcontrolv1.FlowSchemaCondition) bool {
		return c.Type == flowcontrolv1.FlowSchemaConditionDangling
	})
	if i < 0 {
		return nil
	}
	return &fs.Status.Conditions[i]
}

func same(a, b *flowcontrolv1.FlowSchemaCondition) bool {
	return a.Status == b.Status && a.Reason == b.Reason && a.Message == b.Message
}

func (k *Controller) writeStatus(ctx context.Context, fs *flowcontrolv1.FlowSchema, want flowcontrolv1.FlowSchemaCondition) error {
	_, err := k.schemas.Update(ctx, "", fs.Name, false, cacher.Preconditions{UID: &fs.UID}, func(current cacher.Object) (runtime.Object, time.Duration, error) {
		o, ok := current.Runtime().(*flowcontrolv1.FlowSchema)
		if !ok {
			return nil, 0, fmt.Errorf("cache of %s holds a %T", flowSchemas, current.Runtime())
		}
		next := o.DeepCopy()
		if next.Spec.PriorityLevelConfiguration.Name != fs.Spec.PriorityLevelConfiguration.Name {
			return next, 0, nil // its watch event comes
		}
		want.LastTransitionTime = metav1.NewTime(k.Clock.Now()).Rfc3339Copy()
		switch have := condition(next); {
		case have == nil:
			next.Status.Conditions = append(next.Status.Conditions, want)
		case !same(have, &want):
			if have.Status == want.Status {
				want.LastTransitionTime = have.LastTransitionTime
			}
			*have = want
		}
		return next, 0, nil
	})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // gone, or made anew: an event comes
		return nil
	}
	return err
}
