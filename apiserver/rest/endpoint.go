package rest

import (
	"context"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/apiserver/audit"
	"github.com/skiff-k8s/skiff/apiserver/negotiate"
	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// endpoint serves a resource or subresource with behaviour of its own.
func (c *call) endpoint(e *seams.Endpoint) error {
	if e.Connect != nil {
		return c.connect(e)
	}
	if c.info.Verb != "create" {
		return methodNotAllowed()
	}
	return c.post(e)
}

// verbs of an endpoint as discovery shows them.
func Verbs(e *seams.Endpoint) []string {
	switch {
	case e.Verbs != nil:
		return e.Verbs
	case e.Connect != nil:
		return []string{"create", "get"}
	}
	return []string{"create"}
}

func (c *call) post(e *seams.Endpoint) error {
	ctx, cancel := context.WithTimeout(c.ctx, timeLimit)
	defer cancel()
	c.ctx = ctx
	out, err := negotiate.Accept(c.req, negotiate.Allow{})
	if err != nil {
		return err
	}
	c.out = out
	opts, err := c.createOptions()
	if err != nil {
		return err
	}
	obj, err := c.decodeEndpoint(e, opts.FieldValidation)
	if err != nil {
		return err
	}
	if m, ok := obj.(metav1.Object); ok {
		if c.r.Namespaced || c.info.Subresource == "" {
			if err := ensureNamespace(c.namespace, m); err != nil {
				return err
			}
		}
	}
	if e.Owned {
		fm, err := c.g.fieldsOf(e.Kind, c.info.Subresource, e.New)
		if err != nil {
			return err
		}
		empty := e.New()
		empty.GetObjectKind().SetGroupVersionKind(e.Kind)
		obj = fm.UpdateNoErrors(empty, obj, manager(opts.FieldManager, c.req.UserAgent()))
	}
	if a := c.g.Admission; a != nil {
		at := &seams.Attributes{Operation: seams.Create, Resource: c.r.gvr, Subresource: c.info.Subresource, Kind: e.Kind,
			Namespace: c.info.Namespace, Name: c.name, Object: obj, Options: opts, User: c.user, DryRun: len(opts.DryRun) > 0}
		if err := a.Admit(ctx, at); err != nil {
			return err
		}
		if err := a.Validate(ctx, at); err != nil {
			return err
		}
	}
	res, err := e.Create(ctx, &seams.CreateRequest{Resource: c.r.gvr, Namespace: c.namespace, Name: c.name,
		Object: obj, Options: opts, User: c.user, DryRun: len(opts.DryRun) > 0, Stores: c.g})
	if err != nil {
		return err
	}
	code := http.StatusCreated
	if s, ok := res.(*metav1.Status); ok {
		s.Kind, s.APIVersion = "Status", "v1"
		if s.Code == 0 {
			s.Code = int32(code)
		}
		code = int(s.Code)
	} else if res.GetObjectKind().GroupVersionKind().Empty() {
		res.GetObjectKind().SetGroupVersionKind(e.Kind)
	}
	return c.encode(code, res)
}

// decodeEndpoint reads what is posted. An Eviction may come in another version of its group.
func (c *call) decodeEndpoint(e *seams.Endpoint, directive string) (runtime.Object, error) {
	data, media, err := c.input(false)
	if err != nil {
		return nil, err
	}
	kind := e.Kind
	obj, gvk, err := c.g.codecs.Decode(media, strict(directive), data, &kind, e.New())
	if err != nil {
		s, isStrict := runtime.AsStrictDecodingError(err)
		if !isStrict || obj == nil || directive == metav1.FieldValidationStrict {
			return nil, decodeError(err, gvk, kind.Kind, data)
		}
		warnStrict(c.ctx, s.Errors())
	}
	if gvk.GroupKind() != kind.GroupKind() {
		return nil, apierrors.NewBadRequest("the API version in the data (" + gvk.GroupVersion().String() +
			") does not match the expected API version (" + kind.GroupVersion().String() + ")")
	}
	if e.Default != nil {
		e.Default(obj)
	}
	obj.GetObjectKind().SetGroupVersionKind(*gvk)
	audit.RequestObject(c.ctx, obj)
	return obj, nil
}

func (c *call) connect(e *seams.Endpoint) error {
	// OPTIONS has no verb of its own: proxies, which take all methods, take it too.
	proxiesAll := c.req.Method == http.MethodOptions && slices.Contains(Verbs(e), "delete")
	if !slices.Contains(Verbs(e), c.info.Verb) && !proxiesAll {
		return methodNotAllowed()
	}
	if len(c.req.URL.Query()["dryRun"]) > 0 {
		return apierrors.NewBadRequest("dryRun is not supported")
	}
	if a := c.g.Admission; a != nil {
		var opts runtime.Object
		if e.Options != nil {
			opts = e.Options(c.req)
		}
		at := &seams.Attributes{Operation: seams.Connect, Resource: c.r.gvr, Subresource: c.info.Subresource, Kind: e.Kind,
			Namespace: c.info.Namespace, Name: c.name, Object: opts, User: c.user}
		if err := a.Admit(c.ctx, at); err != nil {
			return err
		}
		if err := a.Validate(c.ctx, at); err != nil {
			return err
		}
	}
	e.Connect(c.w, c.req, &seams.ConnectRequest{Resource: c.r.gvr, Subresource: c.info.Subresource,
		Namespace: c.namespace, Name: c.name, Path: c.rest(), User: c.user, Stores: c.g,
		Fail: func(err error) { c.g.WriteError(c.w, c.req, err) }})
	return nil
}

// rest is the path behind the subresource, as it came, with its slashes.
func (c *call) rest() string {
	if len(c.info.Parts) <= 3 {
		if strings.HasSuffix(c.req.URL.Path, "/") {
			return "/"
		}
		return ""
	}
	p := "/" + strings.Join(c.info.Parts[3:], "/")
	if strings.HasSuffix(c.req.URL.Path, "/") && !strings.HasSuffix(p, "/") {
		p += "/"
	}
	return p
}
