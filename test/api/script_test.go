package api

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"

	"github.com/skiff-k8s/skiff/test/api/recording"
)

// limit bounds one script.
const limit = 30 * time.Second

func TestScripts(t *testing.T) {
	run(t, "", newLedger(t, atLeast))
}

// TestDualStackScripts: those of testdata/dualstack, against a server with two ranges of cluster
// IPs, IPv4 first. With -kubeconfig the server must be such a one.
func TestDualStackScripts(t *testing.T) {
	l := newLedger(t, 0)
	l.meant = nil
	run(t, "dualstack/", l, "10.96.0.0/16", "fd00:10:96::/112")
}

// run runs the scripts of a folder of testdata.
func run(t *testing.T, folder string, list *ledger, serviceCIDRs ...string) {
	files, err := filepath.Glob("testdata/" + folder + "*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	to := target(t, serviceCIDRs...)
	list.scripts = len(files)
	for _, f := range files {
		name := folder + strings.TrimSuffix(filepath.Base(f), ".txtar")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			s := &script{t: t, ctx: ctx, target: to, file: f, files: map[string][]byte{},
				vars: map[string]string{"NS": "t-" + strings.NewReplacer("_", "-", "/", "-").Replace(name)}, watches: map[string]*watching{}, header: http.Header{},
				normal: &recording.Normaliser{Literal: string(text), Now: time.Now()}}
			ar := txtar.Parse(text)
			for _, a := range ar.Files {
				s.files[a.Name] = a.Data
			}
			s.namespace()
			// What a script that broke off was told still says why.
			defer list.settle(t, name, s)
			s.run(string(ar.Comment))
		})
	}
	list.close(t)
}

// script is the state of one run.
type script struct {
	t       *testing.T
	ctx     context.Context
	target  *server
	file    string
	files   map[string][]byte
	vars    map[string]string
	watches map[string]*watching
	header  http.Header
	// anonymous: the next request has no credentials; only: what is kept of its answer.
	anonymous bool
	only      []string

	line int
	text string // of the line, as it stands there
	resp *http.Response
	data []byte

	answers recording.Recording
	normal  *recording.Normaliser
}

func (s *script) fatalf(format string, args ...any) {
	s.t.Helper()
	s.t.Fatalf("%s:%d: %s", s.file, s.line, fmt.Sprintf(format, args...))
}

// errorf reports what is not as the script says; the script goes on.
func (s *script) errorf(format string, args ...any) {
	s.t.Helper()
	s.t.Errorf("%s:%d: %s", s.file, s.line, fmt.Sprintf(format, args...))
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
		req, err := http.NewRequestWithContext(ctx, http.MethodDelete, s.target.base+"/api/v1/namespaces/"+s.vars["NS"], nil)
		if err != nil {
			s.t.Error(err)
			return
		}
		if resp, err := s.target.client.Do(req); err == nil {
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
		s.text = line
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
		_, body, _ := strings.Cut(rest, " ")
		s.request(verb, args[0], body)
		s.keep()
	case "AWAIT":
		need(1)
		s.until("200", http.MethodGet, args[0], "")
	case "until":
		need(3)
		_, body, _ := strings.Cut(strings.TrimPrefix(rest, args[0]+" "+args[1]+" "), " ")
		s.until(args[0], args[1], args[2], body)
	case "as":
		need(1)
		if s.anonymous = args[0] == "anonymous"; !s.anonymous {
			s.header.Set("Authorization", "Bearer "+args[0])
		}
	case "only":
		need(1)
		s.only = args
	case "header":
		k, v, _ := strings.Cut(rest, ":")
		s.header.Add(strings.TrimSpace(k), strings.TrimSpace(v))
	case "status":
		need(1)
		if got := strconv.Itoa(s.resp.StatusCode); got != args[0] {
			s.errorf("status %s, want %s: %s", got, args[0], s.data)
		}
	case "body":
		need(1)
		s.contains(s.data, s.content(args[0]))
	case "message":
		if got := s.value("message"); got != rest {
			s.errorf("message\n got %s\nwant %s", got, rest)
		}
	case "text":
		if !strings.Contains(string(s.data), rest) {
			s.errorf("no %q in %s", rest, s.data)
		}
	case "head":
		k, v, _ := strings.Cut(rest, ":")
		got := strings.Join(s.resp.Header.Values(strings.TrimSpace(k)), ", ")
		if v = strings.TrimSpace(v); (v == "" && got != "") || !strings.Contains(got, v) {
			s.errorf("header %s is %q, want %q", k, got, v)
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
		s.keepEvent(args[0], ev)
		if ev.Type != args[1] {
			s.errorf("event %s %s, want %s", ev.Type, ev.Object, args[1])
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
		s.errorf("%s in %s", diff, got)
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
