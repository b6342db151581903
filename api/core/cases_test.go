package core

import (
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

// The files in testdata, one a resource, say what validation answers. What they
// expect was taken from the upstream API server. A case begins with a line
// "# name" for a create, or "# name [update]" (or [status], [resize] …) for an
// update; it is a patch of the case "base", of which "=>" starts a second one for
// what the update changes. "> " begins an error, "! " a warning.

type testCase struct {
	name, endpoint  string
	patches         []string
	errors, warning []string
}

func readCases(t *testing.T, file string) []testCase {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var cases []testCase
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, "# "); ok {
			c := testCase{name: name, patches: []string{""}}
			if before, rest, has := strings.Cut(name, " ["); has {
				c.name, c.endpoint = before, strings.TrimSuffix(rest, "]")
			}
			cases = append(cases, c)
			continue
		}
		c := &cases[len(cases)-1]
		if text, ok := strings.CutPrefix(line, "> "); ok {
			c.errors = append(c.errors, text)
		} else if text, ok := strings.CutPrefix(line, "! "); ok {
			c.warning = append(c.warning, text)
		} else if line == "=>" {
			c.patches = append(c.patches, "")
		} else {
			c.patches[len(c.patches)-1] += line + "\n"
		}
	}
	return cases
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
			i, err := strconv.Atoi(k)
			if err != nil {
				panic(err)
			}
			merged[i] = patched(merged[i], v)
		}
		return merged
	}
	return patch
}

func object(t *testing.T, r *api.Resource, value any) api.Object {
	t.Helper()
	text, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	obj := parse[api.Object](t, r, string(text))
	obj.SetResourceVersion("5")
	return obj
}

// told is an error without what is printed of Go values, and without the
// differences that follow the first line.
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

func toldAll(list []string) []string {
	var short []string
	for _, text := range list {
		short = append(short, told(text))
	}
	slices.Sort(short)
	return slices.Compact(short)
}

func TestValidation(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no cases", err)
	}
	for _, file := range files {
		r := resourceNamed(t, strings.TrimSuffix(filepath.Base(file), ".txt"))
		var base any
		for _, c := range readCases(t, file) {
			t.Run(r.Plural+"/"+c.name, func(t *testing.T) {
				var patches []any
				for _, text := range c.patches {
					var patch any
					if err := yaml.Unmarshal([]byte(text), &patch); err != nil {
						t.Fatalf("%v in\n%s", err, text)
					}
					if patch == nil {
						patch = map[string]any{}
					}
					patches = append(patches, patch)
				}
				if c.name == "base" {
					base = patches[0]
					patches[0] = map[string]any{}
				}
				first := patched(base, patches[0])
				obj := object(t, r, first)
				if len(patches) == 1 {
					list := created(t, r, obj)
					list = append(list, messages(meta.ValidateObjectMeta(obj, r.Namespaced, r.NameErrors))...)
					expect(t, toldAll(list), c.errors...)
					if r.Warnings != nil && len(c.errors) == 0 {
						expect(t, toldAll(r.Warnings(t.Context(), obj, nil)), c.warning...)
					}
					return
				}
				s := r.Strategy
				if c.endpoint != "update" {
					s = subresource(t, r, c.endpoint)
				}
				changed := object(t, r, patched(first, patches[1]))
				list := updated(t, s, changed, obj)
				list = append(list, messages(meta.ValidateObjectMetaUpdate(changed, obj, r.Namespaced))...)
				expect(t, toldAll(list), c.errors...)
			})
		}
	}
}
