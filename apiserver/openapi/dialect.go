package openapi

// v3 is OpenAPI 3.0.
type v3 struct{}

func (v3) refPrefix() string { return schemaRef }

func (v3) parameter(name, in, typ, description string) map[string]any {
	return map[string]any{"name": name, "in": in, "description": description,
		"schema": map[string]any{"type": typ, "uniqueItems": true}}
}

func (v3) body(op, schema map[string]any, media []string) {
	op["requestBody"] = map[string]any{"content": content(schema, media)}
}

func (v3) response(schema map[string]any, media []string) map[string]any {
	return map[string]any{"description": "OK", "content": content(schema, media)}
}

func (v3) produces(map[string]any, []string) {}

func content(schema map[string]any, media []string) map[string]any {
	out := map[string]any{}
	for _, m := range media {
		out[m] = map[string]any{"schema": schema}
	}
	return out
}

// v2 is OpenAPI 2.0 ("Swagger").
type v2 struct{}

func (v2) refPrefix() string { return "#/definitions/" }

func (v2) parameter(name, in, typ, description string) map[string]any {
	return map[string]any{"name": name, "in": in, "description": description, "type": typ, "uniqueItems": true}
}

func (v2) body(op, schema map[string]any, media []string) {
	params, _ := op["parameters"].([]any)
	op["parameters"] = append(params, map[string]any{"name": "body", "in": "body", "schema": schema})
	op["consumes"] = media
}

func (v2) response(schema map[string]any, _ []string) map[string]any {
	return map[string]any{"description": "OK", "schema": schema}
}

func (v2) produces(op map[string]any, media []string) {
	op["produces"] = media
	op["schemes"] = []string{"https"}
}
