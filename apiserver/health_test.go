package apiserver_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"

	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

func TestHealth(t *testing.T) {
	s := servertest.New(t, func(c *apiserver.Config) {
		c.Checks = []apiserver.Check{
			{Name: "good", Live: true, Run: func(context.Context) error { return nil }},
			{Name: "bad", Run: func(context.Context) error { return errors.New("broken") }},
		}
	})
	for _, c := range []struct {
		path string
		code int
		want string
	}{
		{"/livez", 200, "ok"},
		{"/livez?verbose", 200, "[+]ping ok\n[+]good ok\nlivez check passed\n"},
		{"/readyz", 500, "[+]ping ok\n[+]etcd ok\n[+]good ok\n[-]bad failed: reason withheld\n[+]shutdown ok\nreadyz check failed\n"},
		{"/readyz?exclude=bad", 200, "ok"},
		{"/readyz/etcd", 200, "ok"},
		{"/readyz/bad", 500, "internal server error: broken\n"},
		{"/readyz/none", 404, "404 page not found\n"},
		{"/healthz/ping", 200, "ok"},
	} {
		resp, err := http.Get(s.URL + c.path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err != nil || resp.StatusCode != c.code || string(b) != c.want {
			t.Errorf("%s: %d %q %v, want %d %q", c.path, resp.StatusCode, b, err, c.code, c.want)
		}
	}
}
