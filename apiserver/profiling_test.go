package apiserver_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
	"github.com/skiff-k8s/skiff/component/profiling"
)

// TestProfiling: profiles are served, to those only that RBAC lets read the path.
func TestProfiling(t *testing.T) {
	s := servertest.Full(t, func(c *apiserver.Config) {
		c.Paths = map[string]http.Handler{profiling.Path: profiling.Handler()}
	})
	for _, c := range []struct {
		token, path string
		code        int
		want        string
	}{
		{servertest.AdminToken, "/debug/pprof/", http.StatusOK, "full goroutine stack dump"},
		{servertest.AdminToken, "/debug/pprof/goroutine?debug=1", http.StatusOK, "goroutine profile: total"},
		{servertest.AdminToken, "/debug/pprof/cmdline", http.StatusOK, "apiserver.test"},
		{servertest.AdminToken, "/debug/pprof/nothing", http.StatusNotFound, "Unknown profile"},
		{servertest.UserToken, "/debug/pprof/", http.StatusForbidden, "forbidden"},
		{servertest.UserToken, "/debug/pprof/profile?seconds=1", http.StatusForbidden, "forbidden"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+c.token)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		if resp.StatusCode != c.code || !strings.Contains(string(body), c.want) {
			t.Errorf("%s of %s: %d %.200s; want %d and %q", c.path, c.token, resp.StatusCode, body, c.code, c.want)
		}
	}
}
