package rest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/warning"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// write is one create, update or delete of one object through one view.
type write struct {
	*view
	namespace, name string
	user            user.Info
	dryRun          bool
	// options are what admission sees.
	options runtime.Object
	// manager owns the fields that the write sets; empty: managed fields stay as they are.
	manager string
	// admission is nil for writes that the server makes itself.
	admission seams.Admission
	// mayCreate authorizes a create by update; nil: allowed.
	mayCreate func(ctx context.Context) error
}

// result is an object written: stored, or what would have been (dry run, deletes).
type result struct {
	stored  cacher.Object
	obj     runtime.Object
	created bool
	// gone: a delete removed the object, or an update did by emptying its finalizers.
	gone bool
}

// answer writes the result as the response.
func (c *call) answer(code int, r result) error {
	if r.stored != nil {
		return c.stored(code, r.stored)
	}
	return c.object(code, r.obj)
}

func (w *write) attributes(op seams.Operation, obj, old runtime.Object) *seams.Attributes {
	return &seams.Attributes{Operation: op, Resource: w.gvr, Subresource: w.sub, Kind: w.gvk,
		Namespace: w.admissionNamespace(obj), Name: w.name, Object: obj, OldObject: old, Options: w.options, User: w.user, DryRun: w.dryRun}
}

// admissionNamespace is, for namespaces, the namespace itself, as upstream's attributes have it.
func (w *write) admissionNamespace(obj runtime.Object) string {
	if w.gr.Group == "" && w.gr.Resource == "namespaces" {
		if w.name != "" {
			return w.name
		}
		if obj != nil {
			return accessor(obj).GetName()
		}
	}
	return w.namespace
}

func (w *write) admit(ctx context.Context, op seams.Operation, obj, old runtime.Object) error {
	if w.admission == nil {
		return nil
	}
	return w.admission.Admit(ctx, w.attributes(op, obj, old))
}

func (w *write) validate(ctx context.Context, op seams.Operation, obj, old runtime.Object) error {
	if w.admission == nil {
		return nil
	}
	return w.admission.Validate(ctx, w.attributes(op, obj, old))
}

// own records the manager of changed fields.
func (w *write) own(live, obj runtime.Object) (runtime.Object, error) {
	if w.manager == "" {
		return obj, nil
	}
	fm, err := w.fields()
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return fm.UpdateNoErrors(live, obj, w.manager), nil
}

// begin calls the hooks' Begin functions; the returned function ends them once.
func begin(hooks []*seams.Hooks, call func(*seams.Hooks) (seams.Finish, error)) (func(ctx context.Context, ok bool), error) {
	var open []seams.Finish
	finish := func(ctx context.Context, ok bool) {
		for i := len(open) - 1; i >= 0; i-- {
			open[i](ctx, ok)
		}
		open = nil
	}
	for _, h := range hooks {
		f, err := call(h)
		if err != nil {
			finish(context.Background(), false)
			return nil, err
		}
		if f != nil {
			open = append(open, f)
		}
	}
	return finish, nil
}

// ensureNamespace makes the object's namespace that of the request.
func ensureNamespace(namespace string, m metav1.Object) error {
	switch m.GetNamespace() {
	case namespace:
	case "":
		m.SetNamespace(namespace)
	default:
		if namespace == "" {
			m.SetNamespace("")
			return nil
		}
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	return nil
}

// dedupOwners drops repeated owner references, with a warning.
func dedupOwners(ctx context.Context, obj runtime.Object, afterAdmission bool) {
	m := accessor(obj)
	refs := m.GetOwnerReferences()
	if len(refs) < 2 {
		return
	}
	var kept []metav1.OwnerReference
	var dup []string
	for _, ref := range refs {
		again := false
		for _, k := range kept {
			if k.UID == ref.UID && equality.Semantic.DeepEqual(k, ref) {
				again = true
				break
			}
		}
		if again {
			dup = append(dup, string(ref.UID))
		} else {
			kept = append(kept, ref)
		}
	}
	if len(dup) == 0 {
		return
	}
	format := ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) found: %s"
	if afterAdmission {
		format = ".metadata.ownerReferences contains duplicate entries after mutating admission happens; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) found: %s"
	}
	warning.AddWarning(ctx, "", fmt.Sprintf(format, strings.Join(dup, ", ")))
	m.SetOwnerReferences(kept)
}

// manager is the field manager of a request: named, else the user agent's first word.
func manager(named, userAgent string) string {
	if named != "" {
		return named
	}
	first, _, _ := strings.Cut(userAgent, "/")
	var b strings.Builder
	for _, r := range first {
		if !unicode.IsPrint(r) {
			continue
		}
		if b.Len()+utf8.RuneLen(r) > 128 {
			break
		}
		b.WriteRune(r)
	}
	if b.Len() == 0 {
		return "unknown"
	}
	return b.String()
}

// body reads the request's body up to the limit.
func (c *call) body() ([]byte, error) {
	if c.req.Body == nil {
		return nil, nil
	}
	data, err := io.ReadAll(io.LimitReader(c.req.Body, c.g.MaxBody+1))
	if err != nil {
		var tooLarge *http.MaxBytesError
		if errors.As(err, &tooLarge) {
			return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", c.g.MaxBody))
		}
		return nil, apierrors.NewBadRequest(fmt.Sprintf("unable to read the request's body: %v", err))
	}
	if int64(len(data)) > c.g.MaxBody {
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d", c.g.MaxBody))
	}
	return data, nil
}

// newWrite is the write that this request makes.
func (c *call) newWrite(v *view, options runtime.Object, dryRun []string) *write {
	return &write{view: v, namespace: c.namespace, name: c.name, user: c.user, dryRun: len(dryRun) > 0, options: options, admission: c.g.Admission}
}

func equal(a, b any) bool { return equality.Semantic.DeepEqual(a, b) }

func uidPrecondition(uid types.UID) cacher.Preconditions {
	if uid == "" {
		return cacher.Preconditions{}
	}
	return cacher.Preconditions{UID: &uid}
}
