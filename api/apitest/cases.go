package apitest

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/meta"
)

// Case is what validation answers to one object or change. What a case expects was
// taken from the upstream API server (test/upstream/apidiff writes it).
//
// A file has the cases of one resource. A case begins with a line "# name" for a
// create, or "# name [update]" (or the name of a subresource) for an update. Then
// comes a patch of the case "base"; after "=>" a second one, for what the update
// changes. "> " begins an error, "! " a warning.
type Case struct {
	Name, Endpoint   string
	Patches          []string
	Errors, Warnings []string
}

// ReadCases reads the cases of a file.
func ReadCases(file string) ([]Case, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var cases []Case
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "# "); ok {
			c := Case{Name: name, Patches: []string{""}}
			if before, rest, has := strings.Cut(name, " ["); has {
				c.Name, c.Endpoint = before, strings.TrimSuffix(rest, "]")
			}
			cases = append(cases, c)
			continue
		}
		if len(cases) == 0 {
			return nil, fmt.Errorf("%s: %q is before the first case", file, line)
		}
		c := &cases[len(cases)-1]
		if text, ok := strings.CutPrefix(line, "> "); ok {
			c.Errors = append(c.Errors, text)
		} else if text, ok := strings.CutPrefix(line, "! "); ok {
			c.Warnings = append(c.Warnings, text)
		} else if line == "=>" {
			c.Patches = append(c.Patches, "")
		} else {
			c.Patches[len(c.Patches)-1] += line + "\n"
		}
	}
	return cases, nil
}

// Texts are the objects of the case as YAML: the one created, or the old one and
// the changed one. base is the first case of the file.
func (c Case) Texts(base Case) ([]string, error) {
	patches := c.Patches
	if c.Name != base.Name {
		patches = append([]string{base.Patches[0]}, patches...)
	}
	var value any
	var texts []string
	for i, text := range patches {
		var patch any
		if err := yaml.Unmarshal([]byte(text), &patch); err != nil {
			return nil, fmt.Errorf("%s: %w in\n%s", c.Name, err, text)
		}
		if patch == nil {
			patch = map[string]any{}
		}
		if i == 0 {
			value = patch
		} else {
			value = patched(value, patch)
		}
		if i == 0 && c.Name != base.Name {
			continue
		}
		all, err := yaml.Marshal(value)
		if err != nil {
			return nil, err
		}
		texts = append(texts, string(all))
	}
	return texts, nil
}

// patched merges a patch into a value: objects key by key, where null removes;
// an object patches a list's items by their index.
func patched(value, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	switch value := value.(type) {
	case map[string]any:
		merged := maps.Clone(value)
		for k, v := range changes {
			if v == nil {
				delete(merged, k)
			} else {
				merged[k] = patched(merged[k], v)
			}
		}
		return merged
	case []any:
		merged := slices.Clone(value)
		for k, v := range changes {
			if i, err := strconv.Atoi(k); err == nil && i < len(merged) {
				merged[i] = patched(merged[i], v)
			}
		}
		return merged
	}
	return patch
}

// Told are texts of errors in order, each once, without what Go prints of values
// and without the differences that may follow the first line.
func Told(list []string) []string {
	var short []string
	for _, text := range list {
		short = append(short, told(text))
	}
	slices.Sort(short)
	return slices.Compact(short)
}

func told(text string) string {
	text, _, _ = strings.Cut(text, "\n")
	for _, label := range []string{"nvalid value: ", "Duplicate value: ", "Unsupported value: "} {
		before, rest, has := strings.Cut(text, label)
		if !has || !strings.HasPrefix(rest, "{") && !strings.HasPrefix(rest, "[") {
			continue
		}
		after := ""
		if i := strings.LastIndexAny(rest, "}]"); i >= 0 {
			after = rest[i+1:]
		}
		return before + label + "…" + after
	}
	return text
}

// CheckCases runs the cases of testdata/<plural>.txt against the resources.
func CheckCases(t *testing.T, resources []*api.Resource) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, file := range files {
		plural := strings.TrimSuffix(filepath.Base(file), ".txt")
		i := slices.IndexFunc(resources, func(r *api.Resource) bool { return r.Plural == plural })
		if i < 0 {
			t.Errorf("%s: no such resource", file)
			continue
		}
		cases, err := ReadCases(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range cases {
			t.Run(plural+"/"+c.Name, func(t *testing.T) { c.check(t, resources[i], cases[0]) })
		}
	}
}

func (c Case) check(t *testing.T, r *api.Resource, base Case) {
	texts, err := c.Texts(base)
	if err != nil {
		t.Fatal(err)
	}
	var objs []api.Object
	for _, text := range texts {
		obj := r.New()
		if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		obj.SetResourceVersion("5")
		objs = append(objs, obj)
	}
	var errs, warnings []string
	if len(objs) == 1 {
		errs = Create(r, objs[0])
		errs = append(errs, Texts(meta.ValidateObjectMeta(objs[0], r.Namespaced, r.NameErrors))...)
		if len(errs) == 0 && r.Warnings != nil {
			warnings = r.Warnings(t.Context(), objs[0], nil)
		}
	} else {
		if r.Default != nil {
			r.Default(objs[0])
		}
		if c.Endpoint == "update" {
			errs = Update(r, objs[1], objs[0])
		} else {
			errs = UpdateSub(t, r, c.Endpoint, objs[1], objs[0])
		}
		errs = append(errs, Texts(meta.ValidateObjectMetaUpdate(objs[1], objs[0], r.Namespaced))...)
	}
	same(t, "errors", Told(errs), c.Errors)
	same(t, "warnings", Told(warnings), c.Warnings)
}

func same(t *testing.T, what string, got, want []string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("%s: got\n  %s\nwant\n  %s", what, strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}
