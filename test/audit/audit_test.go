package audit

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/skiff-k8s/skiff/apiserver"
	"github.com/skiff-k8s/skiff/apiserver/audit"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

var (
	server = flag.String("audit-server", "", "URL of another API server to ask; its certificate is not verified")
	log    = flag.String("audit-log", "", "audit log of the other API server")
	record = flag.Bool("record", false, "keep the other server's events as what is to be expected")
)

const recording = "testdata/upstream.jsonl"

func TestEventsAreUpstreams(t *testing.T) {
	client, base, path := ours(t)
	if *server != "" {
		c := &rest.Config{Host: *server, BearerToken: servertest.AdminToken, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
		rt, err := rest.HTTPClientFor(rest.AnonymousClientConfig(c))
		if err != nil {
			t.Fatal(err)
		}
		client, base, path = rt, *server, *log
	}
	ids := map[string]string{}
	for i, r := range requests() {
		id := fmt.Sprintf("r%03d", i)
		ids[id] = r.method + " " + r.path
		send(t, client, base, id, r)
	}
	got := collect(t, path, ids)
	if *record {
		if err := os.WriteFile(recording, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	text, err := os.ReadFile(recording)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, ids, got, strings.Split(strings.TrimSpace(string(text)), "\n"))
}

// ours is a server with an audit log.
func ours(t *testing.T) (*http.Client, string, string) {
	p, err := audit.LoadPolicy("testdata/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "audit.log")
	a, err := audit.New(audit.Config{Policy: p, Log: &audit.LogConfig{Path: path}})
	if err != nil {
		t.Fatal(err)
	}
	s := servertest.Full(t, func(c *apiserver.Config) { c.Audit = a })
	return &http.Client{}, s.URL, path
}

// request is one request; its user is a token, empty for nobody at all.
type request struct {
	token, method, path, media, body string
	headers                          map[string]string
}

const admin, nobody = servertest.AdminToken, servertest.UserToken

// requests are those of every namespace, and those of none.
func requests() []request {
	const json, yaml = "application/json", "application/yaml"
	out := []request{
		{admin, "GET", "/healthz", "", "", nil},
		{admin, "GET", "/version", "", "", nil},
		{admin, "GET", "/nothing/here", "", "", nil},
		{"wrong", "GET", "/api/v1/pods", "", "", nil},
		{"", "GET", "/api/v1/pods", "", "", nil},
		{admin, "GET", "/api/v1/pods?timeout=soon", "", "", nil},
		{nobody, "GET", "/api/v1/namespaces/default/pods", "", "", nil},
		{nobody, "GET", "/api/v1/namespaces/default/secrets", "", "", nil},
		{admin, "GET", "/api/v1/nodes?limit=5&labelSelector=a%3Db", "", "", map[string]string{"X-Forwarded-For": "203.0.113.9, 198.51.100.2", "X-Real-Ip": "192.0.2.33"}},
		{admin, "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", json, `{"apiVersion":"authorization.k8s.io/v1","kind":"SubjectAccessReview","spec":{"user":"nobody","resourceAttributes":{"verb":"get","resource":"pods"}}}`, nil},
		{nobody, "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", json, `{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}`, nil},
		{admin, "GET", "/api/v1/namespaces/default/pods", "", "", map[string]string{"Impersonate-User": "ann", "Impersonate-Group": "crew", "Impersonate-Extra-Scopes": "a<b"}},
		{nobody, "GET", "/api/v1/namespaces/default/pods", "", "", map[string]string{"Impersonate-User": "ann"}},
		{admin, "GET", "/api/v1/namespaces/default/pods", "", "", map[string]string{"Impersonate-User": "system:serviceaccount:default:bob", "Impersonate-Uid": "7"}},
	}
	for _, ns := range []string{"metadata", "request", "response", "bare"} {
		in := "/api/v1/namespaces/" + ns
		out = append(out,
			request{admin, "POST", "/api/v1/namespaces", yaml, "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + ns + "}\n", nil},
			request{admin, "POST", in + "/configmaps?fieldManager=m", json, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","labels":{"k":"<v>"}},"data":{"x":"1 & 2"}}`, nil},
			request{admin, "POST", in + "/configmaps", json, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`, nil},
			request{admin, "POST", in + "/configmaps", json, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"A"}}`, nil},
			request{admin, "POST", in + "/configmaps", json, `{"kind":`, nil},
			request{admin, "GET", in + "/configmaps/a", "", "", nil},
			request{admin, "GET", in + "/configmaps/none", "", "", nil},
			request{admin, "GET", in + "/configmaps?labelSelector=k", "", "", nil},
			request{admin, "GET", in + "/configmaps?labelSelector=nothing", "", "", map[string]string{"Accept": "application/json;as=Table;v=v1;g=meta.k8s.io"}},
			request{admin, "GET", in + "/configmaps/a", "", "", map[string]string{"Accept": "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"}},
			request{admin, "GET", in + "/configmaps?watch=1&timeoutSeconds=1&labelSelector=nothing", "", "", nil},
			request{admin, "GET", in + "/configmaps?watch=1&timeoutSeconds=1&sendInitialEvents=true", "", "", nil},
			request{admin, "PUT", in + "/configmaps/a", json, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"},"data":{"x":"2"}}`, nil},
			request{admin, "PUT", in + "/configmaps/a", json, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b"}}`, nil},
			request{admin, "PATCH", in + "/configmaps/a", "application/merge-patch+json", `{ "data" : {"y": "3"} }`, nil},
			request{admin, "PATCH", in + "/configmaps/a", "application/json-patch+json", `[{"op":"remove","path":"/data/y"}]`, nil},
			request{admin, "PATCH", in + "/configmaps/a", "application/json-patch+json", `[{"op":`, nil},
			request{admin, "PATCH", in + "/configmaps/a?fieldManager=f&force=true", "application/apply-patch+yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {z: '4'}\n", nil},
			request{admin, "POST", in + "/services", json, `{"apiVersion":"v1","kind":"Service","metadata":{"name":"s"},"spec":{"ports":[{"port":80}],"clusterIP":"None","selector":{"a":"b"}}}`, nil},
			request{admin, "PATCH", in + "/services/s/status", "application/strategic-merge-patch+json", `{"status":{"conditions":[]}}`, nil},
			request{admin, "POST", "/apis/apps/v1/namespaces/" + ns + "/deployments", json, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"},"spec":{"replicas":0,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, nil},
			request{admin, "GET", "/apis/apps/v1/namespaces/" + ns + "/deployments/d/scale", "", "", nil},
			request{admin, "PATCH", "/apis/apps/v1/namespaces/" + ns + "/deployments/d/scale", "application/merge-patch+json", `{"spec":{"replicas":1}}`, nil},
			request{admin, "PUT", "/apis/apps/v1/namespaces/" + ns + "/deployments/d/scale", json, `{"apiVersion":"autoscaling/v1","kind":"Scale","metadata":{"name":"d","namespace":"` + ns + `"},"spec":{"replicas":2}}`, nil},
			request{admin, "DELETE", "/apis/apps/v1/namespaces/" + ns + "/deployments/d", json, `{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}`, nil},
			request{admin, "POST", in + "/serviceaccounts", json, `{"apiVersion":"v1","kind":"ServiceAccount","metadata":{"name":"sa"}}`, nil},
			request{admin, "POST", in + "/pods/none/eviction", json, `{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"none"}}`, nil},
			request{nobody, "DELETE", in + "/configmaps/a", "", "", nil},
			request{admin, "DELETE", in + "/configmaps/a", json, `{"gracePeriodSeconds":0}`, nil},
			request{admin, "DELETE", in + "/services/s?propagationPolicy=Background", "", "", nil},
			request{admin, "DELETE", in + "/configmaps?labelSelector=k", "", "", nil},
			request{admin, "GET", in + "/pods/none/log", "", "", nil},
			request{admin, "DELETE", "/api/v1/namespaces/" + ns + "?dryRun=All", "", "", nil},
		)
	}
	return out
}

func send(t *testing.T, client *http.Client, base, id string, r request) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), r.method, base+r.path, strings.NewReader(r.body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Audit-Id", id)
	req.Header.Set("User-Agent", "audit-test/1")
	req.Header.Set("Accept", "application/json")
	if r.token != "" {
		req.Header.Set("Authorization", "Bearer "+r.token)
	}
	if r.media != "" {
		req.Header.Set("Content-Type", r.media)
	}
	for k, v := range r.headers {
		req.Header.Set(k, v)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	if got := resp.Header.Get("Audit-Id"); got != id {
		t.Errorf("%s %s: Audit-Id %q, want %q", r.method, r.path, got, id)
	}
}

// collect waits for the last event of each request that has any and returns all, made
// comparable, by request and stage.
func collect(t *testing.T, path string, ids map[string]string) []string {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		evs, open := events(t, path, ids)
		if open == 0 {
			return evs
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d requests have no last event", open)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

var order = []string{"RequestReceived", "ResponseStarted", "ResponseComplete", "Panic"}

func events(t *testing.T, path string, ids map[string]string) (lines []string, open int) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	type event struct{ key, line string }
	var evs []event
	begun := map[string]bool{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	for {
		var ev map[string]any
		err := d.Decode(&ev)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, 1 // a line is half written
		}
		id, _ := ev["auditID"].(string)
		if ids[id] == "" {
			continue
		}
		stage, _ := ev["stage"].(string)
		begun[id] = begun[id] || stage == "ResponseComplete"
		if _, there := begun[id]; !there {
			begun[id] = false
		}
		if stage == "ResponseStarted" && ev["user"].(map[string]any)["username"] == nil {
			begun[id] = true // refused before the user was known
		}
		normalise(ev)
		line, err := json.Marshal(ev)
		if err != nil {
			t.Fatal(err)
		}
		evs = append(evs, event{fmt.Sprint(id, slices.Index(order, stage)), string(line)})
	}
	for _, done := range begun {
		if !done {
			open++
		}
	}
	slices.SortStableFunc(evs, func(a, b event) int { return strings.Compare(a.key, b.key) })
	for _, e := range evs {
		lines = append(lines, e.line)
	}
	return lines, open
}

// changing are fields whose values are of one server and one time.
var changing = []string{"uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "time", "requestReceivedTimestamp", "stageTimestamp"}

func normalise(v any) {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			if s, ok := x.(string); ok && slices.Contains(changing, k) && s != "" {
				v[k] = "*"
				continue
			}
			if strings.HasPrefix(k, "apiserver.latency.k8s.io/") { // of slow requests only
				delete(v, k)
				continue
			}
			normalise(x)
		}
	case []any:
		for _, x := range v {
			normalise(x)
		}
	}
}

func compare(t *testing.T, ids map[string]string, got, want []string) {
	t.Helper()
	byKey := func(lines []string) map[string]map[string]any {
		out := map[string]map[string]any{}
		for _, l := range lines {
			var ev map[string]any
			if err := json.Unmarshal([]byte(l), &ev); err != nil {
				t.Fatal(err)
			}
			out[fmt.Sprint(ev["auditID"], " ", ev["stage"])] = ev
		}
		return out
	}
	g, w := byKey(got), byKey(want)
	for k, ev := range w {
		id, _, _ := strings.Cut(k, " ")
		if g[k] == nil {
			t.Errorf("%s (%s): no such event", k, ids[id])
			continue
		}
		for _, d := range diff("", g[k], ev) {
			t.Errorf("%s (%s)%s", k, ids[id], d)
		}
	}
	for k := range g {
		if id, _, _ := strings.Cut(k, " "); w[k] == nil {
			t.Errorf("%s (%s): upstream has no such event", k, ids[id])
		}
	}
}

// diff lists the fields in which two events differ.
func diff(path string, got, want any) []string {
	g, ok1 := got.(map[string]any)
	w, ok2 := want.(map[string]any)
	if ok1 && ok2 {
		var out []string
		keys := map[string]bool{}
		for k := range g {
			keys[k] = true
		}
		for k := range w {
			keys[k] = true
		}
		for k := range keys {
			out = append(out, diff(path+"."+k, g[k], w[k])...)
		}
		slices.Sort(out)
		return out
	}
	a, err := json.Marshal(got)
	b, err2 := json.Marshal(want)
	if err != nil || err2 != nil || !bytes.Equal(a, b) {
		return []string{fmt.Sprintf("\n  %s\n   got %s\n  want %s", path, a, b)}
	}
	return nil
}
