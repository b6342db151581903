package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"mime"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"sigs.k8s.io/yaml"

	"github.com/skiff-k8s/skiff/api/builtin"
	"github.com/skiff-k8s/skiff/test/api/recording"
)

var record = flag.Bool("record", false, "write what the server of -kubeconfig answers beside the scripts")

// headers are those whose values are part of what a server answers.
var headers = []string{"Allow", "Cache-Control", "Content-Type", "Location", "Retry-After", "Vary", "Warning", "Www-Authenticate", "X-Content-Type-Options"}

// atLeast is how many requests there must be, and onePercent how many of them one may deviate.
const (
	atLeast    = 300
	onePercent = 100
)

// ledger is what the scripts of a run were answered, held against the recordings.
type ledger struct {
	meant             recording.Deviations
	scripts, settled  int
	requests, deviate int
	least             int // as many requests there must be
}

func newLedger(t *testing.T, least int) *ledger {
	data, err := os.ReadFile("testdata/deviations.txt")
	if err != nil {
		t.Fatal(err)
	}
	meant, err := recording.ParseDeviations(string(data))
	if err != nil {
		t.Fatalf("testdata/deviations.txt: %v", err)
	}
	if *kubeconfig != "" { // what is ours to deviate is nobody else's
		meant = nil
	}
	return &ledger{meant: meant, least: least}
}

// settle compares the answers to a script with its recording, or records them.
func (l *ledger) settle(t *testing.T, name string, s *script) {
	path := filepath.Join("testdata", name+".golden")
	if *record {
		if !t.Failed() {
			if err := os.WriteFile(path, s.answers.Format(), 0o644); err != nil {
				t.Error(err)
			}
		}
		return
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: record upstream's answers with: make record", err)
	}
	want, err := recording.Parse(data)
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	left, deviating := l.meant.Meant(name, recording.Diff(s.answers, want))
	for _, d := range left {
		t.Error(d)
	}
	l.settled++
	l.requests += len(s.answers)
	l.deviate += deviating
}

// close judges the whole, if all scripts ran.
func (l *ledger) close(t *testing.T) {
	if l.settled != l.scripts {
		return
	}
	for _, u := range l.meant.Unused() {
		t.Errorf("testdata/deviations.txt: no such difference: %s", u)
	}
	t.Logf("%d answers, %d deviate on purpose", l.requests, l.deviate)
	if l.requests < l.least {
		t.Errorf("only %d requests, want %d", l.requests, l.least)
	}
	if l.deviate*onePercent > l.requests {
		t.Errorf("%d of %d requests deviate: at most one in %d may", l.deviate, l.requests, onePercent)
	}
}

// title names the request of the current line: without a body that stands in it.
func (s *script) title() string {
	f := strings.Fields(s.text)
	for i, w := range f {
		if w[0] == '{' || w[0] == '[' {
			f = f[:i]
			break
		}
	}
	return strings.Join(f, " ")
}

// keep notes the last answer.
func (s *script) keep() {
	a := &recording.Answer{Request: s.title(), Status: strconv.Itoa(s.resp.StatusCode), Header: map[string][]string{}}
	for _, k := range headers {
		if v := s.resp.Header.Values(k); len(v) > 0 {
			a.Header[k] = append([]string(nil), v...)
		}
	}
	if len(s.data) > 0 {
		body, err := decode(s.resp.Header.Get("Content-Type"), s.data)
		if err != nil {
			s.fatalf("the answer does not decode: %v: %q", err, s.data)
		}
		a.Body = body
	}
	if s.only != nil {
		a.Body, s.only = pick(a.Body, s.only), nil
	}
	s.normal.Answer(a)
	s.answers.Add(a)
}

// keepEvent notes an event of a watch.
func (s *script) keepEvent(id string, ev event) {
	a := &recording.Answer{Request: "event " + id, Status: ev.Type, Header: map[string][]string{}}
	if err := json.Unmarshal(ev.Object, &a.Body); err != nil {
		s.fatalf("event %s: %v", ev.Object, err)
	}
	s.normal.Answer(a)
	s.answers.Add(a)
}

// pick keeps what JSON pointers lead to; "-" alone keeps nothing.
func pick(body any, pointers []string) any {
	if len(pointers) == 1 && pointers[0] == "-" {
		return nil
	}
	out := map[string]any{}
	for _, p := range pointers {
		v := body
		for _, k := range strings.Split(strings.TrimPrefix(p, "/"), "/") {
			k = strings.ReplaceAll(strings.ReplaceAll(k, "~1", "/"), "~0", "~")
			switch t := v.(type) {
			case map[string]any:
				v = t[k]
			case []any:
				if i, err := strconv.Atoi(k); err == nil && i < len(t) {
					v = t[i]
				} else {
					v = nil
				}
			default:
				v = nil
			}
		}
		out[p] = v
	}
	return out
}

// decode makes a body of a content type comparable.
func decode(contentType string, data []byte) (any, error) {
	kind, params, err := mime.ParseMediaType(contentType)
	if err != nil {
		return string(data), nil
	}
	switch kind {
	case "application/json":
		if params["stream"] == "watch" {
			return documents(data)
		}
		var v any
		err := json.Unmarshal(data, &v)
		return v, err
	case "application/yaml":
		var v any
		err := yaml.Unmarshal(data, &v)
		return v, err
	case "application/vnd.kubernetes.protobuf":
		return fromProtobuf(data)
	}
	var v any
	if data[0] == '{' && json.Unmarshal(data, &v) == nil {
		return v, nil // JSON under another name
	}
	return string(data), nil
}

func documents(data []byte) (any, error) {
	out := []any{}
	for dec := json.NewDecoder(bytes.NewReader(data)); ; {
		var v any
		if err := dec.Decode(&v); errors.Is(err, io.EOF) {
			return out, nil
		} else if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
}

func fromProtobuf(data []byte) (any, error) {
	scheme := builtin.Scheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{metav1.AddMetaToScheme, discoveryv2.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	o, gvk, err := protobuf.NewSerializer(scheme, scheme).Decode(data, &schema.GroupVersionKind{Version: "v1"}, nil)
	if err != nil {
		return nil, err
	}
	o.GetObjectKind().SetGroupVersionKind(*gvk)
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(m)
	if err != nil {
		return nil, err
	}
	var v any
	err = json.Unmarshal(text, &v)
	return v, err
}
