package audit

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// A webhook that refuses, or does not answer at all, does not keep a server that is told to
// end: what waits for it is let go, and what comes later does not begin to wait.
func TestBlockingWebhookEnds(t *testing.T) {
	for _, answers := range []bool{true, false} {
		t.Run(fmt.Sprintf("answers=%v", answers), func(t *testing.T) {
			asked := make(chan struct{}, 10)
			var times atomic.Int32
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
				times.Add(1)
				if _, err := io.Copy(io.Discard, req.Body); err != nil {
					t.Error(err)
				}
				asked <- struct{}{}
				if !answers {
					<-req.Context().Done()
				}
				http.Error(w, "not now", http.StatusServiceUnavailable)
			}))
			defer s.Close()
			conf := filepath.Join(t.TempDir(), "webhook.yaml")
			text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %s}}]\ncontexts: [{name: x, context: {cluster: c}}]\ncurrent-context: x\n", s.URL)
			if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			clk := clocktesting.NewFakeClock(time.Now())
			c := policyOf(t, "- level: Metadata\n  omitStages: [RequestReceived]")
			c.Log, c.Clock = nil, clk
			c.Webhook = &WebhookConfig{ConfigFile: conf, Mode: BlockingStrict}
			a, err := New(c)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := contextOf(t)
			done := make(chan error, 1)
			go func() { done <- a.Run(ctx) }()
			h := through(a, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), false)
			served := make(chan struct{})
			go func() {
				defer close(served)
				h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/api/v1/pods", nil))
			}()
			<-asked
			cancel()
			for ended := false; !ended; {
				select {
				case err := <-done:
					if ended = true; err != nil {
						t.Error(err)
					}
				default:
					if clk.HasWaiters() && !answers {
						clk.Step(lastSend)
					}
				}
			}
			<-served
			before := times.Load()
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/api/v1/pods", nil))
			if after := times.Load(); before != 1 || after != before {
				t.Errorf("the webhook was asked %d times, and %d times after the end", before, after-before)
			}
		})
	}
}
