package api

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// The functions below turn a pure function over one Go type into the form that
// Resource and Strategy hold, so that a declaration reads without type assertions.
// A missing old object (on create) arrives as the zero value of T, a nil pointer.

// Defaults adapts a defaulting function.
func Defaults[T runtime.Object](f func(T)) func(runtime.Object) {
	return func(obj runtime.Object) { f(obj.(T)) }
}

// OnCreate adapts a function for Strategy.PrepareCreate.
func OnCreate[T runtime.Object](f func(obj T)) func(context.Context, runtime.Object) {
	return func(_ context.Context, obj runtime.Object) { f(obj.(T)) }
}

// OnUpdate adapts a function for Strategy.PrepareUpdate.
func OnUpdate[T runtime.Object](f func(obj, old T)) func(_ context.Context, obj, old runtime.Object) {
	return func(_ context.Context, obj, old runtime.Object) { f(obj.(T), old.(T)) }
}

// Check adapts a function for Strategy.Validate.
func Check[T runtime.Object](f func(obj T) field.ErrorList) func(context.Context, runtime.Object) field.ErrorList {
	return func(_ context.Context, obj runtime.Object) field.ErrorList { return f(obj.(T)) }
}

// CheckUpdate adapts a function for Strategy.ValidateUpdate.
func CheckUpdate[T runtime.Object](f func(obj, old T) field.ErrorList) func(_ context.Context, obj, old runtime.Object) field.ErrorList {
	return func(_ context.Context, obj, old runtime.Object) field.ErrorList { return f(obj.(T), old.(T)) }
}

// Warn adapts a function for Strategy.Warnings.
func Warn[T runtime.Object](f func(obj, old T) []string) func(_ context.Context, obj, old runtime.Object) []string {
	return func(_ context.Context, obj, old runtime.Object) []string {
		before, _ := old.(T)
		return f(obj.(T), before)
	}
}

// Changed adapts a function for Strategy.SpecChanged.
func Changed[T runtime.Object](f func(obj, old T) bool) func(obj, old runtime.Object) bool {
	return func(obj, old runtime.Object) bool { return f(obj.(T), old.(T)) }
}

// Selectable adapts a function for Resource.Fields.
func Selectable[T runtime.Object](f func(obj T) fields.Set) func(runtime.Object) fields.Set {
	return func(obj runtime.Object) fields.Set { return f(obj.(T)) }
}

// Cells adapts a function for Resource.Row.
func Cells[T runtime.Object](f func(obj T, now time.Time) []any) func(runtime.Object, time.Time) []any {
	return func(obj runtime.Object, now time.Time) []any { return f(obj.(T), now) }
}
