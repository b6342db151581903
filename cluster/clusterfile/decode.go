package clusterfile

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxSize bounds what is read; a file of a cluster has a few kilobytes.
const maxSize = 1 << 20

// decoder fills Go values from YAML nodes, strictly, and remembers on which line each field is.
type decoder struct {
	file  string
	lines map[string]int // by path
}

// fault is an error of the file: FILE:LINE: PATH: what.
func (d *decoder) fault(path string, line int, format string, args ...any) error {
	if path != "" {
		path += ": "
	}
	return fmt.Errorf("%s:%d: %s%s", d.file, max(line, 1), path, fmt.Sprintf(format, args...))
}

// at is a fault at a path that was decoded, or else at what it is in.
func (d *decoder) at(path, format string, args ...any) error {
	for p := path; ; p = parent(p) {
		if line, ok := d.lines[p]; ok {
			return d.fault(path, line, format, args...)
		}
		if p == "" {
			return d.fault(path, 1, format, args...)
		}
	}
}

func parent(path string) string { return path[:max(strings.LastIndexAny(path, ".["), 0)] }

var yamlError = regexp.MustCompile(`^(?:yaml: )?line (\d+): (.*)$`)

// parse reads the one document of a file.
func (d *decoder) parse(data []byte) (*yaml.Node, error) {
	if len(data) > maxSize {
		return nil, d.fault("", 1, "the file has %d KiB, more than %d", len(data)>>10, maxSize>>10)
	}
	in := yaml.NewDecoder(strings.NewReader(string(data)))
	var doc yaml.Node
	if err := in.Decode(&doc); err != nil {
		text := strings.Join(strings.Fields(err.Error()), " ")
		if m := yamlError.FindStringSubmatch(text); m != nil {
			line, _ := strconv.Atoi(m[1]) // the expression took digits
			return nil, d.fault("", line, "%s", m[2])
		}
		if text == "EOF" {
			text = "the file is empty"
		}
		return nil, d.fault("", 1, "%s", strings.TrimPrefix(text, "yaml: "))
	}
	if len(doc.Content) != 1 {
		return nil, d.fault("", 1, "the file is empty")
	}
	var more yaml.Node
	if err := in.Decode(&more); err == nil {
		return nil, d.fault("", more.Line, "a second document; a file holds one cluster")
	}
	return doc.Content[0], nil
}

// value decodes node into v, which is settable.
func (d *decoder) value(node *yaml.Node, path string, v reflect.Value) error {
	d.lines[path] = node.Line
	if node.Kind == yaml.AliasNode {
		node = node.Alias
		if node.Kind == yaml.AliasNode || len(d.lines) > 1<<16 {
			return d.fault(path, node.Line, "too many aliases")
		}
	}
	if node.ShortTag() == "!!null" {
		return d.fault(path, node.Line, "has no value; leave the field out")
	}
	if t, ok := v.Addr().Interface().(*Values); ok {
		if err := t.fromNode(node); err != nil {
			return d.fault(path, node.Line, "%s", err)
		}
		return nil
	}
	if t, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		text, err := d.scalar(node, path, "!!str", "a string")
		if err != nil {
			return err
		}
		if err := t.UnmarshalText([]byte(text)); err != nil {
			return d.fault(path, node.Line, "%q: %s", text, err)
		}
		return nil
	}
	switch v.Kind() {
	case reflect.Struct:
		return d.fields(node, path, v)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		return d.value(node, path, v.Elem())
	case reflect.Slice:
		return d.list(node, path, v)
	case reflect.Map:
		return d.entries(node, path, v)
	case reflect.String:
		text, err := d.scalar(node, path, "!!str", "a string")
		v.SetString(text)
		return err
	case reflect.Bool:
		text, err := d.scalar(node, path, "!!bool", "true or false")
		v.SetBool(text == "true")
		return err
	case reflect.Int, reflect.Uint16:
		return d.number(node, path, v)
	}
	return fmt.Errorf("clusterfile: fields of type %s are not decoded", v.Type())
}

func (d *decoder) scalar(node *yaml.Node, path, tag, want string) (string, error) {
	if node.Kind != yaml.ScalarNode || node.ShortTag() != tag {
		hint := ""
		if node.Kind == yaml.ScalarNode && tag == "!!str" {
			hint = "; put it in quotes"
		}
		return "", d.fault(path, node.Line, "want %s, not %s%s", want, kind(node), hint)
	}
	return node.Value, nil
}

func (d *decoder) number(node *yaml.Node, path string, v reflect.Value) error {
	text, err := d.scalar(node, path, "!!int", "a whole number")
	if err != nil {
		return err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return d.fault(path, node.Line, "want a whole number, not %s", text)
	}
	if v.Kind() == reflect.Uint16 {
		if n < 1 || n > 65535 {
			return d.fault(path, node.Line, "%d is no port; ports are 1 to 65535", n)
		}
		v.SetUint(uint64(n))
		return nil
	}
	v.SetInt(n)
	return nil
}

func kind(node *yaml.Node) string {
	switch node.Kind {
	case yaml.MappingNode:
		return "a map"
	case yaml.SequenceNode:
		return "a list"
	}
	switch node.ShortTag() {
	case "!!str":
		return fmt.Sprintf("the string %q", node.Value)
	case "!!int", "!!float":
		return "the number " + node.Value
	case "!!bool":
		return node.Value
	}
	return node.Value
}

func (d *decoder) list(node *yaml.Node, path string, v reflect.Value) error {
	if node.Kind != yaml.SequenceNode {
		return d.fault(path, node.Line, "want a list, not %s", kind(node))
	}
	out := reflect.MakeSlice(v.Type(), len(node.Content), len(node.Content))
	for i, item := range node.Content {
		if err := d.value(item, fmt.Sprintf("%s[%d]", path, i), out.Index(i)); err != nil {
			return err
		}
	}
	v.Set(out)
	return nil
}

// pairs calls f for each key of a map, which must be a string that comes once.
func (d *decoder) pairs(node *yaml.Node, path string, f func(key, value *yaml.Node) error) error {
	if node.Kind != yaml.MappingNode {
		return d.fault(path, node.Line, "want a map, not %s", kind(node))
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key := node.Content[i]
		if key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str" {
			return d.fault(path, key.Line, "want a string as key, not %s", kind(key))
		}
		if line, ok := seen[key.Value]; ok {
			return d.fault(join(path, key.Value), key.Line, "is on line %d already", line)
		}
		seen[key.Value] = key.Line
		if err := f(key, node.Content[i+1]); err != nil {
			return err
		}
	}
	return nil
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func (d *decoder) entries(node *yaml.Node, path string, v reflect.Value) error {
	out := reflect.MakeMap(v.Type())
	err := d.pairs(node, path, func(key, value *yaml.Node) error {
		e := reflect.New(v.Type().Elem()).Elem()
		if err := d.value(value, join(path, key.Value), e); err != nil {
			return err
		}
		out.SetMapIndex(reflect.ValueOf(key.Value), e)
		return nil
	})
	v.Set(out)
	return err
}

func (d *decoder) fields(node *yaml.Node, path string, v reflect.Value) error {
	byName := map[string]int{}
	var names []string
	for i := range v.NumField() {
		if name := v.Type().Field(i).Tag.Get("yaml"); name != "" {
			byName[name] = i
			names = append(names, name)
		}
	}
	return d.pairs(node, path, func(key, value *yaml.Node) error {
		i, ok := byName[key.Value]
		if !ok {
			slices.Sort(names)
			return d.fault(join(path, key.Value), key.Line, "there is no such field; there are %s", strings.Join(names, ", "))
		}
		return d.value(value, join(path, key.Value), v.Field(i))
	})
}

// Values are one scalar or a list of them, as text: what a flag is given.
type Values []string

var errValues = errors.New("want a value or a list of values")

func (v *Values) fromNode(node *yaml.Node) error {
	items := []*yaml.Node{node}
	if node.Kind == yaml.SequenceNode {
		items = node.Content
	}
	*v = Values{}
	for _, n := range items {
		if n.Kind != yaml.ScalarNode || n.ShortTag() == "!!null" {
			return errValues
		}
		*v = append(*v, n.Value)
	}
	return nil
}
