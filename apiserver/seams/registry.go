package seams

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/skiff-k8s/skiff/api"
)

// Served is a resource in one version as the server serves it. Built-in resources
// need nothing but Resource; CustomResourceDefinitions fill in what Go types give the others.
type Served struct {
	*api.Resource

	// Storage is the cacher.Set key; empty: group/plural.
	Storage string
	// FromStored and ToStored convert between the cached object and this version. They
	// never change their argument. nil: the cached kind is this kind.
	FromStored, ToStored func(obj runtime.Object) (runtime.Object, error)

	// StoredKind is the kind that is stored where that is another resource's; discovery tells by it
	// when the stored form changes.
	StoredKind schema.GroupVersionKind

	// Prune drops fields the schema does not know from a decoded custom object, in
	// place, and returns their paths ("spec.foo", "spec.list[0].bar") for fieldValidation. nil: nothing.
	Prune func(obj runtime.Object) (unknown []string)
	// Types serves server-side apply; nil: the built-in schema, or deduced.
	Types managedfields.TypeConverter
	// OpenAPI gives the kind's schema for /openapi (called lazily, once per change); nil: built-in.
	OpenAPI func() *spec.Schema
	// Deprecated: every request gets this Warning; empty: none.
	Deprecated string
	// Unavailable, if set, is asked on each create (a CRD that is terminating
	// refuses with 405) and returns the error to answer.
	Unavailable func() error
}

// Custom tells whether the resource is defined by users.
func (s *Served) Custom() bool { return s.OpenAPI != nil }

// Registry adds and removes resources at run time: routing, discovery and OpenAPI
// follow at once. Safe for concurrent use.
type Registry interface {
	// Replace sets what is served for a group and plural to exactly these versions
	// (none: removed; running watches of what is gone end).
	Replace(gr schema.GroupResource, versions ...*Served) error
	// Served returns the current versions of a resource, most preferred first.
	Served(gr schema.GroupResource) []*Served
	// Changed returns a channel that is closed at the next change.
	Changed() <-chan struct{}
}
