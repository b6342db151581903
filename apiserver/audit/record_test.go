package audit

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	upstream "k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

func policyOf(t testing.TB, rules string) Config {
	t.Helper()
	p, err := ParsePolicy([]byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules:\n" + rules))
	if err != nil {
		t.Fatal(err)
	}
	return Config{Policy: p, Log: &LogConfig{Path: filepath.Join(t.TempDir(), "audit.log")}}
}

// serve sends one request through an auditor and returns the events and what came back.
func serve(t *testing.T, c Config, req *http.Request, h http.HandlerFunc) ([]auditv1.Event, *httptest.ResponseRecorder) {
	t.Helper()
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	func() {
		defer func() { _ = recover() }()
		through(a, h, false).ServeHTTP(rec, req)
	}()
	return events(t, c.Log.Path), rec
}

// through is the part of the server's chain that auditing needs.
func through(a *Auditor, h http.Handler, unknown bool) http.Handler {
	resolver := &request.RequestInfoFactory{APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api")}
	long := func(_ *http.Request, info *request.RequestInfo) bool { return info.Verb == "watch" }
	h = a.Wrap(h, long, func(w http.ResponseWriter, _ *http.Request, err error) {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		info, err := resolver.NewRequestInfo(req)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		ctx := a.Begin(request.WithRequestInfo(req.Context(), info), "id-1")
		if unknown {
			req = req.WithContext(ctx)
			http.Error(Failed(w, req), "Unauthorized", http.StatusUnauthorized)
			return
		}
		ctx = request.WithUser(ctx, &user.DefaultInfo{Name: "alice", Groups: []string{"dev"}, Extra: map[string][]string{"k": {"v"}}})
		h.ServeHTTP(w, req.WithContext(ctx))
	})
}

func events(t *testing.T, path string) []auditv1.Event {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var out []auditv1.Event
	d := json.NewDecoder(bytes.NewReader(text))
	for {
		var ev auditv1.Event
		if err := d.Decode(&ev); errors.Is(err, io.EOF) {
			return out
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		out = append(out, ev)
	}
}

func stages(evs []auditv1.Event) string {
	var s []string
	for _, e := range evs {
		s = append(s, string(e.Stage))
	}
	return strings.Join(s, " ")
}

func TestStages(t *testing.T) {
	ok := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }
	for name, c := range map[string]struct {
		rules, path, want string
		h                 http.HandlerFunc
		code              int32
	}{
		"plain":       {"- level: Metadata", "/api/v1/pods", "RequestReceived ResponseComplete", ok, 200},
		"watch":       {"- level: Metadata", "/api/v1/pods?watch=1", "RequestReceived ResponseStarted ResponseComplete", ok, 200},
		"silent":      {"- level: Metadata", "/api/v1/pods?watch=1", "RequestReceived ResponseStarted ResponseComplete", func(http.ResponseWriter, *http.Request) {}, 200},
		"panic":       {"- level: Metadata", "/api/v1/pods", "RequestReceived Panic", func(http.ResponseWriter, *http.Request) { panic("oh") }, 500},
		"none":        {"- level: None", "/api/v1/pods", "", ok, 0},
		"omitted":     {"- level: Metadata\n  omitStages: [RequestReceived]", "/api/v1/pods", "ResponseComplete", ok, 200},
		"no rule":     {"- level: Metadata\n  users: [bob]", "/api/v1/pods", "", ok, 0},
		"group":       {"- level: None\n  userGroups: [dev]\n- level: Metadata", "/api/v1/pods", "", ok, 0},
		"verb":        {"- level: None\n  verbs: [list]\n- level: Metadata", "/api/v1/pods", "", ok, 0},
		"path":        {"- level: None\n  nonResourceURLs: [/healthz*]\n- level: Metadata", "/healthz/etcd", "", ok, 0},
		"subresource": {"- level: None\n  resources: [{group: '', resources: [pods]}]\n- level: Metadata", "/api/v1/namespaces/n/pods/p/status", "RequestReceived ResponseComplete", ok, 200},
		"all of them": {"- level: None\n  resources: [{group: '', resources: ['pods/*']}]\n- level: Metadata", "/api/v1/namespaces/n/pods/p/status", "", ok, 0},
		"name":        {"- level: None\n  resources: [{group: '', resources: [pods], resourceNames: [p]}]\n- level: Metadata", "/api/v1/namespaces/n/pods/p", "", ok, 0},
		"namespace":   {"- level: None\n  namespaces: ['n']\n- level: Metadata", "/api/v1/namespaces/n/pods/p", "", ok, 0},
	} {
		t.Run(name, func(t *testing.T) {
			evs, _ := serve(t, policyOf(t, c.rules), httptest.NewRequest("GET", c.path, nil), c.h)
			if got := stages(evs); got != c.want {
				t.Fatalf("stages %q, want %q", got, c.want)
			}
			if n := len(evs); n > 0 && evs[n-1].ResponseStatus.Code != c.code {
				t.Errorf("code %d, want %d", evs[n-1].ResponseStatus.Code, c.code)
			}
		})
	}
}

func TestMetadata(t *testing.T) {
	req := httptest.NewRequest("POST", "/api/v1/namespaces/n/pods?dryRun=All", nil)
	req.RemoteAddr = "192.0.2.7:5555"
	req.Header.Set("User-Agent", strings.Repeat("x", 2000))
	evs, _ := serve(t, policyOf(t, "- level: Metadata"), req, func(w http.ResponseWriter, req *http.Request) {
		RequestObject(req.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "other", UID: "u", ResourceVersion: "3"}})
		Response(req.Context(), &metav1.Status{Status: "Failure", Message: "no", Reason: metav1.StatusReasonConflict, Code: 409})
		upstream.AddAuditAnnotation(req.Context(), "a", "b")
		Impersonated(req.Context(), &user.DefaultInfo{Name: "bob", Extra: map[string][]string{"x": {"y"}}}, "impersonate:user-info")
		w.WriteHeader(http.StatusConflict)
	})
	if len(evs) != 2 {
		t.Fatalf("%d events", len(evs))
	}
	first, last := evs[0], evs[1]
	if first.ObjectRef.Name != "" || first.ResponseStatus != nil || first.StageTimestamp != first.RequestReceivedTimestamp {
		t.Errorf("first event knows too much: %+v", first)
	}
	if want := (auditv1.ObjectReference{Resource: "pods", Namespace: "n", Name: "p", UID: "u", APIVersion: "v1", ResourceVersion: "3"}); *last.ObjectRef != want {
		t.Errorf("objectRef %+v, want %+v", *last.ObjectRef, want)
	}
	if s := last.ResponseStatus; s.Code != 409 || s.Reason != metav1.StatusReasonConflict || s.Message != "no" {
		t.Errorf("status %+v", s)
	}
	if last.RequestObject != nil || last.ResponseObject != nil {
		t.Error("bodies at Metadata")
	}
	if last.User.Username != "alice" || last.User.Extra["k"][0] != "v" || last.ImpersonatedUser.Username != "bob" || last.ImpersonatedUser.Extra["x"][0] != "y" ||
		last.AuthenticationMetadata.ImpersonationConstraint != "impersonate:user-info" {
		t.Errorf("users %+v as %+v", last.User, last.ImpersonatedUser)
	}
	if !reflect.DeepEqual(last.SourceIPs, []string{"192.0.2.7"}) || last.Annotations["a"] != "b" || last.Verb != "create" || last.AuditID != "id-1" {
		t.Errorf("event %+v", last)
	}
	if want := strings.Repeat("x", 1024) + "...TRUNCATED"; last.UserAgent != want {
		t.Errorf("user agent of %d bytes", len(last.UserAgent))
	}
}

func TestBodies(t *testing.T) {
	pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "p",
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}}
	h := func(_ http.ResponseWriter, req *http.Request) {
		RequestObject(req.Context(), pod)
		Response(req.Context(), &corev1.PodList{Items: []corev1.Pod{*pod}})
	}
	for _, c := range []struct {
		rules             string
		request, response bool
		managed           bool
	}{
		{"- level: Request", true, false, true},
		{"- level: RequestResponse", true, true, true},
		{"- level: RequestResponse\n  omitManagedFields: true", true, true, false},
	} {
		evs, _ := serve(t, policyOf(t, c.rules), httptest.NewRequest("POST", "/api/v1/namespaces/n/pods", nil), h)
		last := evs[len(evs)-1]
		if (last.RequestObject != nil) != c.request || (last.ResponseObject != nil) != c.response {
			t.Fatalf("%s: bodies %v %v", c.rules, last.RequestObject, last.ResponseObject)
		}
		var all []byte
		all = append(all, last.RequestObject.Raw...)
		if c.response {
			all = append(all, last.ResponseObject.Raw...)
		}
		if got := bytes.Contains(all, []byte("managedFields")); got != c.managed {
			t.Errorf("%s: managed fields %v, want %v", c.rules, got, c.managed)
		}
		if pod.ManagedFields == nil {
			t.Fatal("the object was changed")
		}
	}
}

func TestRefusedBeforeTheUserIsKnown(t *testing.T) {
	c := policyOf(t, "- level: Metadata")
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	through(a, nil, true).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/api/v1/pods", nil))
	evs := events(t, c.Log.Path)
	if stages(evs) != "ResponseStarted" || evs[0].ResponseStatus.Code != 401 || evs[0].User.Username != "" {
		t.Errorf("events %+v", evs)
	}
}

// full is a log that takes nothing.
const full = "/dev/full"

func TestModeDecidesWhatAFullDiskDoes(t *testing.T) {
	if _, err := os.Stat(full); err != nil {
		t.Skip("needs " + full)
	}
	for mode, want := range map[Mode]int{Blocking: 200, BlockingStrict: 500, Batch: 200} {
		c := policyOf(t, "- level: Metadata")
		c.Log.Path, c.Log.Mode, c.Log.Batch = full, mode, BatchConfig{BufferSize: 1, MaxBatchSize: 1}
		a, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		rec := httptest.NewRecorder()
		through(a, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(200) }), false).
			ServeHTTP(rec, httptest.NewRequest("GET", "/api/v1/pods", nil))
		if rec.Code != want {
			t.Errorf("%s: %d, want %d", mode, rec.Code, want)
		}
		if _, rejected := a.Counts(); (rejected == 1) != (want == 500) {
			t.Errorf("%s: %d rejected", mode, rejected)
		}
	}
}

func TestLegacyFormat(t *testing.T) {
	c := policyOf(t, "- level: Metadata\n  omitStages: [RequestReceived]")
	c.Log.Format = "legacy"
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	through(a, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), false).
		ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/api/v1/namespaces/n/pods", nil))
	text, err := os.ReadFile(c.Log.Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`AUDIT: id="id-1" stage="ResponseComplete"`, `user="alice" groups="\"dev\""`, `namespace="n"`, `response="200"`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("no %s in %s", part, text)
		}
	}
}

func BenchmarkMetadata(b *testing.B) {
	for _, mode := range []Mode{Blocking, Batch} {
		b.Run(string(mode), func(b *testing.B) {
			c := policyOf(b, "- level: Metadata\n  omitStages: [RequestReceived]")
			c.Log.Mode, c.Log.Batch, c.Log.MaxSize = mode, BatchConfig{BufferSize: 10_000, MaxBatchSize: 400}, 1
			c.Log.MaxBackups = 1
			a, err := New(c)
			if err != nil {
				b.Fatal(err)
			}
			done := make(chan error, 1)
			ctx, cancel := contextOf(b)
			go func() { done <- a.Run(ctx) }()
			defer func() { cancel(); <-done }()
			req := httptest.NewRequest("GET", "/api/v1/namespaces/n/pods/p", nil)
			req.RemoteAddr = "192.0.2.7:5555"
			req.Header.Set("User-Agent", "kubectl/v1.37.2 (linux/amd64)")
			info := &request.RequestInfo{IsResourceRequest: true, Path: "/api/v1/namespaces/n/pods/p", Verb: "get", APIVersion: "v1", Namespace: "n", Resource: "pods", Name: "p"}
			base := request.WithUser(request.WithRequestInfo(b.Context(), info), &user.DefaultInfo{Name: "alice", Groups: []string{"dev", "system:authenticated"},
				Extra: map[string][]string{user.CredentialIDKey: {"X509SHA256=0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"}}})
			h := a.Wrap(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				upstream.AddAuditAnnotations(req.Context(), "authorization.k8s.io/decision", "allow", "authorization.k8s.io/reason", "RBAC: allowed")
				w.WriteHeader(200)
			}), func(*http.Request, *request.RequestInfo) bool { return false }, nil)
			w := discard{}
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, req.WithContext(a.Begin(base, "0f2bd2a6-0f0b-4b8a-9a0e-6d2f5b3c9f00")))
			}
		})
	}
}

type discard struct{}

func (discard) Header() http.Header         { return nil }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}
