package audit

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/apis/audit"
	upstream "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// record is what is known of one request. It is the sink of the request's annotation
// context, which thereby hands over the event at each stage, and the response's writer,
// which learns the status. All of it is one allocation: at Metadata level that, the
// annotation context and the annotations are what auditing costs.
type record struct {
	auditor *Auditor
	context *upstream.AuditContext

	level             audit.Level
	omitStages        []audit.Stage
	omitManagedFields bool

	req      *http.Request
	user     user.Info
	received time.Time
	started  bool // the fields of the event that never change are set
	ref      audit.ObjectReference
	ips      [1]string

	as         user.Info
	constraint string

	code     int
	status   *metav1.Status
	answer   metav1.Status
	request  *runtime.Unknown
	response *runtime.Unknown

	http.ResponseWriter
	long bool // ResponseStarted is a stage of its own
}

type recordKey struct{}

func recordOf(ctx context.Context) *record {
	r, _ := ctx.Value(recordKey{}).(*record)
	return r
}

// Begin prepares a request's context for being audited: from here on annotations are kept.
func (a *Auditor) Begin(ctx context.Context, id string) context.Context {
	ctx = upstream.WithAuditContext(ctx)
	upstream.WithAuditID(ctx, types.UID(id))
	return context.WithValue(ctx, recordKey{}, &record{auditor: a, context: upstream.AuditContextFrom(ctx), received: a.clock.Now()})
}

// init finds out by the policy how the request is recorded; false: not at all.
func (r *record) init(req *http.Request) bool {
	ctx := req.Context()
	a := &authorizer.AttributesRecord{}
	if u, ok := request.UserFrom(ctx); ok {
		a.User, r.user = u, u
	}
	if info, ok := request.RequestInfoFrom(ctx); ok {
		a.ResourceRequest, a.Path, a.Verb = info.IsResourceRequest, info.Path, info.Verb
		a.APIGroup, a.APIVersion, a.Resource, a.Subresource = info.APIGroup, info.APIVersion, info.Resource, info.Subresource
		a.Namespace, a.Name = info.Namespace, info.Name
	}
	c := r.auditor.rules.EvaluatePolicyRule(a)
	r.level, r.omitStages, r.omitManagedFields, r.req = c.Level, c.OmitStages, c.OmitManagedFields, req
	// The stages to omit are the record's business, so that it sees the first in any case.
	if err := r.context.Init(upstream.RequestAuditConfig{Level: c.Level}, r); err != nil {
		return false
	}
	return r.level != audit.LevelNone
}

// emit records a stage; false: it could not be.
func (r *record) emit(stage audit.Stage) bool {
	if slices.Contains(r.omitStages, stage) {
		return true
	}
	return r.context.ProcessEventStage(r.req.Context(), stage)
}

// ProcessEvents implements audit.Sink. The annotation context holds its lock meanwhile.
func (r *record) ProcessEvents(events ...*audit.Event) bool {
	ok := true
	for _, ev := range events {
		r.fill(ev)
		var extra, as map[string][]string
		if r.user != nil {
			extra = r.user.GetExtra()
		}
		if r.as != nil {
			as = r.as.GetExtra()
		}
		ok = r.auditor.put(ev, extra, as) && ok
	}
	return ok
}

// fill completes the event with what the record knows, but for the extra fields of
// users, which are encoded from where they are.
func (r *record) fill(ev *audit.Event) {
	if !r.started {
		r.started = true
		ev.RequestReceivedTimestamp = metav1.NewMicroTime(r.received)
		ev.RequestURI = r.req.URL.RequestURI()
		ev.UserAgent = userAgent(r.req)
		ev.SourceIPs = r.sourceIPs()
		if u := r.user; u != nil {
			ev.User.Username, ev.User.UID, ev.User.Groups = u.GetName(), u.GetUID(), u.GetGroups()
		}
		if info, ok := request.RequestInfoFrom(r.req.Context()); ok {
			ev.Verb = info.Verb
			if info.IsResourceRequest {
				r.ref.Resource, r.ref.Subresource = info.Resource, info.Subresource
				r.ref.APIGroup, r.ref.APIVersion = info.APIGroup, info.APIVersion
				// The object's own name and namespace were taken from the body if the path lacks them.
				if info.Name != "" {
					r.ref.Name = info.Name
				}
				if info.Namespace != "" {
					r.ref.Namespace = info.Namespace
				}
				ev.ObjectRef = &r.ref
			}
		}
	}
	if ev.Stage == audit.StageRequestReceived {
		ev.StageTimestamp = ev.RequestReceivedTimestamp
	} else {
		ev.StageTimestamp = metav1.NewMicroTime(r.auditor.clock.Now())
	}
	if r.as != nil {
		ev.ImpersonatedUser = &authenticationv1.UserInfo{Username: r.as.GetName(), UID: r.as.GetUID(), Groups: r.as.GetGroups()}
		if r.constraint != "" {
			ev.AuthenticationMetadata = &audit.AuthenticationMetadata{ImpersonationConstraint: r.constraint}
		}
	}
	ev.RequestObject, ev.ResponseObject = r.request, r.response
	if r.status != nil {
		ev.ResponseStatus = r.status
	}
}

// maxUserAgent bounds what clients can make the server write.
const maxUserAgent = 1024

func userAgent(req *http.Request) string {
	ua := req.UserAgent()
	if len(ua) > maxUserAgent {
		ua = ua[:maxUserAgent] + "...TRUNCATED"
	}
	return ua
}

// sourceIPs are the client's address and what proxies say stood before it.
func (r *record) sourceIPs() []string {
	h := r.req.Header
	if h["X-Forwarded-For"] == nil && h["X-Real-Ip"] == nil {
		if host, _, err := net.SplitHostPort(r.req.RemoteAddr); err == nil {
			if ip, err := netip.ParseAddr(host); err == nil && !ip.Is4In6() && ip.Zone() == "" {
				r.ips[0] = host
				return r.ips[:]
			}
		}
	}
	var out []string
	for _, ip := range utilnet.SourceIPs(r.req) {
		out = append(out, ip.String())
	}
	return out
}

// Wrap records what passes through next. longRunning requests have a stage of their own
// for the beginning of their answer; refuse answers 500 where the record is not kept.
func (a *Auditor) Wrap(next http.Handler, longRunning func(*http.Request, *request.RequestInfo) bool, refuse func(http.ResponseWriter, *http.Request, error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		r := recordOf(req.Context())
		if r == nil || !r.init(req) {
			next.ServeHTTP(w, req)
			return
		}
		if !r.emit(audit.StageRequestReceived) {
			a.rejected.Add(1)
			refuse(w, req, errNotKept)
			return
		}
		info, _ := request.RequestInfoFrom(req.Context())
		r.ResponseWriter, r.long = w, info != nil && longRunning(req, info)
		defer r.end()
		next.ServeHTTP(r, req)
	})
}

var errNotKept = fmt.Errorf("failed to store audit event")

// end records the last stage. A panic goes on.
func (r *record) end() {
	if p := recover(); p != nil {
		r.status = &metav1.Status{Code: http.StatusInternalServerError, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonInternalError, Message: fmt.Sprintf("APIServer panic'd: %v", p)}
		r.emit(audit.StagePanic)
		panic(p)
	}
	if r.status == nil {
		r.status = &metav1.Status{Code: http.StatusOK, Status: metav1.StatusSuccess, Message: "Connection closed early"}
		if r.long {
			r.emit(audit.StageResponseStarted)
		}
	}
	if d := r.auditor.clock.Since(r.received); d > slow {
		upstream.AddAuditAnnotation(r.req.Context(), "apiserver.latency.k8s.io/total", d.String())
	}
	r.emit(audit.StageResponseComplete)
}

// slow is from when on a request's duration is worth an annotation.
const slow = 500 * time.Millisecond

// Failed records a request that is refused before it is known who makes it, as soon as
// the returned writer gets the answer.
func Failed(w http.ResponseWriter, req *http.Request) http.ResponseWriter {
	r := recordOf(req.Context())
	if r == nil || !r.init(req) {
		return w
	}
	r.ResponseWriter, r.long = w, true
	return r
}

// Impersonated records that the user acts as another; constraint is the verb that
// allowed it, empty for legacy impersonation.
func Impersonated(ctx context.Context, as user.Info, constraint string) {
	if r := recordOf(ctx); r != nil {
		r.as, r.constraint = as, constraint
	}
}

func (r *record) begun(code int) {
	if r.code != 0 {
		return
	}
	r.code = code
	if r.status == nil {
		r.status = &r.answer
	}
	r.status.Code = int32(code)
	if r.long {
		r.emit(audit.StageResponseStarted)
	}
}

func (r *record) WriteHeader(code int) {
	r.begun(code)
	r.ResponseWriter.WriteHeader(code)
}

func (r *record) Write(b []byte) (int, error) {
	if r.code == 0 {
		r.begun(http.StatusOK)
	}
	return r.ResponseWriter.Write(b)
}

// Flush implements http.Flusher.
func (r *record) Flush() {
	if f, ok := r.ResponseWriter.(http.Flusher); ok {
		f.Flush()
	}
}

// Hijack implements http.Hijacker.
func (r *record) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	h, ok := r.ResponseWriter.(http.Hijacker)
	if !ok {
		return nil, nil, fmt.Errorf("the connection (%T) can not be upgraded; upgrades need HTTP/1.1", r.ResponseWriter)
	}
	r.begun(http.StatusSwitchingProtocols)
	return h.Hijack()
}

// Unwrap is for http.ResponseController.
func (r *record) Unwrap() http.ResponseWriter { return r.ResponseWriter }
