package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/test/integration/etcd"
)

// namespace is the one that the objects are in.
const namespace = "kinds"

// kind is one served resource, with what upstream's own storage test knows of it.
type kind struct {
	gvr        schema.GroupVersionResource
	name       string // of its kind
	namespaced bool
	status     bool // has the subresource
	data       etcd.StorageData
}

func (k *kind) String() string {
	if k.gvr.Group == "" {
		return k.gvr.Version + "/" + k.gvr.Resource
	}
	return k.gvr.Group + "/" + k.gvr.Version + "/" + k.gvr.Resource
}

func base(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

// path of the resource, in a namespace where there are namespaces.
func (k *kind) path(ns string) string {
	if k.namespaced && ns != "" {
		return base(k.gvr.GroupVersion()) + "/namespaces/" + ns + "/" + k.gvr.Resource
	}
	return base(k.gvr.GroupVersion()) + "/" + k.gvr.Resource
}

// resources of one group version, as discovery tells: name to namespaced; subresources too.
type resources map[string]struct {
	kind       string
	namespaced bool
}

// discover lists what a server serves.
func (s *server) discover(ctx context.Context) (map[schema.GroupVersion]resources, error) {
	versions := []schema.GroupVersion{{Version: "v1"}}
	groups, err := s.get(ctx, "/apis")
	if err != nil {
		return nil, err
	}
	for _, g := range groups["groups"].([]any) {
		for _, v := range g.(object)["versions"].([]any) {
			gv, err := schema.ParseGroupVersion(v.(object)["groupVersion"].(string))
			if err != nil {
				return nil, err
			}
			versions = append(versions, gv)
		}
	}
	out := map[schema.GroupVersion]resources{}
	for _, gv := range versions {
		list, err := s.get(ctx, base(gv))
		if err != nil && strings.Contains(err.Error(), " 404 ") {
			continue // announced by an APIService that nobody serves
		}
		if err != nil {
			return nil, err
		}
		out[gv] = resources{}
		for _, r := range list["resources"].([]any) {
			r := r.(object)
			e := out[gv][r["name"].(string)]
			e.kind, e.namespaced = r["kind"].(string), r["namespaced"].(bool)
			out[gv][r["name"].(string)] = e
		}
	}
	return out, nil
}

// served lists the kinds that a server serves and that upstream's storage test knows, in
// order; unknown are stored resources that the test says nothing of.
func served(found map[schema.GroupVersion]resources) (kinds []*kind) {
	for gvr, data := range etcd.GetEtcdStorageDataForNamespace(namespace) {
		r, ok := found[gvr.GroupVersion()][gvr.Resource]
		if !ok {
			continue
		}
		_, status := found[gvr.GroupVersion()][gvr.Resource+"/status"]
		kinds = append(kinds, &kind{gvr: gvr, name: r.kind, namespaced: r.namespaced, status: status, data: data})
	}
	slices.SortFunc(kinds, func(a, b *kind) int { return strings.Compare(a.String(), b.String()) })
	return kinds
}

// prepare makes what the objects need: namespace, custom resources.
func prepare(ctx context.Context, s *server) error {
	if _, err := s.do(ctx, http.MethodPost, "/api/v1/namespaces", "", object{"metadata": object{"name": namespace}}); err != nil {
		return err
	}
	// The objects' pods name the account that a controller would make.
	if _, err := s.do(ctx, http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts", "", object{"metadata": object{"name": "default"}}); err != nil {
		return err
	}
	for _, crd := range etcd.GetCustomResourceDefinitionData() {
		crd.APIVersion, crd.Kind = "apiextensions.k8s.io/v1", "CustomResourceDefinition"
		if _, err := s.do(ctx, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "", crd); err != nil {
			return err
		}
		// Served once discovery has it in all versions.
		for _, v := range crd.Spec.Versions {
			if !v.Served {
				continue
			}
			path := base(schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}) + "/" + crd.Spec.Names.Plural
			if err := wait(ctx, func() error { _, err := s.get(ctx, path); return err }); err != nil {
				return err
			}
		}
	}
	return nil
}

// create makes the kind's object, with its status, and returns its path.
func (k *kind) create(ctx context.Context, s *server, all []*kind) (string, error) {
	for _, p := range k.data.Prerequisites {
		i := slices.IndexFunc(all, func(o *kind) bool { return o.gvr == p.GvrData })
		if i < 0 {
			return "", fmt.Errorf("%s: prerequisite %v is not served", k, p.GvrData)
		}
		if _, err := s.do(ctx, http.MethodPost, all[i].path(namespace), "", all[i].manifest(p.Stub)); err != nil && !strings.Contains(err.Error(), "AlreadyExists") {
			return "", err
		}
	}
	made, err := s.do(ctx, http.MethodPost, k.path(namespace), "", k.manifest(k.data.Stub))
	if err != nil && !strings.Contains(err.Error(), "AlreadyExists") {
		return "", err
	}
	name := stubName(k.data.Stub)
	if made != nil {
		name = made["metadata"].(object)["name"].(string)
	}
	path := k.path(namespace) + "/" + name
	if k.status {
		// Applied, so that conditions of the server's own stay.
		status := k.manifest(k.data.GetStatusStub())
		status["metadata"] = object{"name": name}
		_, err := s.do(ctx, http.MethodPatch, path+"/status?fieldManager=kinds&force=true", "application/apply-patch+yaml", status)
		if err != nil {
			return path, err
		}
	}
	return path, nil
}

func stubName(stub string) string {
	var o struct {
		Metadata struct{ Name string }
	}
	if json.Unmarshal([]byte(stub), &o) != nil {
		return ""
	}
	return o.Metadata.Name
}

// manifest adds what a stub leaves out.
func (k *kind) manifest(stub string) object {
	var o object
	if err := json.Unmarshal([]byte(stub), &o); err != nil {
		return object{"error": err.Error()}
	}
	o["apiVersion"], o["kind"] = k.gvr.GroupVersion().String(), k.name
	return o
}
