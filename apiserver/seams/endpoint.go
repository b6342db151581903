package seams

import (
	"context"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
)

// Endpoint is a resource or subresource with behaviour of its own. Exactly one of
// Create and Connect is set.
type Endpoint struct {
	// Resource and Subresource place it: {"", "pods"} + "binding";
	// {"authentication.k8s.io", "tokenreviews"} + "". Every version of the resource
	// gets it unless Version is set.
	Resource    schema.GroupResource
	Version     string
	Subresource string

	// Kind is what is posted and returned, as discovery shows it (for example
	// policy/v1 Eviction under core pods).
	Kind schema.GroupVersionKind
	// New returns an empty object to decode into.
	New func() runtime.Object
	// Owned: the object gets managed fields, for the answer.
	Owned bool
	// Default may be nil.
	Default func(obj runtime.Object)
	// Create handles POST: the generic code has decoded, defaulted and admitted the
	// object. What it returns is encoded with 201 (a *metav1.Status with its own code);
	// errors as metav1.Status.
	Create func(ctx context.Context, r *CreateRequest) (runtime.Object, error)

	// Connect handles every verb in Verbs by itself (streams, proxies); admission has
	// seen it as Connect with Options.
	Connect func(w http.ResponseWriter, req *http.Request, r *ConnectRequest)
	// Options decodes the query for admission; may be nil.
	Options func(req *http.Request) runtime.Object
	// Verbs as in discovery; nil: create for Create, get and create for Connect.
	Verbs []string
}

// CreateRequest is one POST to an Endpoint.
type CreateRequest struct {
	Resource        schema.GroupVersionResource
	Namespace, Name string // Name is that of the parent object for subresources
	// Object is private to the request.
	Object  runtime.Object
	Options *metav1.CreateOptions
	User    user.Info
	DryRun  bool
	Stores  Stores
}

// ConnectRequest is one request to a Connect endpoint.
type ConnectRequest struct {
	Resource        schema.GroupVersionResource
	Subresource     string
	Namespace, Name string
	// Path follows the subresource (proxy), with its leading slash; else empty.
	Path   string
	User   user.Info
	Stores Stores
	// Fail writes an error as metav1.Status.
	Fail func(err error)
}

// Stores gives access to stored resources with their generic behaviour.
type Stores interface {
	// Store returns the store of a served, stored resource.
	Store(gr schema.GroupResource) (Store, bool)
}

// Store reads and writes one resource with everything that its Strategy and Hooks
// say (validation, generation, finalizers, graceful deletion) but without
// authorization and admission, which the caller answers for.
type Store interface {
	Get(ctx context.Context, namespace, name, resourceVersion string) (cacher.Object, error)
	// Update retries on conflict unless change returns an error. change gets a private
	// deep copy of the current object and returns the next. subresource selects the strategy; "" is the
	// resource's own.
	Update(ctx context.Context, namespace, name, subresource string, dryRun bool,
		change func(obj runtime.Object) (runtime.Object, error)) (runtime.Object, error)
	// Delete returns the object and whether it is gone already (false: it waits for
	// finalizers or its grace period).
	Delete(ctx context.Context, namespace, name string, o *metav1.DeleteOptions) (obj runtime.Object, gone bool, err error)
}
