package rest

import (
	"context"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"

	"github.com/skiff-k8s/skiff/apiserver/negotiate"
)

// timeLimit bounds every request that is not a watch, list, deletecollection or connection.
const timeLimit = 34 * time.Second

// call is one request to one resource.
type call struct {
	g    *Registry
	w    http.ResponseWriter
	req  *http.Request
	ctx  context.Context
	info *request.RequestInfo
	r    *resource
	user user.Info
	// namespace is empty for cluster-scoped resources, namespaces included.
	namespace, name string
	out             negotiate.Output
}

// ServeHTTP answers a resource request; its context holds request info and user.
func (g *Registry) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	ctx := req.Context()
	info, ok := request.RequestInfoFrom(ctx)
	if !ok || !info.IsResourceRequest {
		http.NotFound(w, req)
		return
	}
	t := g.table.Load()
	r := t.resources[schema.GroupVersionResource{Group: info.APIGroup, Version: info.APIVersion, Resource: info.Resource}]
	if r == nil {
		if t.versions[schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}] && !t.custom(info.APIGroup) {
			g.WriteError(w, req, noSuchPath())
			return
		}
		http.NotFound(w, req)
		return
	}
	u, _ := request.UserFrom(ctx)
	c := &call{g: g, w: w, req: req, ctx: ctx, info: info, r: r, user: u, name: info.Name}
	if r.Namespaced {
		c.namespace = info.Namespace
	}
	if r.Deprecated != "" {
		warning.AddWarning(ctx, "", r.Deprecated)
	}
	if err := c.serve(); err != nil {
		g.WriteError(w, req, err)
	}
}

// custom tells whether a group is made of custom resources.
func (t *routes) custom(group string) bool {
	for gr, rs := range t.groups {
		if gr.Group == group {
			return rs[0].custom
		}
	}
	return false
}

// serve routes by subresource, verb and shape of the path.
func (c *call) serve() error {
	info := c.info
	if err := c.checkPath(); err != nil {
		return err
	}
	if e := c.r.endpoints[info.Subresource]; e != nil {
		return c.endpoint(e)
	}
	if info.Subresource == "scale" && c.r.Scale != nil {
		return c.scale()
	}
	v := c.r.views[info.Subresource]
	if v == nil {
		return noSuchPath()
	}
	if c.req.Method == http.MethodHead && !c.r.custom {
		return methodNotAllowed()
	}
	if len(info.Parts) > 3 || (info.Subresource == "" && len(info.Parts) > 2) {
		return noSuchPath()
	}
	if f := c.g.Computed[c.r.gr]; f != nil && v.allows(info.Verb) {
		return c.computed(f)
	}
	if !v.allows(info.Verb) || c.r.StoragePath == "" {
		return methodNotAllowed()
	}
	switch info.Verb {
	case "list", "watch":
		return c.list(v)
	case "deletecollection":
		return c.deleteCollection(v)
	}
	ctx, cancel := context.WithTimeout(c.ctx, timeLimit)
	defer cancel()
	c.ctx = ctx
	switch info.Verb {
	case "get":
		return c.get(v)
	case "create":
		return c.create(v)
	case "update":
		return c.update(v)
	case "patch":
		return c.patch(v)
	case "delete":
		return c.delete(v)
	}
	return methodNotAllowed()
}

// checkPath refuses paths and methods that no route of upstream's has.
func (c *call) checkPath() error {
	info := c.info
	isNamespace := c.r.gr == schema.GroupResource{Resource: "namespaces"}
	if !c.r.Namespaced && !isNamespace && info.Namespace != "" {
		return noSuchPath()
	}
	onItem := len(info.Parts) > 1
	if c.r.Namespaced && info.Namespace == "" {
		switch {
		case onItem, c.r.StoragePath == "" && c.g.Computed[c.r.gr] == nil:
			return noSuchPath()
		case info.Verb == "create" || info.Verb == "deletecollection":
			return methodNotAllowed()
		}
	}
	switch info.Verb {
	case "create":
		if onItem && info.Subresource == "" {
			return methodNotAllowed()
		}
	case "update", "patch":
		if !onItem {
			return methodNotAllowed()
		}
	}
	return nil
}

func noSuchPath() error {
	return apierrors.NewGenericServerResponse(http.StatusNotFound, "", schema.GroupResource{}, "", "404: Page Not Found", 0, false)
}

func methodNotAllowed() error {
	return apierrors.NewGenericServerResponse(http.StatusMethodNotAllowed, "", schema.GroupResource{}, "", "405: Method Not Allowed", 0, false)
}

// negotiate sets the form of the answer.
func (c *call) negotiate() (err error) {
	if err := c.produces(); err != nil {
		return err
	}
	c.out, err = negotiate.Accept(c.req, negotiate.Allow{NoProtobuf: c.r.custom, Transforms: true})
	return err
}
