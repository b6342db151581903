package rest

import (
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/skiff-k8s/skiff/apiserver/negotiate"
)

// produces refuses requests that want none of the types that the route has, as upstream's
// router does for built-in resources, before it looks at what the types are asked to hold.
func (c *call) produces() error {
	accept := c.req.Header.Get("Accept")
	if c.r.custom || accept == "" {
		return nil
	}
	types := []string{negotiate.JSON.Type(), negotiate.YAML.Type(), negotiate.Protobuf.Type()}
	if c.info.Verb == "list" || c.info.Verb == "watch" {
		types = append(types, negotiate.JSON.Type()+";stream=watch", negotiate.Protobuf.Type()+";stream=watch")
	}
	for want := range strings.SplitSeq(accept, ",") {
		want, _, _ = strings.Cut(want, ";")
		if want = strings.TrimSpace(want); want == "*/*" || slices.Contains(types, want) {
			return nil
		}
	}
	return routeError(http.StatusNotAcceptable, "406: Not Acceptable\n\nAvailable representations: "+strings.Join(types, ", "))
}

// routeError is what upstream's router answers.
func routeError(code int, text string) error {
	return apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", text, 0, false)
}
