package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Object is what a file wants to be there.
type Object struct {
	*unstructured.Unstructured
	// File and Line are where it begins.
	File string
	Line int
}

// At is the place as FILE:LINE.
func (o Object) At() string { return fmt.Sprintf("%s:%d", o.File, o.Line) }

// what names an object for people.
func what(u *unstructured.Unstructured) string {
	if ns := u.GetNamespace(); ns != "" {
		return u.GetKind() + " " + ns + "/" + u.GetName()
	}
	return u.GetKind() + " " + u.GetName()
}

// Parse reads all objects of a file: YAML documents, or JSON ones behind each other. An error
// is one line that begins with FILE:LINE.
func Parse(file string, data []byte) ([]Object, error) {
	var docs []document
	var err error
	if strings.EqualFold(filepath.Ext(file), ".json") {
		docs, err = jsonDocuments(data)
	} else {
		docs, err = yamlDocuments(data)
	}
	if err != nil {
		return nil, place(file, 1, err)
	}
	var out []Object
	for _, d := range docs {
		found, err := objects(d.value, file, d.line)
		if err != nil {
			return nil, place(file, d.line, err)
		}
		out = append(out, found...)
	}
	return out, nil
}

// document is one value and the line where it begins.
type document struct {
	line  int
	value map[string]any
}

// lineError is an error at a line of the file.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return e.err.Error() }

func place(file string, line int, err error) error {
	var at *lineError
	if errors.As(err, &at) {
		line = at.line
	}
	return fmt.Errorf("%s:%d: %s", file, line, strings.Join(strings.Fields(err.Error()), " "))
}

func jsonDocuments(data []byte) ([]document, error) {
	var out []document
	d := json.NewDecoder(bytes.NewReader(data))
	for {
		begin := d.InputOffset()
		begin += int64(len(data[begin:]) - len(bytes.TrimLeft(data[begin:], " \t\r\n")))
		line := 1 + bytes.Count(data[:begin], []byte("\n"))
		var raw json.RawMessage
		switch err := d.Decode(&raw); {
		case errors.Is(err, io.EOF):
			return out, nil
		case err != nil:
			var syntax *json.SyntaxError
			if errors.As(err, &syntax) {
				line = 1 + bytes.Count(data[:min(max(syntax.Offset-1, 0), int64(len(data)))], []byte("\n"))
			} else if errors.Is(err, io.ErrUnexpectedEOF) {
				line = 1 + bytes.Count(data, []byte("\n"))
			}
			return nil, &lineError{line, err}
		}
		value, err := decode(raw)
		if err != nil {
			return nil, &lineError{line, err}
		}
		out = append(out, document{line, value})
	}
}

var yamlLine = regexp.MustCompile(`line (\d+): (.*)`)

// yamlDocuments splits at the markers itself, so that lines can be counted.
func yamlDocuments(data []byte) ([]document, error) {
	var out []document
	var text []byte
	begin, n := 1, 0 // the first line of text; lines read
	flush := func() error {
		defer func() { text, begin = nil, n+1 }()
		first, ok := firstContent(text)
		if !ok {
			return nil
		}
		raw, err := yaml.YAMLToJSONStrict(text)
		if err != nil {
			if m := yamlLine.FindStringSubmatch(strings.Join(strings.Fields(err.Error()), " ")); m != nil {
				if l, bad := strconv.Atoi(m[1]); bad == nil {
					return &lineError{begin + l - 1, errors.New(m[2])}
				}
			}
			return &lineError{begin + first, err}
		}
		value, err := decode(raw)
		if err != nil {
			return &lineError{begin + first, err}
		}
		if value != nil {
			out = append(out, document{begin + first, value})
		}
		return nil
	}
	for line := range bytes.Lines(data) {
		if marker(line) {
			if err := flush(); err != nil {
				return nil, err
			}
			n++
			begin = n + 1
			if rest := bytes.TrimSpace(line[3:]); len(rest) > 0 && rest[0] != '#' { // --- {"kind": …}
				text, begin = append(text, append(rest, '\n')...), n
			}
			continue
		}
		n++
		text = append(text, line...)
	}
	return out, flush()
}

func marker(line []byte) bool {
	return bytes.HasPrefix(line, []byte("---")) && (len(line) == 3 || strings.ContainsRune(" \t\r\n", rune(line[3])))
}

// firstContent is the index of the first line that holds more than comments.
func firstContent(text []byte) (int, bool) {
	i := 0
	for line := range bytes.Lines(text) {
		if s := bytes.TrimSpace(line); len(s) > 0 && s[0] != '#' && s[0] != '%' {
			return i, true
		}
		i++
	}
	return 0, false
}

func decode(raw []byte) (map[string]any, error) {
	if s := bytes.TrimSpace(raw); len(s) == 0 || string(s) == "null" {
		return nil, nil
	}
	if bytes.TrimSpace(raw)[0] != '{' {
		return nil, errors.New("not an object: want apiVersion, kind and metadata")
	}
	var u unstructured.Unstructured
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v map[string]any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	u.Object = numbers(v).(map[string]any)
	return u.Object, nil
}

// numbers makes integers of what is one, as unstructured objects have them.
func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			v[k] = numbers(e)
		}
	case []any:
		for i, e := range v {
			v[i] = numbers(e)
		}
	case json.Number:
		if i, err := v.Int64(); err == nil {
			return i
		}
		if f, err := v.Float64(); err == nil {
			return f
		}
		return v.String()
	}
	return v
}

// objects checks what every object has, and takes lists apart.
func objects(value map[string]any, file string, line int) ([]Object, error) {
	if value == nil {
		return nil, nil
	}
	for _, field := range []string{"apiVersion", "kind"} {
		switch s, ok := value[field].(string); {
		case value[field] == nil || ok && s == "":
			return nil, fmt.Errorf("%s is missing", field)
		case !ok:
			return nil, fmt.Errorf("%s: want a string", field)
		}
	}
	u := &unstructured.Unstructured{Object: value}
	if items, ok := value["items"]; ok && strings.HasSuffix(u.GetKind(), "List") {
		list, ok := items.([]any)
		if !ok {
			return nil, errors.New("items: want a list")
		}
		var out []Object
		for i, item := range list {
			m, ok := item.(map[string]any)
			if !ok {
				return nil, fmt.Errorf("items[%d]: want an object", i)
			}
			found, err := objects(m, file, line)
			if err != nil {
				return nil, fmt.Errorf("items[%d]: %w", i, err)
			}
			out = append(out, found...)
		}
		return out, nil
	}
	meta, ok := value["metadata"].(map[string]any)
	switch {
	case value["metadata"] != nil && !ok:
		return nil, errors.New("metadata: want an object")
	case meta["generateName"] != nil:
		return nil, errors.New("metadata.generateName: what is applied again needs metadata.name")
	}
	for _, field := range []string{"name", "namespace"} {
		if s, ok := meta[field].(string); !ok && meta[field] != nil {
			return nil, fmt.Errorf("metadata.%s: want a string", field)
		} else if field == "name" && s == "" {
			return nil, errors.New("metadata.name is missing")
		}
	}
	for _, field := range []string{"labels", "annotations"} {
		m, ok := meta[field].(map[string]any)
		if meta[field] != nil && !ok {
			return nil, fmt.Errorf("metadata.%s: want an object", field)
		}
		for k, v := range m {
			if _, ok := v.(string); !ok {
				return nil, fmt.Errorf("metadata.%s.%s: want a string; put it in quotes", field, k)
			}
		}
	}
	return []Object{{u, file, line}}, nil
}
