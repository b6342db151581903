package streams

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// logQuery checks the query of a log request and turns it into the kubelet's.
func logQuery(q url.Values) (kubelet url.Values, errs field.ErrorList, err error) {
	out := url.Values{}
	for _, k := range []string{"follow", "previous", "timestamps"} {
		if boolean(q, k) {
			out.Set(k, "true")
		}
	}
	number := func(k string, least int64, text string) error {
		if !q.Has(k) || q.Get(k) == "" {
			return nil
		}
		n, err := strconv.ParseInt(q.Get(k), 10, 64)
		if err != nil {
			return apierrors.NewBadRequest(err.Error())
		}
		if n < least {
			errs = append(errs, field.Invalid(field.NewPath(k), n, text))
		}
		out.Set(k, strconv.FormatInt(n, 10))
		return nil
	}
	if err := number("tailLines", 0, "must be greater than or equal to 0"); err != nil {
		return nil, nil, err
	}
	if err := number("limitBytes", 1, "must be greater than 0"); err != nil {
		return nil, nil, err
	}
	if q.Get("sinceTime") != "" && q.Get("sinceSeconds") != "" {
		errs = append(errs, field.Forbidden(field.NewPath(""), "at most one of `sinceTime` or `sinceSeconds` may be specified"))
	} else if err := number("sinceSeconds", 1, "must be greater than 0"); err != nil {
		return nil, nil, err
	}
	if s := q.Get("sinceTime"); s != "" {
		t, err := time.Parse(time.RFC3339, s)
		if err != nil {
			return nil, nil, apierrors.NewBadRequest(err.Error())
		}
		out.Set("sinceTime", t.Format(time.RFC3339))
	}
	stream := q.Get("stream")
	switch stream {
	case "":
		stream = corev1.LogStreamAll
	case corev1.LogStreamAll, corev1.LogStreamStdout, corev1.LogStreamStderr:
	default:
		errs = append(errs, field.NotSupported(field.NewPath("stream"), stream, []string{corev1.LogStreamAll, corev1.LogStreamStderr, corev1.LogStreamStdout}))
	}
	if stream != corev1.LogStreamAll && q.Get("tailLines") != "" {
		errs = append(errs, field.Forbidden(field.NewPath(""), "`tailLines` and specific `stream` are mutually exclusive for now"))
	}
	out.Set("stream", stream)
	return out, errs, nil
}

// boolean reads a flag as apimachinery does: there is true but for "false" and "0".
func boolean(q url.Values, k string) bool {
	if !q.Has(k) {
		return false
	}
	v := q.Get(k)
	return v != "false" && v != "0"
}

// log serves pods/log.
func (s *Streams) log(w http.ResponseWriter, req *http.Request, r *seams.ConnectRequest) {
	q := req.URL.Query()
	query, errs, err := logQuery(q)
	if err == nil && len(errs) > 0 {
		err = apierrors.NewInvalid(schema.GroupKind{Kind: "PodLogOptions"}, r.Name, errs)
	}
	if err != nil {
		r.Fail(err)
		return
	}
	p, err := s.pod(req.Context(), r, r.Name)
	if err != nil {
		r.Fail(err)
		return
	}
	c, err := container(p, q.Get("container"))
	if err != nil {
		r.Fail(err)
		return
	}
	if p.Spec.NodeName == "" { // not scheduled yet: nothing to tell
		w.WriteHeader(http.StatusNoContent)
		return
	}
	u, err := s.kubelet(req.Context(), r, p.Spec.NodeName)
	if err != nil {
		r.Fail(err)
		return
	}
	u.Path = fmt.Sprintf("/containerLogs/%s/%s/%s", p.Namespace, p.Name, c)
	u.RawQuery = query.Encode()
	t := s.kubelets
	if boolean(q, "insecureSkipTLSVerifyBackend") {
		t = s.insecure
	}
	s.stream(w, req, r, t, u)
}

// maxErrorText bounds what is read of a kubelet's error.
const maxErrorText = 50000

// stream copies a kubelet's answer as it comes.
func (s *Streams) stream(w http.ResponseWriter, req *http.Request, r *seams.ConnectRequest, t *http.Transport, u *url.URL) {
	get, err := http.NewRequestWithContext(req.Context(), http.MethodGet, u.String(), nil)
	if err != nil {
		r.Fail(apierrors.NewInternalError(err))
		return
	}
	resp, err := t.RoundTrip(get)
	if err != nil {
		r.Fail(apierrors.NewInternalError(err))
		return
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > http.StatusPartialContent {
		text, err := io.ReadAll(io.LimitReader(resp.Body, maxErrorText))
		switch {
		case err != nil:
			r.Fail(apierrors.NewInternalError(err))
		case resp.StatusCode == http.StatusInternalServerError:
			r.Fail(apierrors.NewInternalError(fmt.Errorf("%s", text)))
		case resp.StatusCode == http.StatusBadRequest:
			r.Fail(apierrors.NewBadRequest(string(text)))
		default:
			r.Fail(apierrors.NewGenericServerResponse(resp.StatusCode, "", schema.GroupResource{Resource: "pods/log"}, r.Name, string(text), 0, false))
		}
		return
	}
	if wsstream.IsWebSocketRequest(req) {
		reader := wsstream.NewReader(resp.Body, true, wsstream.NewDefaultReaderProtocols())
		if err := reader.Copy(w, req); err != nil {
			s.c.Logger.Debug("log over websocket ended", "err", err)
		}
		return
	}
	w.Header().Set("Content-Type", "text/plain")
	w.WriteHeader(http.StatusOK)
	flusher, _ := w.(http.Flusher)
	buf := make([]byte, 32<<10)
	for {
		n, err := resp.Body.Read(buf)
		if n > 0 {
			if _, werr := w.Write(buf[:n]); werr != nil {
				return // the client went away
			}
			if flusher != nil {
				flusher.Flush()
			}
		}
		if err != nil {
			return
		}
	}
}
