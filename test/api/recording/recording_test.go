package recording

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func decode(t *testing.T, s string) any {
	t.Helper()
	var v any
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestNormalise(t *testing.T) {
	for _, c := range []struct{ name, literal, in, want string }{
		{"uid, twice the same", "", `{"metadata":{"name":"a","uid":"11111111-2222-3333-4444-555555555555"},"message":"uid 11111111-2222-3333-4444-555555555555 is"}`,
			`{"message":"uid <uid-1> is","metadata":{"name":"a","uid":"<uid-1>"}}`},
		{"uid of the script", "11111111-2222-3333-4444-555555555555", `{"uid":"11111111-2222-3333-4444-555555555555"}`, `{"uid":"11111111-2222-3333-4444-555555555555"}`},
		{"resource versions", "", `[{"metadata":{"name":"a","resourceVersion":"7"}},{"metadata":{"name":"a","resourceVersion":"9"}},{"metadata":{"name":"a","resourceVersion":"7"}}]`,
			`[{"metadata":{"name":"a","resourceVersion":"<rv-1>"}},{"metadata":{"name":"a","resourceVersion":"<rv-2>"}},{"metadata":{"name":"a","resourceVersion":"<rv-1>"}}]`},
		{"resource version of a list", "", `{"metadata":{"resourceVersion":"7","continue":"abc"},"items":[]}`, `{"items":[],"metadata":{"continue":"<continue>","resourceVersion":"<rv>"}}`},
		{"no resource version", "", `{"metadata":{"name":"a","resourceVersion":"0"}}`, `{"metadata":{"name":"a","resourceVersion":"0"}}`},
		{"times", "", `{"a":"2026-01-02T03:04:06Z","b":"2026-01-02T03:04:06.123456Z","c":"2001-01-01T00:00:00Z"}`, `{"a":"<time>","b":"<microtime>","c":"2001-01-01T00:00:00Z"}`},
		{"generated name", "", `{"metadata":{"generateName":"web-","name":"web-abcde"},"message":"pods \"web-abcde\" not found"}`,
			`{"message":"pods \"web-<name-1>\" not found","metadata":{"generateName":"web-","name":"web-<name-1>"}}`},
		{"given name", "", `{"generateName":"web-","name":"web-x"}`, `{"generateName":"web-","name":"web-x"}`},
		{"addresses", "10.96.0.10", `["10.96.0.10","10.96.3.4","10.96.3.4 in use"]`, `["10.96.0.10","<ip-1>","<ip-1> in use"]`},
		{"ports", "30100", `[{"nodePort":30100},{"nodePort":31234},{"port":31234},"31234 and 31235"]`, `[{"nodePort":30100},{"nodePort":"<port-1>"},{"port":31234},"<port-1> and 31235"]`},
		{"token volume", "", `["kube-api-access-ab12c","kube-api-access"]`, `["<volume-1>","kube-api-access"]`},
		{"revision of quoted JSON", "", `"is {\"resourceVersion\":\"7\"}"`, `"is {\"resourceVersion\":\"<rv>\"}"`},
		{"token", "", `{"token":"eyJhbGci.eyJpc3M.c2ln"}`, `{"token":"<jwt>"}`},
		{"age in a table", "", `{"rows":[{"cells":["a",1,"5s","3d4h","<unknown>"]}]}`, `{"rows":[{"cells":["a",1,"<age>","<age>","<unknown>"]}]}`},
		{"order of managers", "", `{"managedFields":[{"manager":"b","operation":"Update"},{"manager":"a","operation":"Update"},{"manager":"c","operation":"Apply"}]}`,
			`{"managedFields":[{"manager":"c","operation":"Apply"},{"manager":"a","operation":"Update"},{"manager":"b","operation":"Update"}]}`},
		{"order of causes", "", `{"message":"X \"a\" is invalid: [b: no, a: none]","details":{"causes":[{"field":"b","message":"no"},{"field":"a","message":"none"}]}}`,
			`{"details":{"causes":[{"field":"a","message":"none"},{"field":"b","message":"no"}]},"message":"X \"a\" is invalid: [a: none, b: no]"}`},
		{"causes that the message does not tell", "", `{"message":"b, a","details":{"causes":[{"field":"b"},{"field":"a"}]}}`, `{"details":{"causes":[{"field":"a"},{"field":"b"}]},"message":"b, a"}`},
		{"revision in a message", "", `"Too large resource version: 99, current: 12"`, `"Too large resource version: 99, current: <rv>"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := &Answer{Body: decode(t, c.in)}
			(&Normaliser{Literal: c.literal, Now: now}).Answer(a)
			if got := string(compact(a.Body)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestFormatIsReadBack(t *testing.T) {
	var r Recording
	r.Add(&Answer{Request: "GET /a", Status: "200", Header: map[string][]string{"Warning": {"one", "two"}}, Body: decode(t, `{"a":[1,"<b>",null,true,{"long":"`+strings.Repeat("x", 200)+`"}]}`)})
	r.Add(&Answer{Request: "GET /a", Status: "404", Header: map[string][]string{}, Body: "404 page not found\n\n-- x --\n"})
	r.Add(&Answer{Request: "HEAD /a", Status: "200", Header: map[string][]string{}})
	back, err := Parse(r.Format())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(back, r) {
		t.Errorf("read back as %s", back.Format())
	}
	if r[1].Request != "GET /a #2" {
		t.Errorf("the second request is called %q", r[1].Request)
	}
}

func TestDiff(t *testing.T) {
	answer := func(status, body string) Recording {
		return Recording{{Request: "GET /a", Status: status, Header: map[string][]string{}, Body: decode(t, body)}}
	}
	for _, c := range []struct {
		name, got, want string
		paths           []string
	}{
		{"same", `{"a":1}`, `{"a":1}`, nil},
		{"value", `{"a":{"b":1,"c":2}}`, `{"a":{"b":2,"c":2}}`, []string{"body.a.b"}},
		{"missing", `{}`, `{"a":null}`, []string{"body.a"}},
		{"extra", `{"a":null}`, `{}`, []string{"body.a"}},
		{"length", `[1]`, `[1,2]`, []string{"body"}},
		{"element", `[1,3]`, `[1,2]`, []string{"body.1"}},
		{"type", `"1"`, `1`, []string{"body"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var paths []string
			for _, d := range Diff(answer("200", c.got), answer("200", c.want)) {
				paths = append(paths, d.Path)
			}
			if !reflect.DeepEqual(paths, c.paths) {
				t.Errorf("got %v, want %v", paths, c.paths)
			}
		})
	}
	if ds := Diff(answer("200", `1`), answer("201", `1`)); len(ds) != 1 || ds[0].Path != "status" {
		t.Errorf("status: %v", ds)
	}
	if ds := Diff(nil, answer("200", `1`)); len(ds) != 1 || ds[0].Path != "request" {
		t.Errorf("fewer answers: %v", ds)
	}
}

func TestDeviations(t *testing.T) {
	l, err := ParseDeviations("# c\n\ns | GET /a | body.x | meant\ns | GET /b | status | never met\n")
	if err != nil {
		t.Fatal(err)
	}
	left, n := l.Meant("s", []Difference{{Request: "GET /a", Path: "body.x.y"}, {Request: "GET /a", Path: "body.xy"}, {Request: "GET /a", Path: "body.x"}})
	if len(left) != 1 || left[0].Path != "body.xy" || n != 1 {
		t.Errorf("left %v, %d requests", left, n)
	}
	if u := l.Unused(); len(u) != 1 || !strings.HasPrefix(u[0], "line 4: ") {
		t.Errorf("unused: %v", u)
	}
	for _, bad := range []string{"s | GET /a | body", "s | GET /a | body | "} {
		if _, err := ParseDeviations(bad); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}
