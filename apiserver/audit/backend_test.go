package audit

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

func contextOf(t testing.TB) (context.Context, context.CancelFunc) {
	return context.WithCancel(context.WithoutCancel(t.Context()))
}

func TestPolicyErrorsNameTheField(t *testing.T) {
	head := "apiVersion: audit.k8s.io/v1\nkind: Policy\n"
	for text, want := range map[string]string{
		head + "rules: [{level: Metadata, user: [a]}]":                              `unknown field "rules[0].user"`,
		head + "rules: [{level: Metadata, level: None}]":                            `already set`,
		head + "rules: [{level: Some}]":                                             `rules[0].level: Unsupported value: "Some"`,
		head + "rules: [{}]":                                                        "rules[0].level",
		head + "rules: []":                                                          "rules: at least one",
		head + "rules: [{level: None, nonResourceURLs: [x]}]":                       "rules[0].nonResourceURLs[0]",
		head + "rules: [{level: None, omitStages: [End]}]":                          "rules[0].omitStages[0]",
		head + "omitStages: [End]\nrules: [{level: None}]":                          "omitStages[0]",
		head + "rules: [{level: None, resources: [{resourceNames: [a]}]}]":          "rules[0].resources.resourceNames",
		head + "rules: [{level: None, namespaces: [a], nonResourceURLs: ['/a']}]":   "rules[0].nonResourceURLs",
		"apiVersion: audit.k8s.io/v1\nkind: Event\n":                                "Event",
		"apiVersion: v1\nkind: Pod\n":                                               "Pod",
		"rules: [{level: None}]":                                                    "apiVersion: audit.k8s.io/v1 and kind: Policy",
		head + "rules: [{level: None, resources: [{group: a/v1, resources: [b]}]}]": "rules[0].resources.group",
	} {
		_, err := ParsePolicy([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n: error %v, want %q", text, err, want)
		}
	}
	if _, err := LoadPolicy(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing file is no error")
	}
}

func TestOptions(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "policy.yaml")
	if err := os.WriteFile(good, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	for _, c := range []struct {
		change func(*Options)
		want   string // in the error
	}{
		{func(o *Options) { o.Log.MaxAge = -1 }, "--audit-log-maxage -1"},
		{func(o *Options) { o.Log.Format = "xml" }, `--audit-log-format "xml"`},
		{func(o *Options) { o.Log.Mode = "async" }, `--audit-log-mode "async"`},
		{func(o *Options) { o.Log.Mode, o.Log.Batch.BufferSize = Batch, 0 }, "--audit-log-batch-buffer-size 0"},
		{func(o *Options) { o.Log.Truncate.Enabled, o.Log.Truncate.MaxEventSize = true, 0 }, "--audit-log-truncate-max-event-size 0"},
		{func(o *Options) { o.logVersion = "audit.k8s.io/v1beta1" }, "--audit-log-version"},
		{func(o *Options) { o.PolicyFile = filepath.Join(dir, "none") }, "--audit-policy-file"},
		{func(o *Options) { o.Webhook.ConfigFile = filepath.Join(dir, "none") }, "--audit-webhook-config-file"},
		{func(o *Options) { o.Log.Path = filepath.Join(good, "x") }, "--audit-log-path"},
	} {
		o := NewOptions()
		o.PolicyFile, o.Log.Path = good, filepath.Join(dir, "audit.log")
		c.change(o)
		if _, err := o.New(log); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
	for _, change := range []func(*Options){func(o *Options) { o.PolicyFile = "" }, func(o *Options) { o.Log.Path = "" }} {
		o := NewOptions()
		o.PolicyFile, o.Log.Path = good, filepath.Join(dir, "audit.log")
		change(o)
		if a, err := o.New(log); a != nil || err != nil {
			t.Errorf("%v, %v: nothing is to be audited", a, err)
		}
	}
}

func TestRotation(t *testing.T) {
	clk := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC))
	dir := t.TempDir()
	path := filepath.Join(dir, "audit.log")
	f, err := openFile(path, LogConfig{MaxSize: 1, MaxBackups: 3, MaxAge: 10, Compress: true}, clk, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "audit-of-another.log"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	write := func() {
		t.Helper()
		if _, err := f.Write(make([]byte, 600<<10)); err != nil {
			t.Fatal(err)
		}
		f.tidying.Wait()
		clk.SetTime(clk.Now().Add(time.Hour))
	}
	for range 6 { // each but the first puts one aside
		write()
	}
	names := func() string {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, e := range entries {
			out = append(out, e.Name())
		}
		return strings.Join(out, " ")
	}
	if got, want := names(), "audit-2026-01-01T03-00-00.000.log.gz audit-2026-01-01T04-00-00.000.log.gz audit-2026-01-01T05-00-00.000.log.gz audit-of-another.log audit.log"; got != want {
		t.Errorf("files\n %s\nwant\n %s", got, want)
	}
	clk.SetTime(clk.Now().Add(11 * 24 * time.Hour))
	write()
	if got, want := names(), "audit-2026-01-12T06-00-00.000.log.gz audit-of-another.log audit.log"; got != want {
		t.Errorf("files\n %s\nwant\n %s", got, want)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	// What was there counts after a restart.
	if f, err = openFile(path, LogConfig{MaxSize: 1}, clk, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if f.size != 600<<10 {
		t.Errorf("size %d", f.size)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestTruncation(t *testing.T) {
	c := TruncateConfig{Enabled: true, MaxEventSize: 1000, MaxBatchSize: 5000}
	ev := &audit.Event{AuditID: "1", Annotations: map[string]string{"k": "v"}}
	line := func() event { return event{ev, map[string][]string{"x": {"y"}}, nil, appendEvent(nil, ev, nil, nil)} }
	if got := c.cut(line()); string(got) != string(line().line) {
		t.Errorf("a small event was changed: %s", got)
	}
	ev.UserAgent = strings.Repeat("u", 2000)
	if got := c.cut(line()); got != nil {
		t.Errorf("%s is too large", got)
	}
	ev.UserAgent = ""
	ev.ResponseObject = unknown(fmt.Sprintf("%q", strings.Repeat("o", 2000)))
	var got auditv1.Event
	if err := json.Unmarshal(c.cut(line()), &got); err != nil {
		t.Fatal(err)
	}
	if got.ResponseObject != nil || got.Annotations["audit.k8s.io/truncated"] != "true" || got.Annotations["k"] != "v" || got.User.Extra["x"][0] != "y" {
		t.Errorf("event %+v", got)
	}
	if len(ev.Annotations) != 1 || ev.ResponseObject == nil {
		t.Error("the event was changed")
	}
}

// lines collects what a batcher sends.
type lines struct {
	mu      sync.Mutex
	batches []int
	sent    chan struct{}
}

func (l *lines) send(_ context.Context, b [][]byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.batches = append(l.batches, len(b))
	l.sent <- struct{}{}
	return nil
}

func TestBatches(t *testing.T) {
	start := func(c BatchConfig) (*batcher, *lines, func()) {
		l := &lines{sent: make(chan struct{}, 100)}
		b, err := newBatcher(c, "test", clock.RealClock{}, l.send, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := contextOf(t)
		done := make(chan struct{})
		go func() { b.run(ctx); close(done) }()
		return b, l, func() { cancel(); <-done }
	}
	b, l, end := start(BatchConfig{BufferSize: 10, MaxBatchSize: 4, MaxWait: time.Hour})
	for range 6 {
		b.put([]byte("x"))
	}
	<-l.sent // a whole batch goes at once
	end()    // the rest at the end
	if got := fmt.Sprint(l.batches); got != "[4 2]" {
		t.Errorf("batches %s", got)
	}
	b.put([]byte("late")) // is lost, not waited for
	if b.left() {
		t.Error("an event after the end waits")
	}

	b, l, end = start(BatchConfig{BufferSize: 10, MaxBatchSize: 4, MaxWait: time.Millisecond})
	b.put([]byte("x"))
	<-l.sent // an incomplete batch goes after a while
	end()

	b, err := newBatcher(BatchConfig{BufferSize: 2, MaxBatchSize: 4}, "test", clock.RealClock{}, l.send, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // one more than fits
		b.put([]byte("x"))
	}
	if batch, lost, _ := b.take(); len(batch) != 2 || lost != 1 {
		t.Errorf("%d taken, %d lost", len(batch), lost)
	}
}

func TestEndOfBatchModeKeepsWhatWaits(t *testing.T) {
	c := policyOf(t, "- level: Metadata")
	c.Log.Mode, c.Log.Batch = Batch, BatchConfig{BufferSize: 1000, MaxBatchSize: 7, MaxWait: time.Hour}
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	h := through(a, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), false)
	for range 50 {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/api/v1/pods", nil))
	}
	ctx, cancel := contextOf(t)
	cancel()
	if err := a.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if got := len(events(t, c.Log.Path)); got != 100 {
		t.Errorf("%d events, want 100", got)
	}
}

func TestWebhook(t *testing.T) {
	var mu sync.Mutex
	var got []auditv1.EventList
	failures := 2
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if req.Header.Get("Authorization") != "Bearer secret" || req.Method != http.MethodPost || req.URL.Path != "/sink" {
			t.Errorf("%s %s %v", req.Method, req.URL, req.Header)
		}
		if failures > 0 {
			failures--
			http.Error(w, "not yet", http.StatusBadRequest)
			return
		}
		var l auditv1.EventList
		if err := json.NewDecoder(req.Body).Decode(&l); err != nil {
			t.Error(err)
		}
		got = append(got, l)
	}))
	defer s.Close()
	conf := filepath.Join(t.TempDir(), "webhook.yaml")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: %s/sink, certificate-authority-data: %s}}]\nusers: [{name: u, user: {token: secret}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n", s.URL,
		base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})))
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, mode := range []Mode{Batch, Blocking} {
		got, failures = nil, 2
		c := policyOf(t, "- level: Metadata\n  omitStages: [RequestReceived]")
		c.Log = nil
		c.Clock = clock.RealClock{}
		c.Webhook = &WebhookConfig{ConfigFile: conf, InitialBackoff: time.Millisecond, Mode: mode, Batch: BatchConfig{BufferSize: 100, MaxBatchSize: 2, MaxWait: time.Hour}}
		a, err := New(c)
		if err != nil {
			t.Fatal(err)
		}
		h := through(a, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), false)
		for range 3 {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/api/v1/pods", nil))
		}
		ctx, cancel := contextOf(t)
		cancel()
		if err := a.Run(ctx); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, l := range got {
			n += len(l.Items)
		}
		if n != 3 {
			t.Errorf("%s: %d events sent", mode, n)
		}
	}
}

func unknown(raw string) *runtime.Unknown {
	return &runtime.Unknown{Raw: []byte(raw), ContentType: runtime.ContentTypeJSON}
}

// TestTidyTellsWhatFails, and goes on with the others.
func TestTidyTellsWhatFails(t *testing.T) {
	dir := t.TempDir()
	now := time.Date(2026, 1, 2, 0, 0, 0, 0, time.UTC)
	f, err := openFile(filepath.Join(dir, "audit.log"), LogConfig{MaxAge: 1}, clocktesting.NewFakePassiveClock(now), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	stays, goes := filepath.Join(dir, "audit-2025-01-02T00-00-00.000.log"), filepath.Join(dir, "audit-2025-01-01T00-00-00.000.log")
	if err := os.MkdirAll(filepath.Join(stays, "not empty"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(goes, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.tidy(); err == nil || !strings.Contains(err.Error(), stays) {
		t.Errorf("got %v, want an error that names %s", err, stays)
	}
	if _, err := os.Stat(goes); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is still there: %v", goes, err)
	}
}
