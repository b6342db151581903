package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/apitest"
	"github.com/skiff-k8s/skiff/api/builtin"
)

// resourceOf finds the resource of a file api/<package>/testdata/<plural>.txt.
func resourceOf(file string) (*api.Resource, error) {
	plural := strings.TrimSuffix(filepath.Base(file), ".txt")
	var found []*api.Resource
	for _, r := range builtin.Resources() {
		if r.Plural == plural && strategies[key(r, "")] != nil {
			found = append(found, r)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s: no resource %s", file, plural)
	}
	return found[0], nil
}

func key(r *api.Resource, endpoint string) string {
	k := r.Group + "/" + r.Plural
	if endpoint != "" && endpoint != "update" {
		k += "/" + endpoint
	}
	return k
}

func rewriteCases(file string) error {
	r, err := resourceOf(file)
	if err != nil {
		return err
	}
	cases, err := apitest.ReadCases(file)
	if err != nil {
		return err
	}
	var out strings.Builder
	for _, c := range cases {
		texts, err := c.Texts(cases[0])
		if err != nil {
			return err
		}
		var objs []upstream
		for _, text := range texts {
			obj := r.New()
			if err := yaml.UnmarshalStrict([]byte(text), obj); err != nil {
				return fmt.Errorf("%s: %s: %w", file, c.Name, err)
			}
			obj.SetResourceVersion("5")
			objs = append(objs, take(r, obj))
		}
		s := strategies[key(r, c.Endpoint)]
		if s == nil {
			return fmt.Errorf("%s: %s: no strategy %q", file, c.Name, c.Endpoint)
		}
		name, warnings := c.Name, []string(nil)
		var errs []string
		if len(objs) == 1 {
			errs, warnings = objs[0].create(s)
		} else {
			errs = objs[1].update(s, objs[0])
			name += " [" + c.Endpoint + "]"
		}
		fmt.Fprintf(&out, "# %s\n%s", name, strings.Join(c.Patches, "=>\n"))
		for _, e := range errs {
			fmt.Fprintf(&out, "> %s\n", e)
		}
		for _, w := range warnings {
			fmt.Fprintf(&out, "! %s\n", w)
		}
	}
	return os.WriteFile(file, []byte(out.String()), 0o644)
}

// rewriteServed writes what becomes of the objects in objects.yaml.
func rewriteServed(dir string) error {
	in, err := os.ReadFile(filepath.Join(dir, "objects.yaml"))
	if err != nil {
		return err
	}
	resources := builtin.Resources()
	var docs []string
	for _, doc := range strings.Split(string(in), "\n---\n") {
		var head metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			return err
		}
		i := slices.IndexFunc(resources, func(r *api.Resource) bool { return r.GVK() == head.GroupVersionKind() })
		if i < 0 {
			return fmt.Errorf("no resource for %s", head.GroupVersionKind())
		}
		obj := resources[i].New()
		if err := yaml.UnmarshalStrict([]byte(doc), obj); err != nil {
			return fmt.Errorf("%w in\n%s", err, doc)
		}
		u := take(resources[i], obj)
		text, err := yaml.Marshal(u.served())
		if err != nil {
			return err
		}
		if row, _ := u.row(); row != "" {
			text = append(text, "row: "+row...)
		}
		docs = append(docs, string(text))
	}
	return os.WriteFile(filepath.Join(dir, "served.yaml"), []byte(strings.Join(docs, "\n---\n")+"\n"), 0o644)
}
