package openapi

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	"google.golang.org/protobuf/proto"

	"github.com/skiff-k8s/skiff/apiserver/seams"
)

// v2Document is the one document of version 2.
type v2Document struct {
	json, proto []byte
	etag        string
}

const protoV2 = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"

func (h *Handler) serveV2(w http.ResponseWriter, req *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.refresh(); err != nil {
		h.broken(w, err)
		return
	}
	if h.v2 == nil {
		b, err := h.documentV2()
		if err != nil {
			h.broken(w, err)
			return
		}
		sum := sha256.Sum256(b)
		h.v2 = &v2Document{json: b, etag: `"` + strings.ToUpper(hex.EncodeToString(sum[:])) + `"`}
	}
	head := w.Header()
	head.Set("Etag", h.v2.etag)
	head.Set("Vary", "Accept-Encoding")
	head.Add("Vary", "Accept")
	if req.Header.Get("If-None-Match") == h.v2.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	body, media := h.v2.json, "application/json"
	// Old clients write the media type with an @ where newer ones have a dot.
	if a := strings.ReplaceAll(req.Header.Get("Accept"), "@", "."); strings.Contains(a, protoV2) {
		if h.v2.proto == nil {
			doc, err := openapi_v2.ParseDocument(h.v2.json)
			if err == nil {
				h.v2.proto, err = proto.Marshal(doc)
			}
			if err != nil {
				h.broken(w, fmt.Errorf("encoding OpenAPI v2 as protobuf: %w", err))
				return
			}
		}
		body, media = h.v2.proto, protoV2
	} else if a != "" && !acceptsJSON(a) {
		http.Error(w, "only the following media types are accepted: application/json, "+protoV2, http.StatusNotAcceptable)
		return
	}
	head.Set("Content-Type", media)
	if _, err := w.Write(body); err != nil {
		h.Logger.Debug("client went away", "err", err)
	}
}

// documentV2 builds the whole document.
func (h *Handler) documentV2() ([]byte, error) {
	all := map[string]any{}
	definitions := map[string]json.RawMessage{}
	var served []*seams.Served
	for _, k := range sortedKeys(h.groups) {
		served = append(served, h.groups[k].served...)
	}
	s, err := h.schemas(served)
	if err != nil {
		return nil, err
	}
	for p, item := range paths(served, h.Source, s, v2{}) {
		all[p] = item
	}
	for n, b := range s.used {
		if definitions[n], err = downgrade(b); err != nil {
			return nil, fmt.Errorf("schema %s: %w", n, err)
		}
	}
	return json.Marshal(map[string]any{
		"swagger":     "2.0",
		"info":        map[string]any{"title": "Kubernetes", "version": h.Version},
		"paths":       all,
		"definitions": definitions,
		"security":    []any{map[string]any{"BearerToken": []string{}}},
		"securityDefinitions": map[string]any{"BearerToken": map[string]any{
			"type": "apiKey", "description": "Bearer Token authentication", "name": "authorization", "in": "header"}},
	})
}

// downgrade turns a v3 schema into a v2 one: references move, a reference wrapped in
// allOf (to carry a default) is bare again, and what v2 does not know is dropped, in such
// a way that kubectl's validation by v2 accepts what the server does.
func downgrade(b json.RawMessage) (json.RawMessage, error) {
	b = bytes.ReplaceAll(b, []byte(schemaRef), []byte("#/definitions/"))
	var v map[string]any
	if err := json.Unmarshal(b, &v); err != nil {
		return nil, err
	}
	if v[preserve] == true { // anything goes: any property listed would close the schema
		out := map[string]any{"type": "object"}
		if k := v[kindExtension]; k != nil {
			out[kindExtension] = k
		}
		return json.Marshal(out)
	}
	return json.Marshal(down(v))
}

const (
	preserve      = "x-kubernetes-preserve-unknown-fields"
	kindExtension = "x-kubernetes-group-version-kind"
)

// down rewrites a schema.
func down(t map[string]any) map[string]any {
	if all, ok := t["allOf"].([]any); ok && len(all) == 1 {
		if ref, ok := all[0].(map[string]any); ok && ref["$ref"] != nil {
			out := map[string]any{"$ref": ref["$ref"]}
			if d := t["description"]; d != nil {
				out["description"] = d
			}
			return out
		}
	}
	for _, k := range []string{"allOf", "oneOf", "anyOf", "not", "deprecated", "writeOnly", "default"} {
		delete(t, k)
	}
	loosen(t)
	for _, k := range []string{"items", "additionalProperties"} {
		if s, ok := t[k].(map[string]any); ok {
			t[k] = down(s)
		}
	}
	if ps, ok := t["properties"].(map[string]any); ok {
		for name, p := range ps {
			s, ok := p.(map[string]any)
			if !ok {
				continue
			}
			if s["nullable"] == true {
				t["required"] = without(t["required"], name)
			}
			ps[name] = down(s)
		}
	}
	if r, ok := t["required"].([]any); ok && len(r) == 0 {
		delete(t, "required")
	}
	return t
}

// loosen takes away what makes kubectl refuse nulls and unknown fields.
func loosen(t map[string]any) {
	if t["nullable"] == true {
		for _, k := range []string{"nullable", "type", "items", "properties"} {
			delete(t, k)
		}
	}
	delete(t, "nullable")
	if t[preserve] == true {
		delete(t, "items")
		delete(t, "properties")
		if t["type"] == "object" {
			delete(t, "type")
		}
	}
	if t["type"] == "array" && t["items"] == nil {
		delete(t, "type")
	}
	if t["x-kubernetes-int-or-string"] == true {
		delete(t, "type")
	}
}

func without(list any, name string) any {
	l, ok := list.([]any)
	if !ok {
		return list
	}
	var out []any
	for _, v := range l {
		if v != name {
			out = append(out, v)
		}
	}
	return out
}
