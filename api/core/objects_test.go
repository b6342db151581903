package core

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/skiff-k8s/skiff/api"
)

// TestObjects compares what becomes of objects by defaulting, and the cells that
// kubectl prints of them, with what the upstream API server makes of them:
// testdata/served.yaml, which was made with it.
func TestObjects(t *testing.T) {
	in, err := os.ReadFile("testdata/objects.yaml")
	if err != nil {
		t.Fatal(err)
	}
	out, err := os.ReadFile("testdata/served.yaml")
	if err != nil {
		t.Fatal(err)
	}
	byKind := map[string]*api.Resource{}
	for _, r := range Resources() {
		byKind[r.Kind] = r
	}
	served := strings.Split(string(out), "\n---\n")
	for i, text := range strings.Split(string(in), "\n---\n") {
		var head struct{ Kind string }
		if err := yaml.Unmarshal([]byte(text), &head); err != nil {
			t.Fatal(err)
		}
		r := byKind[head.Kind]
		t.Run(fmt.Sprintf("%d/%s", i, head.Kind), func(t *testing.T) {
			got := shown(t, r, parse[api.Object](t, r, text))
			want := served[i]
			for got != "" && want != "" {
				var g, w string
				g, got, _ = strings.Cut(got, "\n")
				w, want, _ = strings.Cut(want, "\n")
				if g != w {
					t.Fatalf("got\n%s\n%s\nwant\n%s\n%s", g, got, w, want)
				}
			}
		})
	}
}

var age = regexp.MustCompile(`\b(\d+[ydhms])+\b`)

func shown(t *testing.T, r *api.Resource, obj api.Object) string {
	t.Helper()
	text, err := yaml.Marshal(obj)
	if err != nil {
		t.Fatal(err)
	}
	if r.Row == nil {
		return string(text)
	}
	row, err := json.Marshal(r.Row(obj, time.Now()))
	if err != nil {
		t.Fatal(err)
	}
	return string(text) + "row: " + age.ReplaceAllString(string(row), "AGE")
}
