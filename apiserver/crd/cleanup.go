package crd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/lookup"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// cleanupRound is how long the objects of a definition may take to go before its
// status says that they do not; then they are deleted again.
const cleanupRound = time.Minute

// startCleanup deletes the objects of a definition that is going, and then lets it go.
// It runs beside the worker: objects may wait for their finalizers for long.
func (c *Controller) startCleanup(ctx context.Context, d *apiextensionsv1.CustomResourceDefinition, cleaning *sync.WaitGroup) {
	s := c.served[d.Name]
	if s == nil {
		if err := c.finish(ctx, d, "NeverEstablished", "resource was never established"); err != nil {
			c.Log.Warn("let custom resource definition go", "name", d.Name, "err", err)
			c.enqueueLater(ctx, d.Name, cleaning)
		}
		return
	}
	if s.stop != nil {
		return // under way
	}
	ctx, stop := context.WithCancel(ctx)
	s.stop = stop
	cleaning.Go(func() {
		defer stop()
		if err := c.cleanup(ctx, d, s); err != nil && ctx.Err() == nil {
			c.Log.Warn("clean up custom resource definition", "name", d.Name, "err", err)
		}
	})
}

func (c *Controller) enqueueLater(ctx context.Context, name string, cleaning *sync.WaitGroup) {
	timer := c.Clock.NewTimer(time.Second)
	cleaning.Go(func() {
		defer timer.Stop()
		select {
		case <-ctx.Done():
		case <-timer.C():
			c.enqueue(name)
		}
	})
}

func (c *Controller) cleanup(ctx context.Context, d *apiextensionsv1.CustomResourceDefinition, s *serving) error {
	for {
		if err := c.note(ctx, d, apiextensionsv1.ConditionTrue, "InstanceDeletionInProgress", "CustomResource deletion is in progress"); err != nil {
			return err
		}
		err := c.deleteAll(ctx, s)
		if err == nil {
			return c.finish(ctx, d, "InstanceDeletionCompleted", "removed all instances")
		}
		if ctx.Err() != nil {
			return nil
		}
		reason, format := "InstanceDeletionFailed", "could not issue all deletes: %v"
		if errors.Is(err, context.DeadlineExceeded) {
			reason, format = "InstanceDeletionCheck", "could not confirm zero CustomResources remaining: %v"
		}
		if err := c.note(ctx, d, apiextensionsv1.ConditionTrue, reason, fmt.Sprintf(format, err)); err != nil {
			return err
		}
		timer := c.Clock.NewTimer(time.Second)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C():
		}
	}
}

// deleteAll deletes every object and returns when none is left.
func (c *Controller) deleteAll(ctx context.Context, s *serving) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupRound)
	defer cancel()
	objects, err := lookup.Resource(c.Caches, s.gr)
	if err != nil {
		return err
	}
	store, ok := c.Registry.Store(s.gr)
	if !ok {
		return errors.New("the resource is not served")
	}
	initial := true
	w, err := objects.Watch(ctx, cacher.WatchOptions{Bookmarks: true, SendInitialEvents: &initial})
	if err != nil {
		return fmt.Errorf("watch the objects: %w", err)
	}
	defer w.Stop()
	left := map[types.NamespacedName]bool{}
	for e := range w.Events() {
		if e.Err != nil {
			return fmt.Errorf("watch the objects: %w", e.Err)
		}
		if e.Type == watch.Bookmark {
			initial = initial && !e.InitialEventsEnd
		} else {
			name := types.NamespacedName{Namespace: e.Object.Meta().GetNamespace(), Name: e.Object.Meta().GetName()}
			if e.Type == watch.Deleted {
				delete(left, name)
			} else {
				left[name] = true
				if err := remove(ctx, store, e.Object); err != nil {
					return err
				}
			}
		}
		if !initial && len(left) == 0 {
			return nil
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.New("watch of the objects ended")
}

func remove(ctx context.Context, store seams.Store, o cacher.Object) error {
	if o.Meta().GetDeletionTimestamp() != nil {
		return nil // waits for its finalizers
	}
	uid := o.Meta().GetUID()
	_, _, err := store.Delete(ctx, o.Meta().GetNamespace(), o.Meta().GetName(), &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// note sets the condition Terminating.
func (c *Controller) note(ctx context.Context, d *apiextensionsv1.CustomResourceDefinition, status apiextensionsv1.ConditionStatus, reason, message string) error {
	_, err := c.definitions.Update(ctx, "", d.Name, false, cacher.Preconditions{UID: &d.UID},
		func(current cacher.Object) (runtime.Object, time.Duration, error) {
			next := current.Runtime().DeepCopyObject().(*apiextensionsv1.CustomResourceDefinition)
			setCondition(next, c.Clock.Now(), apiextensionsv1.CustomResourceDefinitionCondition{
				Type: apiextensionsv1.Terminating, Status: status, Reason: reason, Message: message,
			})
			return next, 0, nil
		})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// finish takes the finalizer off; with the last one the definition goes.
func (c *Controller) finish(ctx context.Context, d *apiextensionsv1.CustomResourceDefinition, reason, message string) error {
	only := func(o *apiextensionsv1.CustomResourceDefinition) bool {
		return o.DeletionTimestamp != nil && slices.Equal(o.Finalizers, []string{apiextensionsv1.CustomResourceCleanupFinalizer})
	}
	pre := cacher.Preconditions{UID: &d.UID}
	var last *apiextensionsv1.CustomResourceDefinition
	_, err := c.definitions.Update(ctx, "", d.Name, false, pre, func(current cacher.Object) (runtime.Object, time.Duration, error) {
		next := current.Runtime().DeepCopyObject().(*apiextensionsv1.CustomResourceDefinition)
		last = nil
		if only(next) {
			last = next
			return nil, 0, cacher.ErrNoChange
		}
		apihelpers.CRDRemoveFinalizer(next, apiextensionsv1.CustomResourceCleanupFinalizer)
		setCondition(next, c.Clock.Now(), apiextensionsv1.CustomResourceDefinitionCondition{
			Type: apiextensionsv1.Terminating, Status: apiextensionsv1.ConditionFalse, Reason: reason, Message: message,
		})
		return next, 0, nil
	})
	if err == nil && last != nil {
		rv := last.ResourceVersion
		pre.ResourceVersion = &rv
		_, err = c.definitions.Delete(ctx, "", d.Name, pre, nil)
		if apierrors.IsConflict(err) {
			return c.finish(ctx, d, reason, message) // somebody touched it meanwhile
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
