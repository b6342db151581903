package rest

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternal "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/skiff-k8s/skiff/apiserver/audit"
	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/negotiate"
	"github.com/skiff-k8s/skiff/apiserver/table"
)

// gzipFrom is the size of answer from which a client's Accept-Encoding: gzip is honoured.
const gzipFrom = 128 << 10

var gzips = sync.Pool{New: func() any {
	w, _ := gzip.NewWriterLevel(nil, 1) // 1 is a valid level
	return w
}}

// stored answers with a stored object, from its cached encoding where there is one.
func (c *call) stored(code int, o cacher.Object) error {
	if c.out.As == nil && c.r.FromStored == nil {
		if err := c.auditStored(o); err != nil {
			return err
		}
		if c.out.Media == negotiate.Protobuf {
			b, err := o.Proto()
			if err != nil {
				return apierrors.NewInternalError(err)
			}
			c.write(code, b)
			return nil
		}
		b, err := o.JSON()
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		return c.writeJSON(code, b)
	}
	obj, err := c.r.seen(o)
	if err != nil {
		return err
	}
	return c.object(code, obj)
}

// auditStored records the answer where whole answers are recorded.
func (c *call) auditStored(o cacher.Object) error {
	wanted, omit := audit.WantsResponse(c.ctx)
	switch {
	case !wanted:
	case omit:
		obj, err := c.r.seen(o)
		if err != nil {
			return err
		}
		audit.Response(c.ctx, obj)
	default:
		b, err := o.JSON()
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		audit.ResponseJSON(c.ctx, b)
	}
	return nil
}

// object answers with any object whose TypeMeta is set.
func (c *call) object(code int, obj runtime.Object) error {
	if _, isStatus := obj.(*metav1.Status); !isStatus && c.out.As != nil {
		var err error
		if obj, err = c.transform([]runtime.Object{obj}, nil, metav1.ListMeta{ResourceVersion: accessor(obj).GetResourceVersion()}); err != nil {
			return err
		}
	}
	return c.encode(code, obj)
}

func (c *call) encode(code int, obj runtime.Object) error {
	audit.Response(c.ctx, obj)
	b, err := c.g.codecs.Encode(obj, c.out)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	c.write(code, b)
	return nil
}

// transform makes the Table or metadata form. list is nil for a single object.
func (c *call) transform(objs []runtime.Object, list *cacher.List, lm metav1.ListMeta) (runtime.Object, error) {
	as := c.out.As
	switch as.Kind {
	case "Table":
		o, err := tableOptions(c.req)
		if err != nil {
			return nil, err
		}
		o.Version, o.Now = as.Version, c.g.Clock.Now()
		return table.New(c.r.Resource, objs, lm, o)
	case "PartialObjectMetadataList":
		if list == nil {
			return nil, negotiate.NotAcceptableText("you requested PartialObjectMetadataList, but the requested object is not a list (" + c.r.Kind + ")")
		}
		return table.MetadataList(objs, lm, as.Version)
	}
	if list != nil {
		return nil, negotiate.NotAcceptableText("you requested PartialObjectMetadata, but the requested object is a list (" + c.internalList() + ")")
	}
	return table.Metadata(objs[0], as.Version)
}

// internalList is upstream's name of the type that a list is while it is served.
func (c *call) internalList() string {
	if c.r.custom {
		return "*unstructured.UnstructuredList"
	}
	return "*" + internalName(c.r.Group, c.r.listKind())
}

func tableOptions(req *http.Request) (table.Options, error) {
	opts := &metav1.TableOptions{}
	if err := metainternal.ParameterCodec.DecodeParameters(req.URL.Query(), metav1.SchemeGroupVersion, opts); err != nil {
		return table.Options{}, apierrors.NewBadRequest(err.Error())
	}
	if errs := validation.ValidateTableOptions(opts); len(errs) > 0 {
		return table.Options{}, apierrors.NewBadRequest("Unable to convert to Table as requested: " + errs[0].Error())
	}
	return table.Options{Include: opts.IncludeObject, NoHeaders: opts.NoHeaders}, nil
}

// writeJSON writes compact JSON in the form asked for.
func (c *call) writeJSON(code int, b []byte) error {
	if c.out.Media == negotiate.JSON && !c.out.Pretty {
		c.write(code, b, newline)
		return nil
	}
	b, err := negotiate.FinishJSON(b, c.out)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	c.write(code, b)
	return nil
}

var newline = []byte("\n")

// write sends parts as one body, compressed if that is wanted and worth it.
func (c *call) write(code int, parts ...[]byte) {
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	h := c.w.Header()
	h.Set("Content-Type", c.out.Media.Type())
	if size > gzipFrom && acceptsGzip(c.req) {
		h.Set("Content-Encoding", "gzip")
		h.Add("Vary", "Accept-Encoding")
		c.w.WriteHeader(code)
		z := gzips.Get().(*gzip.Writer)
		z.Reset(c.w)
		_ = gather(z, parts) // it fails when the client went away
		_ = z.Close()
		gzips.Put(z)
		return
	}
	h.Set("Content-Length", strconv.Itoa(size))
	c.w.WriteHeader(code)
	_ = gather(c.w, parts) // it fails when the client went away
}

// chunk is what small parts are gathered into: net/http makes a frame of each write
// that its small buffer does not take.
const chunk = 64 << 10

var chunks = sync.Pool{New: func() any { b := make([]byte, 0, chunk); return &b }}

// gather writes parts in few and large writes.
func gather(w io.Writer, parts [][]byte) error {
	if len(parts) == 1 {
		_, err := w.Write(parts[0])
		return err
	}
	buf := chunks.Get().(*[]byte)
	defer func() { *buf = (*buf)[:0]; chunks.Put(buf) }()
	for _, p := range parts {
		if len(*buf)+len(p) <= chunk {
			*buf = append(*buf, p...)
			continue
		}
		if len(*buf) > 0 {
			if _, err := w.Write(*buf); err != nil {
				return err
			}
			*buf = (*buf)[:0]
		}
		if len(p) > chunk {
			if _, err := w.Write(p); err != nil {
				return err
			}
			continue
		}
		*buf = append(*buf, p...)
	}
	_, err := w.Write(*buf)
	return err
}

func acceptsGzip(req *http.Request) bool {
	for _, v := range req.Header.Values("Accept-Encoding") {
		for e := range strings.SplitSeq(v, ",") {
			if strings.TrimSpace(e) == "gzip" {
				return true
			}
		}
	}
	return false
}

// StatusOf is an error as the API shows it.
func StatusOf(err error) *metav1.Status {
	var s apierrors.APIStatus
	out := &metav1.Status{}
	if errors.As(err, &s) {
		*out = s.Status()
		if out.Status == "" {
			out.Status = metav1.StatusFailure
		}
		if out.Code == 0 {
			out.Code = http.StatusInternalServerError
			if out.Status == metav1.StatusSuccess {
				out.Code = http.StatusOK
			}
		}
	} else {
		*out = metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError,
			Reason: metav1.StatusReasonUnknown, Message: err.Error()}
	}
	out.Kind, out.APIVersion = "Status", "v1"
	return out
}

// WriteError answers with an error.
func (g *Registry) WriteError(w http.ResponseWriter, req *http.Request, err error) {
	s := StatusOf(err)
	audit.Response(req.Context(), s)
	if s.Code == http.StatusInternalServerError && req.Context().Err() == nil {
		g.Logger.Error("request failed", "method", req.Method, "path", req.URL.Path, "err", err)
	}
	if s.Details != nil && s.Details.RetryAfterSeconds > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(s.Details.RetryAfterSeconds)))
	}
	out, aerr := negotiate.Accept(req, negotiate.Allow{})
	if aerr != nil {
		out = negotiate.Output{Pretty: true}
	}
	b, eerr := g.codecs.Encode(s, out)
	if eerr != nil {
		http.Error(w, s.Message, int(s.Code))
		return
	}
	w.Header().Set("Content-Type", out.Media.Type())
	w.Header().Set("Content-Length", strconv.Itoa(len(b)))
	w.WriteHeader(int(s.Code))
	if _, err := w.Write(b); err != nil {
		g.Logger.Debug("client went away", "err", err)
	}
}

// concat joins without growing twice.
func concat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
