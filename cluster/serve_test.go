package cluster

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
)

func TestSecurePortAsksTheAPIServer(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		r := a.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview).DeepCopy()
		r.Status.Authenticated = r.Spec.Token != "unknown"
		r.Status.User.Username = r.Spec.Token
		return true, r, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		r := a.(k8stesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
		n := r.Spec.NonResourceAttributes
		r.Status.Allowed = r.Spec.User == "prometheus" && n.Path == "/metrics" && n.Verb == "get"
		return true, r, nil
	})
	reached := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "reached") })
	for _, tt := range []struct {
		name, path, token string
		client            bool
		want              int
	}{
		{"for all", "/healthz", "", true, 200},
		{"below what is for all", "/livez/ping", "", true, 200},
		{"nobody", "/metrics", "", true, 401},
		{"an unknown token", "/metrics", "unknown", true, 401},
		{"who may", "/metrics", "prometheus", true, 200},
		{"who may not", "/metrics", "eve", true, 403},
		{"another path", "/debug", "prometheus", true, 403},
		{"without an API server", "/metrics", "prometheus", false, 401},
	} {
		s := ServeConfig{Public: []string{"/healthz", "/livez*"}}
		if tt.client {
			s.Client = client
		}
		req := httptest.NewRequest(http.MethodGet, tt.path, nil)
		if tt.token != "" {
			req.Header.Set("Authorization", "Bearer "+tt.token)
		}
		w := httptest.NewRecorder()
		s.guard(reached, slog.New(slog.DiscardHandler)).ServeHTTP(w, req)
		if w.Code != tt.want {
			t.Errorf("%s: %d %s, want %d", tt.name, w.Code, w.Body, tt.want)
		}
	}
}

// TestProfilesAreServedWhereAskedFor by components that run alone, and nowhere else.
func TestProfilesAreServedWhereAskedFor(t *testing.T) {
	for _, on := range []bool{false, true} {
		want := http.StatusNotFound
		if on {
			want = http.StatusOK
		}
		for name, h := range map[string]http.Handler{
			"secure port": (&ServeConfig{Profiling: on}).paths(), "proxy's metrics": proxyMetrics(nil, on),
		} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/debug/pprof/cmdline", nil))
			if w.Code != want {
				t.Errorf("%s, profiling %t: %d, want %d", name, on, w.Code, want)
			}
		}
	}
}
