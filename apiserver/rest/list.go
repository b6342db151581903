package rest

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	internalvalidation "k8s.io/apimachinery/pkg/apis/meta/internalversion/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/apiserver/audit"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/negotiate"
)

// get answers with one object.
func (c *call) get(v *view) error {
	if err := c.negotiate(); err != nil {
		return err
	}
	opts := &metav1.GetOptions{}
	if q := c.req.URL.RawQuery; q != "" {
		if err := metainternal.ParameterCodec.DecodeParameters(c.req.URL.Query(), metav1.SchemeGroupVersion, opts); err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
	}
	cache, err := c.r.cache()
	if err != nil {
		return err
	}
	o, err := cache.Get(c.ctx, c.namespace, c.name, opts.ResourceVersion)
	if err != nil {
		return err
	}
	return c.stored(http.StatusOK, o)
}

// list answers with a list, or a watch where that is asked for.
func (c *call) list(v *view) error {
	if err := c.negotiate(); err != nil {
		return err
	}
	opts, err := c.listOptions()
	if err != nil {
		return err
	}
	if opts.Watch || c.info.Verb == "watch" {
		if !v.allows("watch") {
			return apierrors.NewMethodNotSupported(c.r.gr, "watch")
		}
		return c.watch(opts)
	}
	cache, err := c.r.cache()
	if err != nil {
		return err
	}
	list, err := cache.List(c.ctx, cacher.ListOptions{
		Selection:            c.selection(opts),
		ResourceVersion:      opts.ResourceVersion,
		ResourceVersionMatch: opts.ResourceVersionMatch,
		Limit:                opts.Limit,
		Continue:             opts.Continue,
	})
	if err != nil {
		return err
	}
	return c.writeList(list)
}

// listOptions decodes and checks the query of a list, watch or deletecollection.
func (c *call) listOptions() (*internalversion.ListOptions, error) {
	opts := &internalversion.ListOptions{}
	if c.req.URL.RawQuery != "" {
		if err := metainternal.ParameterCodec.DecodeParameters(c.req.URL.Query(), metav1.SchemeGroupVersion, opts); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	internalversion.SetListOptionsDefaults(opts, true)
	if errs := internalvalidation.ValidateListOptions(opts, true); len(errs) > 0 {
		return nil, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "ListOptions"}, "", errs)
	}
	if opts.FieldSelector != nil && !opts.FieldSelector.Empty() {
		var err error
		if opts.FieldSelector, err = opts.FieldSelector.Transform(c.r.fieldLabel); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
	}
	// A name in the path or in the selector must be the same one.
	if c.name != "" {
		if opts.FieldSelector != nil && !opts.FieldSelector.Empty() {
			if name, ok := opts.FieldSelector.RequiresExactMatch("metadata.name"); !ok || name != c.name {
				return nil, apierrors.NewBadRequest("fieldSelector metadata.name doesn't match requested name")
			}
		} else {
			opts.FieldSelector = fields.OneTermEqualSelector("metadata.name", c.name)
		}
	}
	return opts, nil
}

// fieldLabel admits the selectable fields.
func (r *resource) fieldLabel(label, value string) (string, string, error) {
	switch {
	case r.FieldAliases[label] != "":
		return r.FieldAliases[label], value, nil
	case label == "metadata.name",
		label == "metadata.namespace" && (r.Namespaced || len(r.FieldLabels) == 0),
		slices.Contains(r.FieldLabels, label):
		return label, value, nil
	case len(r.FieldLabels) == 0:
		return "", "", fmt.Errorf("%q is not a known field selector: only %q, %q", label, "metadata.name", "metadata.namespace")
	}
	return "", "", fmt.Errorf("field label not supported: %s", label)
}

// selection narrows to what path and selectors name.
func (c *call) selection(o *internalversion.ListOptions) cacher.Selection {
	s := cacher.Selection{Namespace: c.namespace, Labels: o.LabelSelector, Fields: o.FieldSelector}
	if o.FieldSelector != nil {
		if name, ok := o.FieldSelector.RequiresExactMatch("metadata.name"); ok {
			s.Name = name
		}
		if ns, ok := o.FieldSelector.RequiresExactMatch("metadata.namespace"); ok && c.r.Namespaced && s.Namespace == "" {
			s.Namespace = ns
		}
	}
	return s
}

func listMeta(l *cacher.List) metav1.ListMeta {
	return metav1.ListMeta{ResourceVersion: strconv.FormatInt(l.Revision, 10), Continue: l.Continue, RemainingItemCount: l.Remaining}
}

// writeList assembles a list from the items' cached encodings.
func (c *call) writeList(l *cacher.List) error {
	if c.out.As != nil {
		objs, err := c.r.seenAll(l.Items)
		if err != nil {
			return err
		}
		obj, err := c.transform(objs, l, listMeta(l))
		if err != nil {
			return err
		}
		return c.encode(http.StatusOK, obj)
	}
	items := make([][]byte, 0, len(l.Items))
	for _, o := range l.Items {
		b, err := c.item(o)
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("encoding %s %s/%s: %w", c.r.gr, o.Meta().GetNamespace(), o.Meta().GetName(), err))
		}
		items = append(items, b)
	}
	kind := c.r.gvk.GroupVersion().WithKind(c.r.listKind())
	if err := c.auditList(kind, l); err != nil {
		return apierrors.NewInternalError(err)
	}
	if c.out.Media == negotiate.Protobuf {
		parts, err := protoList(kind, listMeta(l), items)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		c.write(http.StatusOK, parts...)
		return nil
	}
	parts, err := jsonList(kind, listMeta(l), items, c.r.custom)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if c.out.Media == negotiate.JSON && !c.out.Pretty {
		c.write(http.StatusOK, append(parts, newline)...)
		return nil
	}
	return c.writeJSON(http.StatusOK, concat(parts...))
}

// auditList records the list where whole answers are recorded, as JSON whatever the
// client gets.
func (c *call) auditList(kind schema.GroupVersionKind, l *cacher.List) error {
	wanted, omit := audit.WantsResponse(c.ctx)
	if !wanted {
		return nil
	}
	items := make([][]byte, 0, len(l.Items))
	for _, o := range l.Items {
		obj, err := c.r.seen(o)
		if err != nil {
			return err
		}
		if omit {
			obj = audit.WithoutManagedFields(obj)
		}
		b, err := marshal(obj)
		if err != nil {
			return err
		}
		items = append(items, c.bare(b))
	}
	parts, err := jsonList(kind, listMeta(l), items, c.r.custom)
	if err != nil {
		return err
	}
	audit.ResponseJSON(c.ctx, concat(parts...))
	return nil
}

// item is the encoding of a list's item, JSON without its opening brace: built-in kinds
// carry no kind and apiVersion there.
func (c *call) item(o cacher.Object) ([]byte, error) {
	if c.r.FromStored != nil {
		obj, err := c.r.seen(o)
		if err != nil {
			return nil, err
		}
		if c.out.Media == negotiate.Protobuf {
			return rawProto(obj)
		}
		b, err := marshal(obj)
		if err != nil {
			return nil, err
		}
		return c.bare(b), nil
	}
	if c.out.Media == negotiate.Protobuf {
		return o.RawProto()
	}
	b, err := o.JSON()
	if err != nil {
		return nil, err
	}
	return c.bare(b), nil
}

// bare is an encoded object from behind its opening brace, and for built-in kinds
// behind kind and apiVersion, which they encode first.
func (c *call) bare(b []byte) []byte {
	if c.r.custom {
		return b[1:]
	}
	if rest, ok := bytes.CutPrefix(b, c.r.prefix); ok {
		return rest
	}
	return b[1:]
}

func (r *resource) seenAll(items []cacher.Object) ([]runtime.Object, error) {
	objs := make([]runtime.Object, len(items))
	for i, o := range items {
		obj, err := r.seen(o)
		if err != nil {
			return nil, err
		}
		objs[i] = obj
	}
	return objs, nil
}
