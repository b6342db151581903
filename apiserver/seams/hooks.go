package seams

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Finish ends what a Begin function began. success false undoes: the object was not stored,
// or a dry run. It is called once, or not at all where nobody knows whether the object was
// stored (the store lost its leader): what was begun must then be kept, and mended later.
type Finish func(ctx context.Context, success bool)

// Hooks let a resource hold something outside its own object for as long as the
// object exists: a Service's cluster IPs and node ports. Any may be nil.
type Hooks struct {
	Resource schema.GroupResource
	// BeginCreate runs after admission's Admit, before PrepareCreate and Validate, and may set
	// fields of obj. dryRun: choose, but keep nothing.
	BeginCreate func(ctx context.Context, obj runtime.Object, dryRun bool) (Finish, error)
	// BeginUpdate likewise; it runs once for each try, and for updates of subresource ""
	// only. obj may be changed, old is shared.
	BeginUpdate func(ctx context.Context, obj, old runtime.Object, dryRun bool) (Finish, error)
	// Deleting runs on the private copy that a delete request makes, before finalizers are
	// looked at and only if no deletion has begun: it may add finalizers and set status.
	Deleting func(ctx context.Context, obj runtime.Object)
	// AfterDelete runs once the object is gone from the store.
	AfterDelete func(ctx context.Context, obj runtime.Object)
}
