package api

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

var kubeconfig = flag.String("kubeconfig", "", "run the scripts against this cluster's API server")

// limit bounds one script.
const limit = 30 * time.Second

func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	client, base := target(t)
	skip := deviations(t)
	for _, f := range files {
		name := strings.TrimSuffix(filepath.Base(f), ".txtar")
		t.Run(name, func(t *testing.T) {
			if why := skip[name]; why != "" && *kubeconfig != "" {
				t.Skip(why)
			}
			ar, err := txtar.ParseFile(f)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			s := &script{t: t, ctx: ctx, client: client, base: base, file: f, files: map[string][]byte{},
				vars: map[string]string{"NS": "t-" + strings.ReplaceAll(name, "_", "-")}, watches: map[string]*watching{}, header: http.Header{}}
			for _, a := range ar.Files {
				s.files[a.Name] = a.Data
			}
			s.namespace()
			s.run(string(ar.Comment))
		})
	}
}

// target is the server under test.
func target(t *testing.T) (*http.Client, string) {
	var c *rest.Config
	if *kubeconfig == "" {
		c = servertest.Full(t).Admin()
	} else {
		var err error
		if c, err = clientcmd.BuildConfigFromFlags("", *kubeconfig); err != nil {
			t.Fatal(err)
		}
	}
	client, err := rest.HTTPClientFor(c)
	if err != nil {
		t.Fatal(err)
	}
	return client, strings.TrimSuffix(c.Host, "/")
}

// deviations are scripts not meant for other servers, with the reason.
func deviations(t *testing.T) map[string]string {
	data, err := os.ReadFile("testdata/deviations.txt")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if name, why, ok := strings.Cut(strings.TrimSpace(line), ": "); ok && !strings.HasPrefix(line, "#") {
			out[name] = why
		}
	}
	return out
}

// script is the state of one run.
type script struct {
	t       *testing.T
	ctx     context.Context
	client  *http.Client
	base    string
	file    string
	files   map[string][]byte
	vars    map[string]string
	watches map[string]*watching
	header  http.Header

	line int
	resp *http.Response
	data []byte
}

func (s *script) fatalf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s:%d: %s", s.file, s.line, fmt.Sprintf(format, args...))
}

func (s *script) namespace() {
	body := fmt.Sprintf(`{"kind":"Namespace","apiVersion":"v1","metadata":{"name":%q}}`, s.vars["NS"])
	s.send(http.MethodPost, "/api/v1/namespaces", []byte(body), "application/json")
	if s.resp.StatusCode != http.StatusCreated {
		s.fatalf("creating the script's namespace: %s", s.data)
	}
	// What the ServiceAccount controller would make; without it no pod is admitted.
	sa := `{"kind":"ServiceAccount","apiVersion":"v1","metadata":{"name":"default"}}`
	s.send(http.MethodPost, "/api/v1/namespaces/"+s.vars["NS"]+"/serviceaccounts", []byte(sa), "application/json")
	if code := s.resp.StatusCode; code != http.StatusCreated && code != http.StatusConflict {
		s.fatalf("creating the namespace's ServiceAccount: %s", s.data)
	}
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodDelete, s.base+"/api/v1/namespaces/"+s.vars["NS"], nil)
		if err != nil {
			s.t.Error(err)
			return
		}
		if resp, err := s.client.Do(req); err == nil {
			resp.Body.Close()
		}
	})
}

func (s *script) run(text string) {
	for line := range strings.Lines(text) {
		s.line++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		s.command(s.expand(line))
	}
}

func (s *script) expand(text string) string {
	return os.Expand(text, func(name string) string {
		if v, ok := s.vars[name]; ok {
			return v
		}
		return "$" + name
	})
}

func (s *script) command(line string) {
	verb, rest, _ := strings.Cut(line, " ")
	args := strings.Fields(rest)
	need := func(n int) {
		if len(args) < n {
			s.fatalf("%s takes %d arguments", verb, n)
		}
	}
	switch verb {
	case "GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS":
		need(1)
		var body []byte
		media := ""
		if len(args) > 1 {
			body, media = s.content(args[1]), mediaOf(args[1])
		}
		s.send(verb, args[0], body, media)
	case "AWAIT":
		need(1)
		for s.send(http.MethodGet, args[0], nil, ""); s.resp.StatusCode != http.StatusOK; s.send(http.MethodGet, args[0], nil, "") {
			select {
			case <-s.ctx.Done():
				s.fatalf("still %d: %s", s.resp.StatusCode, s.data)
			case <-time.After(10 * time.Millisecond):
			}
		}
	case "header":
		k, v, _ := strings.Cut(rest, ":")
		s.header.Add(strings.TrimSpace(k), strings.TrimSpace(v))
	case "status":
		need(1)
		if got := strconv.Itoa(s.resp.StatusCode); got != args[0] {
			s.fatalf("status %s, want %s: %s", got, args[0], s.data)
		}
	case "body":
		need(1)
		s.contains(s.data, s.content(args[0]))
	case "message":
		if got := s.value("message"); got != rest {
			s.fatalf("message\n got %s\nwant %s", got, rest)
		}
	case "text":
		if !strings.Contains(string(s.data), rest) {
			s.fatalf("no %q in %s", rest, s.data)
		}
	case "head":
		k, v, _ := strings.Cut(rest, ":")
		got := strings.Join(s.resp.Header.Values(strings.TrimSpace(k)), ", ")
		if v = strings.TrimSpace(v); (v == "" && got != "") || !strings.Contains(got, v) {
			s.fatalf("header %s is %q, want %q", k, got, v)
		}
	case "set":
		need(2)
		s.vars[args[0]] = s.value(args[1])
	case "watch":
		need(2)
		s.watch(args[0], args[1])
	case "event":
		need(2)
		ev := s.watches[args[0]].next(s)
		if ev.Type != args[1] {
			s.fatalf("event %s %s, want %s", ev.Type, ev.Object, args[1])
		}
		if len(args) > 2 {
			s.contains(ev.Object, s.content(args[2]))
		}
		s.data = ev.Object
	case "end":
		need(1)
		s.watches[args[0]].ended(s)
	default:
		s.fatalf("unknown command %q", verb)
	}
}

func (s *script) content(name string) []byte {
	b, ok := s.files[name]
	if !ok {
		s.fatalf("no file %s in the archive", name)
	}
	return []byte(s.expand(string(b)))
}

func mediaOf(file string) string {
	switch filepath.Ext(file) {
	case ".yaml":
		return "application/yaml"
	case ".jsonpatch":
		return "application/json-patch+json"
	case ".merge":
		return "application/merge-patch+json"
	case ".strategic":
		return "application/strategic-merge-patch+json"
	case ".apply":
		return "application/apply-patch+yaml"
	case ".json":
		return "application/json"
	}
	return ""
}

func (s *script) send(method, path string, body []byte, media string) {
	req, err := http.NewRequestWithContext(s.ctx, method, s.base+path, bytes.NewReader(body))
	if err != nil {
		s.fatalf("%v", err)
	}
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "apitest/1")
	if media != "" {
		req.Header.Set("Content-Type", media)
	}
	for k, v := range s.header {
		req.Header[k] = v
	}
	s.header = http.Header{}
	if s.resp, err = s.client.Do(req); err != nil {
		s.fatalf("%v", err)
	}
	defer s.resp.Body.Close()
	if s.data, err = io.ReadAll(s.resp.Body); err != nil {
		s.fatalf("%v", err)
	}
}

// value is the scalar at a dotted path of the answer.
func (s *script) value(path string) string {
	var v any
	if err := yaml.Unmarshal(s.data, &v); err != nil {
		s.fatalf("%v in %s", err, s.data)
	}
	for p := range strings.SplitSeq(path, ".") {
		switch t := v.(type) {
		case map[string]any:
			v = t[p]
		case []any:
			i, err := strconv.Atoi(p)
			if err != nil || i >= len(t) {
				s.fatalf("no %s in %s", path, s.data)
			}
			v = t[i]
		default:
			s.fatalf("no %s in %s", path, s.data)
		}
	}
	return fmt.Sprint(v)
}

func (s *script) contains(got, want []byte) {
	s.t.Helper()
	var g, w any
	if err := yaml.Unmarshal(got, &g); err != nil {
		s.fatalf("the answer is not JSON: %s", got)
	}
	if err := json.Unmarshal(want, &w); err != nil {
		s.fatalf("the wanted body is not JSON: %v: %s", err, want)
	}
	if diff := differ("", g, w); diff != "" {
		s.fatalf("%s in %s", diff, got)
	}
}

// differ tells where got does not contain want; "" if it does.
func differ(path string, got, want any) string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Sprintf("%s is %v, want an object", path, got)
		}
		for k, v := range w {
			e, has := g[k]
			if v == nil {
				if has && e != nil {
					return fmt.Sprintf("%s.%s is %v, want none", path, k, e)
				}
				continue
			}
			if !has {
				return fmt.Sprintf("%s.%s is missing", path, k)
			}
			if d := differ(path+"."+k, e, v); d != "" {
				return d
			}
		}
		return ""
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Sprintf("%s is %v, want %d elements", path, got, len(w))
		}
		for i := range w {
			if d := differ(fmt.Sprintf("%s[%d]", path, i), g[i], w[i]); d != "" {
				return d
			}
		}
		return ""
	case string:
		if w == "*" {
			return ""
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		return fmt.Sprintf("%s is %v, want %v", path, got, want)
	}
	return ""
}

// watching is a watch in progress.
type watching struct {
	dec *json.Decoder
}

type event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

func (s *script) watch(id, path string) {
	req, err := http.NewRequestWithContext(s.ctx, http.MethodGet, s.base+path, nil)
	if err != nil {
		s.fatalf("%v", err)
	}
	req.Header.Set("Accept", "application/json")
	for k, v := range s.header {
		req.Header[k] = v
	}
	s.header = http.Header{}
	resp, err := s.client.Do(req)
	if err != nil {
		s.fatalf("%v", err)
	}
	s.t.Cleanup(func() { resp.Body.Close() })
	s.resp = resp
	if resp.StatusCode != http.StatusOK {
		s.data, _ = io.ReadAll(resp.Body)
		return
	}
	s.watches[id] = &watching{json.NewDecoder(resp.Body)}
}

func (w *watching) next(s *script) event {
	if w == nil {
		s.fatalf("no such watch: %s", s.data)
	}
	var ev event
	if err := w.dec.Decode(&ev); err != nil {
		s.fatalf("next event: %v", err)
	}
	return ev
}

func (w *watching) ended(s *script) {
	var ev event
	if err := w.dec.Decode(&ev); err != io.EOF {
		s.fatalf("the watch goes on: %v %s %s", err, ev.Type, ev.Object)
	}
}
