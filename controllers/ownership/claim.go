package ownership

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Claim reconciles controller references of dependents with a selector: it adopts
// orphans that match and releases owned ones that no longer do.
type Claim[T metav1.Object] struct {
	Owner    metav1.Object
	Kind     schema.GroupVersionKind
	Selector labels.Selector
	// Live reads the owner from the API server, not from a cache. It is asked once, before
	// the first adoption: a cache may not know yet that the owner is being deleted, and the
	// garbage collector has then already looked for its dependents.
	Live func(ctx context.Context) (metav1.Object, error)
	// Patch sends a strategic merge patch to a dependent.
	Patch func(ctx context.Context, obj T, patch []byte) error
	// Finalizer is added on adoption and taken away on release, if not empty.
	Finalizer string

	checked  bool
	checkErr error
}

// All returns those of objs (owned ones and orphans) that now belong to the owner.
func (c *Claim[T]) All(ctx context.Context, objs []T) ([]T, error) {
	var (
		owned []T
		errs  []error
	)
	for _, obj := range objs {
		ok, err := c.one(ctx, obj)
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		} else if ok && err == nil {
			owned = append(owned, obj)
		}
	}
	return owned, errors.Join(errs...)
}

func (c *Claim[T]) one(ctx context.Context, obj T) (bool, error) {
	matches := c.Selector.Matches(labels.Set(obj.GetLabels()))
	if ref := metav1.GetControllerOfNoCopy(obj); ref != nil {
		switch {
		case ref.UID != c.Owner.GetUID():
			return false, nil
		case matches:
			return true, nil
		case c.Owner.GetDeletionTimestamp() != nil:
			return false, nil
		}
		return false, c.release(ctx, obj)
	}
	if !matches || c.Owner.GetDeletionTimestamp() != nil || obj.GetDeletionTimestamp() != nil {
		return false, nil
	}
	return true, c.adopt(ctx, obj)
}

func (c *Claim[T]) adopt(ctx context.Context, obj T) error {
	if !c.checked {
		c.checked = true
		c.checkErr = c.check(ctx)
	}
	if c.checkErr != nil {
		return c.checkErr
	}
	meta := map[string]any{
		"uid":             obj.GetUID(),
		"ownerReferences": []metav1.OwnerReference{*metav1.NewControllerRef(c.Owner, c.Kind)},
	}
	if c.Finalizer != "" {
		meta["finalizers"] = []string{c.Finalizer}
	}
	if err := c.patch(ctx, obj, meta); err != nil {
		return fmt.Errorf("adopting %s/%s: %w", obj.GetNamespace(), obj.GetName(), err)
	}
	return nil
}

func (c *Claim[T]) check(ctx context.Context) error {
	live, err := c.Live(ctx)
	if err != nil {
		return fmt.Errorf("reading %s %s/%s before an adoption: %w", c.Kind.Kind, c.Owner.GetNamespace(), c.Owner.GetName(), err)
	}
	if live.GetUID() != c.Owner.GetUID() {
		return fmt.Errorf("%s %s/%s was replaced by another of the same name", c.Kind.Kind, c.Owner.GetNamespace(), c.Owner.GetName())
	}
	if live.GetDeletionTimestamp() != nil {
		return fmt.Errorf("%s %s/%s is being deleted", c.Kind.Kind, c.Owner.GetNamespace(), c.Owner.GetName())
	}
	return nil
}

func (c *Claim[T]) release(ctx context.Context, obj T) error {
	meta := map[string]any{
		"uid":             obj.GetUID(),
		"ownerReferences": []map[string]any{{"$patch": "delete", "uid": c.Owner.GetUID()}},
	}
	if c.Finalizer != "" {
		meta["$deleteFromPrimitiveList/finalizers"] = []string{c.Finalizer}
	}
	err := c.patch(ctx, obj, meta)
	// Invalid: its uid is another now, or it has no such reference any more.
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		return nil
	}
	return fmt.Errorf("releasing %s/%s: %w", obj.GetNamespace(), obj.GetName(), err)
}

func (c *Claim[T]) patch(ctx context.Context, obj T, meta map[string]any) error {
	body, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return fmt.Errorf("encoding patch: %w", err)
	}
	return c.Patch(ctx, obj, body)
}

// Owned keeps those that the owner controls and that its selector matches, without
// adopting or releasing any.
func Owned[T metav1.Object](owner types.UID, selector labels.Selector, objs []T) []T {
	var owned []T
	for _, obj := range objs {
		ref := metav1.GetControllerOfNoCopy(obj)
		if ref != nil && ref.UID == owner && selector.Matches(labels.Set(obj.GetLabels())) {
			owned = append(owned, obj)
		}
	}
	return owned
}
