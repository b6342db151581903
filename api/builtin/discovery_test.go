package builtin

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/skiff-k8s/skiff/api"
)

// TestDiscovery compares what is declared with what upstream's discovery lists, in
// testdata/discovery.txt. Subresources with behaviour of their own are the API
// server's and not looked at.
func TestDiscovery(t *testing.T) {
	text, err := os.ReadFile("testdata/discovery.txt")
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]string{}
	for _, r := range Resources() {
		for _, line := range lines(r) {
			name, rest, _ := strings.Cut(line, ": ")
			declared[name] = rest
		}
	}
	var missing []string
	for line := range strings.Lines(string(text)) {
		name, want, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		got, has := declared[name]
		delete(declared, name)
		if !has {
			missing = append(missing, name)
		} else if got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	for name := range declared {
		t.Errorf("%s is not upstream's", name)
	}
	// What nobody declares is the server's own.
	missing = slices.DeleteFunc(missing, func(name string) bool {
		_, sub, _ := strings.Cut(name, " ")
		_, sub, is := strings.Cut(sub, "/")
		own := []string{"attach", "binding", "eviction", "exec", "log", "portforward", "proxy", "token"}
		return is && slices.Contains(own, sub)
	})
	if len(missing) > 0 {
		t.Errorf("not declared: %s", strings.Join(missing, ", "))
	}
}

// lines are a resource and its subresources in the form of the file.
func lines(r *api.Resource) []string {
	verbs := r.Verbs
	if verbs == nil {
		verbs = []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
	}
	singular := r.Singular
	if singular == "" {
		singular = strings.ToLower(r.Kind)
	}
	gv := r.GVR().GroupVersion().String()
	line := func(plural, kind, singular string, verbs, short, categories []string) string {
		scope := "cluster"
		if r.Namespaced {
			scope = "namespaced"
		}
		verbs = slices.Clone(verbs)
		slices.Sort(verbs)
		return strings.TrimSpace(fmt.Sprintf("%s %s: %s %q %s [%s] [%s] [%s]", gv, plural, kind, singular, scope,
			strings.Join(verbs, ","), strings.Join(short, ","), strings.Join(categories, ",")))
	}
	list := []string{line(r.Plural, r.Kind, singular, verbs, r.ShortNames, r.Categories)}
	for _, s := range r.Subresources {
		list = append(list, line(r.Plural+"/"+s.Name, r.Kind, "", s.Verbs, nil, nil))
	}
	if r.Scale != nil {
		list = append(list, line(r.Plural+"/scale", "Scale", "", []string{"get", "patch", "update"}, nil, nil))
	}
	return list
}
