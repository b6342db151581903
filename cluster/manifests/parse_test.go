package manifests

import (
	"fmt"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tt := range []struct{ name, file, text, want string }{
		{"documents with their lines", "a.yaml", "# comment\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\n\n# more\napiVersion: v1\nkind: Secret\nmetadata: {name: b, namespace: ns}\n---\n---\n",
			"a.yaml:3 ConfigMap a, a.yaml:9 Secret ns/b"},
		{"windows", "a.yaml", "apiVersion: v1\r\nkind: ConfigMap\r\nmetadata: {name: a}\r\n---\r\napiVersion: v1\r\nkind: ConfigMap\r\nmetadata: {name: b}\r\n", "a.yaml:1 ConfigMap a, a.yaml:5 ConfigMap b"},
		{"a document on the marker's line", "a.yaml", "--- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n", "a.yaml:1 ConfigMap a"},
		{"dashes in text are none", "a.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata:\n  k: |\n    ---\n    b\n", "a.yaml:1 ConfigMap a"},
		{"a list", "a.yml", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}}\n- {apiVersion: v1, kind: ConfigMap, metadata: {name: b}}\n", "a.yml:1 ConfigMap a, a.yml:1 ConfigMap b"},
		{"json", "a.json", "\n{\"apiVersion\":\"v1\",\t\"kind\":\"ConfigMap\",\n\"metadata\":{\"name\":\"a\"}}\n\n{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"b\"}}", "a.json:2 ConfigMap a, a.json:5 ConfigMap b"},
		{"json in yaml", "a.yaml", "{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{\"name\":\"a\"}}", "a.yaml:1 ConfigMap a"},
		{"nothing", "a.yaml", "# only\n---\n", ""},
		{"empty", "a.json", "", ""},

		{"syntax", "a.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\napiVersion: v1\n  kind: x\n", "a.yaml:6: mapping values are not allowed in this context"},
		{"tabs", "a.yaml", "a:\n\tb: c\n", "a.yaml:2: found character that cannot start any token"},
		{"a key twice", "a.yaml", "apiVersion: v1\nkind: ConfigMap\nkind: ConfigMap\n", `a.yaml:3: key "kind" already set in map`},
		{"json syntax", "a.json", "{\n\"a\": }\n", "a.json:2: invalid character '}' looking for beginning of value"},
		{"json cut off", "a.json", "{\n\"a\": 1\n", "a.json:3: unexpected EOF"},
		{"no object", "a.yaml", "# c\n- a\n", "a.yaml:2: not an object"},
		{"no kind", "a.yaml", "---\napiVersion: v1\n", "a.yaml:2: kind is missing"},
		{"a number for apiVersion", "a.yaml", "apiVersion: 1\nkind: x\n", "a.yaml:1: apiVersion: want a string"},
		{"no name", "a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {}\n", "a.yaml:1: metadata.name is missing"},
		{"a generated name", "a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {generateName: a-}\n", "a.yaml:1: metadata.generateName"},
		{"a label that is a number", "a.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: a, labels: {x: 1}}\n", "a.yaml:1: metadata.labels.x: want a string; put it in quotes"},
		{"a bad item", "a.yaml", "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: v1}\n", "a.yaml:1: items[0]: kind is missing"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			found, err := Parse(tt.file, []byte(tt.text))
			var got []string
			for _, o := range found {
				got = append(got, fmt.Sprintf("%s %s", o.At(), what(o.Unstructured)))
			}
			if err != nil {
				got = []string{err.Error()}
			}
			if s := strings.Join(got, ", "); s != tt.want && (err == nil || tt.want == "" || !strings.HasPrefix(s, tt.want)) {
				t.Errorf("got  %s\nwant %s", s, tt.want)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n---\nkind: List\nitems: []\n", false)
	f.Add(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"a":"b"}}} {"kind":1}`, true)
	f.Fuzz(func(t *testing.T, text string, isJSON bool) {
		name := "f.yaml"
		if isJSON {
			name = "f.json"
		}
		found, err := Parse(name, []byte(text))
		if err != nil && (!strings.HasPrefix(err.Error(), name+":") || strings.ContainsAny(err.Error(), "\n")) {
			t.Errorf("error %q is no line that begins with its place", err)
		}
		lines := strings.Count(text, "\n") + 1
		for _, o := range found {
			if o.Line < 1 || o.Line > lines {
				t.Errorf("line %d of %d", o.Line, lines)
			}
			if o.GetKind() == "" || o.GetName() == "" || o.GetAPIVersion() == "" {
				t.Errorf("object without identity: %v", o.Object)
			}
			o.GetLabels() // panics on none
			o.GetAnnotations()
			o.DeepCopy()
		}
	})
}
