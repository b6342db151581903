package openapi_test

import (
	"encoding/json"
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

func fetch(t *testing.T, url string, header ...string) (*http.Response, []byte) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	c := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp, b
}

var ref = regexp.MustCompile(`"\$ref":"#/(components/schemas|definitions)/([^"]+)"`)

// TestV3: every document parses, all its references lead somewhere, and it ties kinds
// to paths as kubectl looks for them.
func TestV3(t *testing.T) {
	s := servertest.New(t)
	_, b := fetch(t, s.URL+"/openapi/v3")
	var index struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	if err := json.Unmarshal(b, &index); err != nil || len(index.Paths) < 10 {
		t.Fatalf("%s %v", b, err)
	}
	for p, e := range index.Paths {
		resp, b := fetch(t, s.URL+e.ServerRelativeURL)
		if resp.StatusCode != 200 || !strings.Contains(resp.Header.Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %s %v", p, resp.Status, resp.Header)
		}
		doc := &spec3.OpenAPI{}
		if err := json.Unmarshal(b, doc); err != nil {
			t.Errorf("%s: %v", p, err)
			continue
		}
		for _, m := range ref.FindAllSubmatch(b, -1) {
			if doc.Components.Schemas[string(m[2])] == nil {
				t.Errorf("%s: nothing at %s", p, m[2])
			}
		}
		if again, _ := fetch(t, s.URL+e.ServerRelativeURL, "If-None-Match", resp.Header.Get("Etag")); again.StatusCode != http.StatusNotModified {
			t.Errorf("%s: %s, want not modified", p, again.Status)
		}
	}
	resp, _ := fetch(t, s.URL+"/openapi/v3/apis/apps/v1?hash=OLD")
	if resp.StatusCode != http.StatusMovedPermanently || resp.Header.Get("Location") != index.Paths["apis/apps/v1"].ServerRelativeURL {
		t.Errorf("old hash: %s %v", resp.Status, resp.Header)
	}
	_, b = fetch(t, s.URL+"/openapi/v3/apis/apps/v1")
	doc := &spec3.OpenAPI{}
	if err := json.Unmarshal(b, doc); err != nil {
		t.Fatal(err)
	}
	item := doc.Paths.Paths["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]
	if item == nil || item.Patch == nil || item.Patch.Extensions["x-kubernetes-group-version-kind"] == nil {
		t.Fatalf("no patch of a deployment: %+v", item)
	}
	has := false
	for _, p := range item.Patch.Parameters {
		has = has || p.Name == "fieldValidation"
	}
	if !has {
		t.Error("patch has no fieldValidation")
	}
	if doc.Components.Schemas["io.k8s.api.apps.v1.Deployment"].Extensions["x-kubernetes-group-version-kind"] == nil {
		t.Error("the schema names no kind")
	}
}

func TestV2(t *testing.T) {
	s := servertest.New(t)
	_, b := fetch(t, s.URL+"/openapi/v2")
	doc := &spec.Swagger{}
	if err := json.Unmarshal(b, doc); err != nil {
		t.Fatal(err)
	}
	podSpec := doc.Definitions["io.k8s.api.core.v1.Pod"].Properties["spec"]
	if doc.Swagger != "2.0" || podSpec.Ref.String() != "#/definitions/io.k8s.api.core.v1.PodSpec" {
		t.Errorf("version %q, pod's spec %+v", doc.Swagger, podSpec)
	}
	for _, m := range ref.FindAllSubmatch(b, -1) {
		if _, ok := doc.Definitions[string(m[2])]; !ok {
			t.Errorf("nothing at %s", m[2])
		}
	}
	_, b = fetch(t, s.URL+"/openapi/v2", "Accept", "application/com.github.proto-openapi.spec.v2@v1.0+protobuf")
	if err := proto.Unmarshal(b, &openapi_v2.Document{}); err != nil {
		t.Error(err)
	}
}
