package seams

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Operation is what a request does to an object, as admission sees it.
type Operation string

const (
	Create  Operation = "CREATE"
	Update  Operation = "UPDATE"
	Delete  Operation = "DELETE"
	Connect Operation = "CONNECT"
)

// Attributes describe one write to admission. A patch or an apply is an Update, or a
// Create where it creates; deletecollection is one Delete per object.
type Attributes struct {
	Operation   Operation
	Resource    schema.GroupVersionResource
	Subresource string
	// Kind of Object (for pods/binding: Binding).
	Kind            schema.GroupVersionKind
	Namespace, Name string // Name may be empty on create with generateName
	// Object is the new object, private to this request: Admit may change it in place.
	// nil for Delete. For Connect the connect options (*corev1.PodExecOptions …).
	// It is *unstructured.Unstructured for custom resources.
	Object runtime.Object
	// OldObject is the stored object on Update and Delete. It is shared: never change it.
	OldObject runtime.Object
	// Options is *metav1.CreateOptions, *metav1.UpdateOptions (patches too) or
	// *metav1.DeleteOptions; nil for Connect.
	Options runtime.Object
	User    user.Info
	DryRun  bool
}

// Admission may change (Admit) and refuse (Validate) writes. Errors should be
// StatusErrors (apierrors.NewForbidden …); others become 500. Admit runs before
// Validate; both may run more than once for one request when a write is retried after
// a conflict, so they must be idempotent and keep no state of the request.
// Warnings for the client go through k8s.io/apiserver/pkg/warning.AddWarning.
type Admission interface {
	Admit(ctx context.Context, a *Attributes) error
	Validate(ctx context.Context, a *Attributes) error
}

// Chain runs several Admissions in order.
type Chain []Admission

// Admit stops at the first error.
func (c Chain) Admit(ctx context.Context, a *Attributes) error {
	for _, p := range c {
		if err := p.Admit(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// Validate stops at the first error.
func (c Chain) Validate(ctx context.Context, a *Attributes) error {
	for _, p := range c {
		if err := p.Validate(ctx, a); err != nil {
			return err
		}
	}
	return nil
}
