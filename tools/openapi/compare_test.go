package tools_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"sort"
	"strings"
	"testing"

	"github.com/skiff-k8s/skiff/api/openapi"
)

// kubernetes is where the module cache has the documents that kube-apiserver of the same
// version publishes; only compared with, and only where something fetched it.
const kubernetes = "k8s.io/kubernetes@v1.37.2/api/openapi-spec/v3"

func TestSchemasEqualUpstreams(t *testing.T) {
	out, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(out)), kubernetes, "*.json"))
	if err != nil || len(files) == 0 {
		t.Skip("k8s.io/kubernetes is not in the module cache: nothing to compare with")
	}
	upstream := map[string]any{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var doc struct {
			Components struct{ Schemas map[string]any }
		}
		if err := json.Unmarshal(text, &doc); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		for name, s := range doc.Components.Schemas {
			upstream[name] = s
		}
	}
	ours, err := openapi.Raw()
	if err != nil {
		t.Fatal(err)
	}
	var missing []string
	compared := 0
	for name, text := range ours {
		want, ok := upstream[name].(map[string]any)
		if !ok {
			missing = append(missing, name)
			continue
		}
		var got map[string]any
		if err := json.Unmarshal(text, &got); err != nil {
			t.Fatal(err)
		}
		// Kinds of all groups, upstream's beta and alpha ones included.
		if strings.HasPrefix(name, "io.k8s.apimachinery.pkg.apis.meta.v1.") {
			delete(got, "x-kubernetes-group-version-kind")
			delete(want, "x-kubernetes-group-version-kind")
		}
		// A running kube-apiserver publishes enums (gate OpenAPIEnums), these documents do not.
		withoutEnums(got)
		withoutEnums(want)
		if !reflect.DeepEqual(got, want) {
			g, _ := json.MarshalIndent(got, "", " ")
			w, _ := json.MarshalIndent(want, "", " ")
			t.Errorf("%s differs:\nours: %.3000s\nupstream: %.3000s", name, g, w)
		}
		compared++
	}
	sort.Strings(missing)
	t.Logf("%d compared; upstream publishes no schema of %v", compared, missing)
	if compared < 500 {
		t.Errorf("only %d compared", compared)
	}
}

func withoutEnums(v any) {
	switch v := v.(type) {
	case map[string]any:
		if _, ok := v["enum"].([]any); ok {
			delete(v, "enum")
		}
		if d, ok := v["description"].(string); ok {
			text, _, _ := strings.Cut(d, "\n\nPossible enum values:")
			text, _, _ = strings.Cut(text, "Possible enum values:")
			v["description"] = strings.TrimSpace(text)
		}
		for _, child := range v {
			withoutEnums(child)
		}
	case []any:
		for _, child := range v {
			withoutEnums(child)
		}
	}
}
