package main

import (
	"context"
	_ "embed"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/skiff-k8s/skiff/api"
	"github.com/skiff-k8s/skiff/api/apitest"
	"github.com/skiff-k8s/skiff/api/builtin"
	"github.com/skiff-k8s/skiff/api/meta"
)

//go:embed seeds.yaml
var seeds string

// differences counts them by what they have in common, and keeps one of each.
type differences struct {
	count  map[string]int
	sample map[string]string
}

func (d differences) add(kind, what, sample string) {
	k := kind + " " + shape(what)
	d.count[k]++
	if _, has := d.sample[k]; !has {
		d.sample[k] = sample
	}
}

// shape leaves out of a text what random objects make of it.
func shape(text string) string {
	before, after := text, ""
	if i := strings.Index(text, "nvalid value: "); i >= 0 {
		before = text[:i] + "nvalid value: …"
		if j := strings.LastIndex(text, ": "); j > i+len("nvalid value: ") {
			after = text[j:]
		}
	}
	var b strings.Builder
	depth := 0
	for _, c := range before {
		switch {
		case c == '[':
			depth++
		case c == ']' && depth > 0:
			depth--
			b.WriteString("[*]")
		case depth == 0:
			b.WriteRune(c)
		}
	}
	return fmt.Sprintf("%.200s", b.String()+after)
}

func (d differences) sets(kind string, theirs, ours []string) {
	for _, text := range theirs {
		if !slices.Contains(ours, text) {
			d.add(kind, "upstream only: "+text, fmt.Sprintf("%s\nours: %s", text, strings.Join(ours, "\n      ")))
		}
	}
	for _, text := range ours {
		if !slices.Contains(theirs, text) {
			d.add(kind, "ours only: "+text, fmt.Sprintf("%s\nupstream: %s", text, strings.Join(theirs, "\n          ")))
		}
	}
}

func (d differences) objects(kind string, theirs, ours api.Object) {
	a, b := strings.Split(indented(theirs), "\n"), strings.Split(indented(ours), "\n")
	count := map[string]int{}
	for _, line := range a {
		count[strings.TrimSuffix(line, ",")]++
	}
	for _, line := range b {
		count[strings.TrimSuffix(line, ",")]--
	}
	var lines []string
	for line, n := range count {
		if n > 0 {
			lines = append(lines, "upstream: "+line)
		} else if n < 0 {
			lines = append(lines, "ours:     "+line)
		}
	}
	if len(lines) == 0 {
		return
	}
	slices.Sort(lines)
	if len(lines) > 12 {
		lines = lines[:12]
	}
	d.add(kind, lines[0], strings.Join(lines, "\n"))
}

func fuzz(n int, seed int64, only string) error {
	// The program runs in its folder or in the root of the tree.
	text := seeds
	for _, dir := range []string{"../../..", "."} {
		if core, err := os.ReadFile(filepath.Join(dir, "api/core/testdata/objects.yaml")); err == nil {
			text += "\n---\n" + string(core)
			break
		}
	}
	byKind := map[string][]string{}
	for _, doc := range strings.Split(text, "\n---\n") {
		var head metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(doc), &head); err != nil {
			return err
		}
		byKind[head.GroupVersionKind().String()] = append(byKind[head.GroupVersionKind().String()], doc)
	}
	d := differences{map[string]int{}, map[string]string{}}
	for _, r := range builtin.Resources() {
		docs := byKind[r.GVK().String()]
		if len(docs) == 0 || only != "" && r.Plural != only {
			continue
		}
		random := rand.New(rand.NewSource(seed))
		for range n {
			obj := r.New()
			if err := yaml.Unmarshal([]byte(docs[random.Intn(len(docs))]), obj); err != nil {
				return err
			}
			mutate(reflect.ValueOf(obj).Elem(), random, random.Intn(6))
			obj.SetManagedFields(nil)
			obj.SetGeneration(0) // which the generic part sets
			d.compare(r, copied(r, obj), random)
		}
	}
	var keys []string
	for k := range d.count {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		fmt.Printf("%5d %s\n      %s\n", d.count[k], k, strings.ReplaceAll(d.sample[k], "\n", "\n      "))
	}
	fmt.Println(len(keys), "differences")
	return nil
}

// compare looks at an object in all ways, and at changes of it.
func (d differences) compare(r *api.Resource, obj api.Object, random *rand.Rand) {
	kind := r.GVR().GroupVersion().String() + " " + r.Kind
	defer func() {
		if e := recover(); e != nil {
			d.add(kind, fmt.Sprintf("panic: %v", e), indented(obj))
		}
	}()
	defaulted := func(o api.Object) api.Object {
		o = copied(r, o)
		if r.Default != nil {
			r.Default(o)
		}
		return o
	}
	theirs := take(r, obj)
	d.objects(kind+" defaults", theirs.served(), copied(r, defaulted(obj)))
	row, columns := theirs.row()
	if got := ourRow(r, defaulted(obj)); row != "" && row != got {
		d.add(kind, "row", "upstream: "+row+"\nours:     "+got)
	}
	if row != "" && indented(columns) != indented(r.Columns) {
		d.add(kind, "columns", "upstream: "+indented(columns)+"\nours: "+indented(r.Columns))
	}
	s := strategies[key(r, "")]
	if s == nil {
		return
	}
	errs, warnings := theirs.create(s)
	ours := copied(r, obj)
	ourErrs := append(apitest.Create(r, ours), apitest.Texts(meta.ValidateObjectMeta(ours, r.Namespaced, r.NameErrors))...)
	d.sets(kind+" create", errs, apitest.Told(ourErrs))
	if len(errs)+len(ourErrs) == 0 && r.Warnings != nil {
		d.sets(kind+" warnings", warnings, apitest.Told(r.Warnings(context.Background(), ours, nil)))
	}
	ours.SetGeneration(theirs.meta.GetGeneration())
	d.objects(kind+" created", theirs.served(), copied(r, ours))
	for _, endpoint := range append([]api.Subresource{{Strategy: r.Strategy}}, r.Subresources...) {
		if s := strategies[key(r, endpoint.Name)]; s != nil {
			d.update(kind+"/"+endpoint.Name, r, endpoint.Strategy, s, defaulted(obj), random)
		}
	}
}

func (d differences) update(kind string, r *api.Resource, ours api.Strategy, theirs strategy, old api.Object, random *rand.Rand) {
	old.SetName("x")
	if r.Namespaced {
		old.SetNamespace("ns")
	} else {
		old.SetNamespace("")
	}
	old.SetUID("u")
	old.SetResourceVersion("5")
	if random.Intn(8) == 0 {
		now := metav1.NewTime(time.Unix(1700000000, 0))
		old.SetDeletionTimestamp(&now)
	}
	obj := copied(r, old)
	part := reflect.ValueOf(obj).Elem()
	if spec := part.FieldByName("Spec"); spec.IsValid() && random.Intn(2) == 0 {
		part = spec
	} else if status := part.FieldByName("Status"); status.IsValid() {
		part = status
	}
	mutate(part, random, 1+random.Intn(4))
	dying := old.GetDeletionTimestamp()
	obj.SetName("x")
	obj.SetNamespace(old.GetNamespace())
	obj.SetUID("u")
	obj.SetResourceVersion("5")
	obj.SetGeneration(old.GetGeneration())
	obj.SetDeletionTimestamp(dying)
	obj.SetManagedFields(nil)
	obj = copied(r, obj)
	u := take(r, obj)
	errs := u.update(theirs, take(r, old))
	if r.Default != nil {
		r.Default(obj)
	}
	if ours.PrepareUpdate != nil {
		ours.PrepareUpdate(context.Background(), obj, old)
	}
	obj.SetDeletionTimestamp(dying)
	obj.SetGeneration(u.meta.GetGeneration())
	ourErrs := append(meta.ValidateObjectMetaUpdate(obj, old, r.Namespaced), ours.ValidateUpdate(context.Background(), obj, old)...)
	d.sets(kind+" update", errs, texts(ourErrs))
	d.objects(kind+" updated", u.served(), copied(r, obj))
}
