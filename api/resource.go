// Package api is what the Kubernetes API is: every built-in resource as a value,
// pure functions over the published k8s.io/api types, no I/O.
//
// A resource is one declaration in one file of a group's package (api/core/pod.go,
// api/apps/deployment.go …). The API server is generic over these values, and a
// CustomResourceDefinition produces the same value at run time.
//
// Must not: import client-go, the store or the API server; keep state; do I/O.
package api

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Object is any API object that has metadata.
type Object interface {
	runtime.Object
	metav1.Object
}

// Resource declares one resource: its names, how it is stored and what may be
// done with it. Values are built once and never change afterwards; all functions
// are pure (but for mutating the object they are told to mutate), safe for
// concurrent use, and may be nil where a field says what nil means.
type Resource struct {
	// Group is empty for core. Version is the one served (and used in memory).
	Group, Version string
	Kind, ListKind string // ListKind: Kind + "List" if empty
	// Plural names the resource in URLs; Singular defaults to lower-case Kind.
	Plural, Singular string
	ShortNames       []string
	Categories       []string
	Namespaced       bool
	// Verbs as in discovery; nil: create delete deletecollection get list patch update watch.
	Verbs []string

	// StoragePath is the part of the etcd key behind /registry/, for example
	// "pods", "services/specs", "minions". The key is
	// /registry/<StoragePath>/[<namespace>/]<name>. Empty: the resource is not
	// stored (TokenReview …); the API server holds its create function.
	StoragePath string
	// StorageVersion is what is encoded in etcd where it differs from Group/Version.
	StorageVersion schema.GroupVersion
	// StoredAsJSON: what is in etcd is JSON, not protobuf, as upstream has it for the kinds of
	// its extension and aggregation servers.
	StoredAsJSON bool

	// New and NewList return empty objects. For custom resources they return
	// *unstructured.Unstructured(List) with apiVersion and kind set.
	New     func() Object
	NewList func() runtime.Object

	// Default fills defaults in place: on requests and on every read from etcd.
	Default func(obj runtime.Object)
	// OnRead brings what older servers stored up to what is served today, beyond Default; on
	// every read from etcd. May be nil.
	OnRead func(obj runtime.Object)

	Strategy

	// Subresources that read or write the same stored object: "status",
	// "ephemeralcontainers", "resize", "approval", "finalize" … Those with
	// behaviour of their own (binding, eviction, log, exec, token, proxy, scale)
	// live in the API server.
	Subresources []Subresource
	// Scale maps autoscaling/v1 Scale; nil: no scale subresource.
	Scale *Scale

	// TTL is how long the object lives after its last write; nil or 0: for ever (Events).
	TTL func(obj runtime.Object) time.Duration

	// Fields are the selectable fields beyond metadata.name and metadata.namespace.
	// Keys must be the same for every object of the resource; FieldLabels lists them.
	Fields      func(obj runtime.Object) fields.Set
	FieldLabels []string
	// SelectedFields stands for Fields where finding a field may take long or fail, as where a
	// webhook converts: it is asked only for the fields that a selector names.
	SelectedFields func(obj runtime.Object, names []string) (fields.Set, error)
	// FieldAliases name the selectable fields of the stored kind where this version is a
	// view of another (events.k8s.io of core Events): own label to stored label. nil: the same.
	FieldAliases map[string]string

	// Columns and Row print the object as a meta.k8s.io/v1 Table as upstream does;
	// nil: Name and Created At only. Row returns one cell per column; now is for ages.
	Columns []metav1.TableColumnDefinition
	Row     func(obj runtime.Object, now time.Time) []any
}

// Strategy is what create, update and delete of a resource (or update of a
// subresource) do besides storing. The generic code has already checked
// ObjectMeta, set uid, creationTimestamp, generateName and managedFields, and
// bumps generation itself when SpecChanged says so.
type Strategy struct {
	// NameErrors validates metadata.name (prefix: it is a generateName); nil: DNS subdomain.
	NameErrors func(name string, prefix bool) []string
	// PrepareCreate drops what clients may not set (status …) and sets what the
	// server owns. nil: nothing. The generic code sets generation 1 when HasGeneration.
	PrepareCreate func(ctx context.Context, obj runtime.Object)
	// Validate runs on create after defaulting and admission.
	Validate func(ctx context.Context, obj runtime.Object) field.ErrorList
	// PrepareUpdate copies from old what this endpoint may not change.
	PrepareUpdate func(ctx context.Context, obj, old runtime.Object)
	// ValidateUpdate includes whatever Validate checks that holds on update.
	ValidateUpdate func(ctx context.Context, obj, old runtime.Object) field.ErrorList
	// DeleteWarning is for clients that delete without saying what becomes of dependents.
	DeleteWarning string
	// Warnings for the client (Warning: 299 headers); old is nil on create.
	Warnings func(ctx context.Context, obj, old runtime.Object) []string
	// HasGeneration: metadata.generation is kept. SpecChanged tells whether an
	// update bumps it; nil: compare everything but metadata and status.
	HasGeneration bool
	SpecChanged   func(obj, old runtime.Object) bool
	// CreateOnUpdate: PUT to a missing name creates.
	CreateOnUpdate bool
	// RequireRevision: PUT without resourceVersion is refused (upstream: !AllowUnconditionalUpdate).
	RequireRevision bool
	// Grace decides graceful deletion: it may adjust o and obj (a private copy) and
	// returns true when the object must stay with deletionTimestamp and the grace
	// period set until deleted again with 0 (Pods). nil: immediate.
	Grace func(obj runtime.Object, o *metav1.DeleteOptions) bool
	// DefaultGC is the propagation used when DeleteOptions name none; empty: Background.
	DefaultGC metav1.DeletionPropagation
	// Canonicalize normalises after validation. nil: nothing.
	Canonicalize func(obj runtime.Object)
	// IgnoredApplyPaths are (dotted) fields this endpoint does not own in server-side
	// apply ("status" on the main endpoint; "spec" on status; nil: "status" when the
	// resource has a status subresource).
	IgnoredApplyPaths []string
}

// Subresource reads and writes the stored object under another path with its own rules.
type Subresource struct {
	Name  string
	Verbs []string // get, patch, update
	Strategy
}

// Scale says where a resource keeps what autoscaling/v1 Scale shows.
type Scale struct {
	Get func(obj runtime.Object) (specReplicas, statusReplicas int32, selector string)
	Set func(obj runtime.Object, replicas int32)
	// Path is where spec.replicas are, for managed fields; nil: there.
	Path []string
}

// GVK is the served group, version and kind.
func (r *Resource) GVK() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
}

// GVR is the served group, version and resource.
func (r *Resource) GVR() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: r.Group, Version: r.Version, Resource: r.Plural}
}

// GR names the resource in errors.
func (r *Resource) GR() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Plural}
}
