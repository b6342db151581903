// Command render writes the artifacts of api/openapi from the Go code that openapi-gen
// generated: render DIR.
package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/builder3"
	"k8s.io/kube-openapi/pkg/common"
	"k8s.io/kube-openapi/pkg/schemaconv"
	"k8s.io/kube-openapi/pkg/validation/spec"

	smdschema "sigs.k8s.io/structured-merge-diff/v6/schema"

	"github.com/skiff-k8s/skiff/api/builtin"
	"github.com/skiff-k8s/skiff/api/openapi"
	"github.com/skiff-k8s/skiff/tools/openapi/generated"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: render DIR")
		os.Exit(2)
	}
	if err := render(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func render(dir string) error {
	schemas, err := components()
	if err != nil {
		return err
	}
	text, err := json.Marshal(schemas) // keys in order: the same types give the same bytes
	if err != nil {
		return fmt.Errorf("encode schemas: %w", err)
	}
	var packed bytes.Buffer
	z, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := z.Write(text); err != nil {
		return fmt.Errorf("pack schemas: %w", err)
	}
	if err := z.Close(); err != nil {
		return fmt.Errorf("pack schemas: %w", err)
	}
	merge, err := schemaconv.ToSchemaFromOpenAPI(schemas, false)
	if err != nil {
		return fmt.Errorf("make merge schema: %w", err)
	}
	slices.SortFunc(merge.Types, func(a, b smdschema.TypeDef) int { return cmp.Compare(a.Name, b.Name) })
	for i := range merge.Types {
		sortFields(&merge.Types[i].Atom)
	}
	binary, err := openapi.EncodeSchema(merge.Types)
	if err != nil {
		return fmt.Errorf("encode merge schema: %w", err)
	}
	for name, data := range map[string][]byte{"components.json.gz": packed.Bytes(), "mergeschema.bin": binary} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
		fmt.Printf("%s: %d bytes\n", name, len(data))
	}
	fmt.Printf("%d schemas, %d bytes unpacked\n", len(schemas), len(text))
	return nil
}

// sortFields makes the same types give the same bytes.
func sortFields(a *smdschema.Atom) {
	if a.List != nil {
		sortFields(&a.List.ElementType.Inlined)
	}
	if a.Map == nil {
		return
	}
	sortFields(&a.Map.ElementType.Inlined)
	slices.SortFunc(a.Map.Fields, func(a, b smdschema.StructField) int { return cmp.Compare(a.Name, b.Name) })
	for i := range a.Map.Fields {
		sortFields(&a.Map.Fields[i].Type.Inlined)
	}
}

// components are the schemas of the types that the server's scheme knows, and of all
// that these hold.
func components() (map[string]*spec.Schema, error) {
	scheme := builtin.Scheme()
	kinds := kindsByName(scheme)
	definitions := generated.GetOpenAPIDefinitions(func(name string) spec.Ref {
		return spec.MustCreateRef(openapi.ComponentPrefix + common.EscapeJsonPointer(name))
	})
	var names []string
	for name := range kinds {
		if _, ok := definitions[name]; ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return builder3.BuildOpenAPIDefinitionsForResources(&common.OpenAPIV3Config{
		Info:           &spec.Info{InfoProps: spec.InfoProps{Title: "Kubernetes"}},
		GetDefinitions: generated.GetOpenAPIDefinitions,
		GetDefinitionName: func(name string) (string, spec.Extensions) {
			if list := kinds[name]; len(list) > 0 {
				return name, spec.Extensions{"x-kubernetes-group-version-kind": list}
			}
			return name, nil
		},
	}, names...)
}

// kindsByName lists the kinds that each type is registered as, by its definition name.
func kindsByName(scheme *runtime.Scheme) map[string][]any {
	type kind struct{ group, version, kind string }
	found := map[string][]kind{}
	for gvk, t := range scheme.AllKnownTypes() {
		if gvk.Version == runtime.APIVersionInternal {
			continue
		}
		if name := openapi.DefinitionName(reflect.New(t).Interface()); name != "" {
			found[name] = append(found[name], kind{gvk.Group, gvk.Version, gvk.Kind})
		}
	}
	kinds := make(map[string][]any, len(found))
	for name, list := range found {
		slices.SortFunc(list, func(a, b kind) int {
			return cmp.Or(cmp.Compare(a.group, b.group), cmp.Compare(a.version, b.version), cmp.Compare(a.kind, b.kind))
		})
		for _, k := range list {
			kinds[name] = append(kinds[name], map[string]any{"group": k.group, "version": k.version, "kind": k.kind})
		}
	}
	return kinds
}
