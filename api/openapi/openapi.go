// Package openapi holds what the API's types look like: OpenAPI v3 schemas of every
// built-in type, and the same as a structured-merge-diff schema for managed fields.
//
// Owns: the two embedded artifacts and their decoding; tools/openapi generates them
// (make generate). Must not: keep what it decoded, that is the caller's choice; know
// paths or operations, which are the API server's.
package openapi

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"k8s.io/kube-openapi/pkg/validation/spec"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
)

// ComponentPrefix is what references between schemas start with.
const ComponentPrefix = "#/components/schemas/"

// components is a gzipped JSON object, from definition names to schemas.
//
//go:embed components.json.gz
var components []byte

// mergeSchema is written by EncodeSchema.
//
//go:embed mergeschema.bin
var mergeSchema []byte

// Parser knows how the fields of every built-in type merge (server-side apply, KEP-555).
// Types are named as DefinitionName says, so that it fits managedfields.NewSchemeTypeConverter.
// Decoding takes about a millisecond; keep the result.
func Parser() (*typed.Parser, error) {
	types, err := DecodeSchema(mergeSchema)
	if err != nil {
		return nil, fmt.Errorf("decode merge schema: %w", err)
	}
	return &typed.Parser{Schema: schema.Schema{Types: types}}, nil
}

// DefinitionName names a built-in Go type in the schemas, for example
// io.k8s.api.apps.v1.Deployment; empty for types that have none.
func DefinitionName(obj any) string {
	if named, ok := obj.(interface{ OpenAPIModelName() string }); ok {
		return named.OpenAPIModelName()
	}
	return ""
}

// Raw returns every schema as JSON.
func Raw() (map[string]json.RawMessage, error) {
	z, err := gzip.NewReader(bytes.NewReader(components))
	if err != nil {
		return nil, fmt.Errorf("unpack OpenAPI schemas: %w", err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		return nil, fmt.Errorf("unpack OpenAPI schemas: %w", err)
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("parse OpenAPI schemas: %w", err)
	}
	return all, nil
}

// Definitions returns every schema parsed. It is slow (tens of milliseconds) and large
// (some megabytes): documents are better made of Closure.
func Definitions() (map[string]*spec.Schema, error) {
	raw, err := Raw()
	if err != nil {
		return nil, err
	}
	all := make(map[string]*spec.Schema, len(raw))
	for name, text := range raw {
		s := &spec.Schema{}
		if err := json.Unmarshal(text, s); err != nil {
			return nil, fmt.Errorf("parse OpenAPI schema %s: %w", name, err)
		}
		all[name] = s
	}
	return all, nil
}

// Closure picks the named schemas and all that they refer to, directly or not.
func Closure(all map[string]json.RawMessage, names ...string) (map[string]json.RawMessage, error) {
	picked := make(map[string]json.RawMessage, len(names))
	for len(names) > 0 {
		name := names[len(names)-1]
		names = names[:len(names)-1]
		if _, ok := picked[name]; ok {
			continue
		}
		text, ok := all[name]
		if !ok {
			return nil, fmt.Errorf("no OpenAPI schema %s", name)
		}
		picked[name] = text
		names = append(names, references(string(text))...)
	}
	return picked, nil
}

// references finds what a schema refers to. A description can't hold the needle: its
// quotes would be escaped.
func references(text string) []string {
	const needle = `"$ref":"` + ComponentPrefix
	var names []string
	for {
		_, rest, ok := strings.Cut(text, needle)
		if !ok {
			return names
		}
		name, rest, _ := strings.Cut(rest, `"`)
		names = append(names, name)
		text = rest
	}
}
