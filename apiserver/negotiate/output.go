// Package negotiate decides the media type of requests and responses and holds the
// codecs for them: JSON, YAML and Kubernetes protobuf.
//
// Owns: Accept and Content-Type, the "as=Table" style transforms, strict decoding.
// Must not: know resources' behaviour, write responses.
package negotiate

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/munnerz/goautoneg"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Media is an encoding.
type Media uint8

const (
	JSON Media = iota
	YAML
	Protobuf
)

// Type is the media type as in headers.
func (m Media) Type() string { return mediaTypes[m] }

var mediaTypes = [...]string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}

var all = []Media{JSON, YAML, Protobuf}

// Output is what the client wants to get.
type Output struct {
	Media  Media
	Pretty bool
	// As is the transform asked for (Table, PartialObjectMetadata …); nil: none.
	As *schema.GroupVersionKind
	// Profile is the discovery profile.
	Profile string
}

// Allow says what an endpoint can produce. The zero value allows the plain three.
type Allow struct {
	// NoProtobuf: the object itself (not its metadata) has no protobuf form.
	NoProtobuf bool
	// Transforms: Table and PartialObjectMetadata(List) are served.
	Transforms bool
}

const metaGroup = "meta.k8s.io"

func (a Allow) ok(m Media, as *schema.GroupVersionKind) bool {
	if as == nil {
		return m != Protobuf || !a.NoProtobuf
	}
	if !a.Transforms || as.Group != metaGroup || (as.Version != "v1" && as.Version != "v1beta1") {
		return false
	}
	switch as.Kind {
	case "Table":
		return m != Protobuf
	case "PartialObjectMetadata", "PartialObjectMetadataList":
		return true
	}
	return false
}

// Accept picks the response's form from the Accept header in the client's order of
// preference; a 406 error if nothing fits.
func Accept(req *http.Request, allow Allow) (Output, error) {
	out := Output{Pretty: pretty(req)}
	header := req.Header.Get("Accept")
	switch header {
	case "", "application/json", "*/*", "application/json, */*":
		return out, nil
	case "application/vnd.kubernetes.protobuf":
		if !allow.NoProtobuf {
			out.Media = Protobuf
			return out, nil
		}
	}
	for _, clause := range goautoneg.ParseAccept(header) {
		for _, m := range all {
			if !matches(clause, m) {
				continue
			}
			if o, ok := parameters(clause.Params, m, allow); ok {
				o.Pretty = o.Pretty || out.Pretty
				return o, nil
			}
		}
	}
	return out, NotAcceptable(supported(allow, ""))
}

func matches(c goautoneg.Accept, m Media) bool {
	if c.Type == "*" && c.SubType == "*" {
		return true
	}
	sub := strings.TrimPrefix(m.Type(), "application/")
	return c.Type == "application" && (c.SubType == "*" || c.SubType == sub)
}

// parameters reads the media type's parameters; false: not servable so.
func parameters(params map[string]string, m Media, allow Allow) (Output, bool) {
	o := Output{Media: m}
	var as schema.GroupVersionKind
	has := false
	for k, v := range params {
		switch k {
		case "as":
			as.Kind, has = v, true
		case "g":
			as.Group, has = v, true
		case "v":
			as.Version, has = v, true
		case "stream":
			if v != "" && v != "watch" {
				return o, false
			}
		case "sv":
			if v != "" && v != "v1" {
				return o, false
			}
		case "pretty":
			o.Pretty = v == "1"
		case "profile":
			o.Profile = v
		}
	}
	if has {
		o.As = &as
	}
	return o, allow.ok(m, o.As)
}

// pretty follows the query parameter, else guesses a human behind the user agent.
func pretty(req *http.Request) bool {
	if strings.Contains(req.URL.RawQuery, "pretty") {
		if v := req.URL.Query().Get("pretty"); v != "" {
			p, _ := strconv.ParseBool(v)
			return p
		}
	}
	ua := req.UserAgent()
	return strings.HasPrefix(ua, "curl") || strings.HasPrefix(ua, "Wget") || strings.HasPrefix(ua, "Mozilla/5.0")
}

func supported(allow Allow, suffix string) []string {
	var s []string
	for _, m := range all {
		if m == Protobuf && allow.NoProtobuf && !allow.Transforms {
			continue
		}
		s = append(s, m.Type()+suffix)
	}
	return s
}
