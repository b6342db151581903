package main

import (
	"context"
	"fmt"
	"math/rand"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	runtimeserializer "k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	apitesting "k8s.io/kubernetes/pkg/api/testing"
	"sigs.k8s.io/randfill"
)

// alive are kinds whose objects the servers act on: random ones would change what is served.
var alive = map[string]bool{"apiservices": true, "customresourcedefinitions": true, "servicecidrs": true}

// fill puts objects with random values in all fields into etcd, as upstream stores them, and
// compares how both servers read them, in each version that is served.
func fill(ctx context.Context, r *report, parent string, bin binaries, each int, seed int64) error {
	w, err := newWorld(ctx, parent, "filled", bin)
	if err != nil {
		return err
	}
	defer w.close()
	a, err := w.upstream(ctx)
	if err != nil {
		return err
	}
	b, err := w.skiff(ctx)
	if err != nil {
		return err
	}
	found, err := a.discover(ctx)
	if err != nil {
		return err
	}
	kinds := served(found)
	t := &pair{report: r, world: w, writer: a, reader: b, kinds: kinds}
	done := map[string]bool{}
	last := ""
	for _, k := range kinds {
		gvk := k.gvr.GroupVersion().WithKind(k.name)
		if k.data.ExpectedGVK != nil {
			gvk = *k.data.ExpectedGVK
		}
		if alive[k.gvr.Resource] || !legacyscheme.Scheme.Recognizes(gvk) || done[k.gvr.Group+k.gvr.Resource] {
			continue
		}
		done[k.gvr.Group+k.gvr.Resource] = true
		for i := range each {
			name := fmt.Sprintf("filled-%d", i)
			value, err := random(gvk, name, k.namespaced, seed+int64(i), []float64{.02, .3, .6}[i%3])
			if err != nil {
				r.fail(t.result("fill", k.String(), name), err)
				break
			}
			key := k.data.ExpectedEtcdPath[:strings.LastIndex(k.data.ExpectedEtcdPath, "/")+1] + name
			if _, err := w.etcd.Put(ctx, key, string(value)); err != nil {
				return fmt.Errorf("write %s: %w", key, err)
			}
			for _, v := range kinds {
				if v.gvr.Group != k.gvr.Group || v.gvr.Resource != k.gvr.Resource {
					continue
				}
				path := v.path(namespace) + "/" + name
				if last != k.String() {
					last = k.String()
					t.caughtUp(ctx, path)
				}
				// What upstream itself cannot serve is no object.
				if code, _, err := a.raw(ctx, http.MethodGet, path, "", nil); err == nil && code == http.StatusInternalServerError {
					continue
				}
				t.compare(ctx, t.result("fill", v.String(), path), path)
			}
		}
	}
	return nil
}

// caughtUp waits until both servers know of an object.
func (t *pair) caughtUp(ctx context.Context, path string) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	for _, s := range []*server{t.writer, t.reader} {
		_ = wait(ctx, func() error { // if it never does, the comparison says so
			code, _, err := s.raw(ctx, http.MethodGet, path, "", nil)
			if err == nil && code == http.StatusNotFound {
				err = errStatus
			}
			return err
		})
	}
}

// possible are values where random ones have no encoding.
func possible(runtimeserializer.CodecFactory) []any {
	return []any{
		func(v *intstr.IntOrString, c randfill.Continue) {
			*v = intstr.FromInt32(c.Int31())
			if c.Bool() {
				*v = intstr.FromString(c.String(0))
			}
		},
	}
}

// random is the stored form of an object with random values.
func random(gvk schema.GroupVersionKind, name string, namespaced bool, seed int64, nils float64) ([]byte, error) {
	obj, err := legacyscheme.Scheme.New(schema.GroupVersionKind{Group: gvk.Group, Version: runtime.APIVersionInternal, Kind: gvk.Kind})
	if err != nil {
		return nil, err
	}
	f := fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(apitesting.FuzzerFuncs, possible), rand.NewSource(seed), legacyscheme.Codecs).NilChance(nils).NumElements(1, 2)
	f.Fill(obj)
	m, err := meta.Accessor(obj)
	if err != nil {
		return nil, err
	}
	m.SetName(name)
	m.SetNamespace("")
	if namespaced {
		m.SetNamespace(namespace)
	}
	m.SetResourceVersion("")
	m.SetSelfLink("")
	m.SetGenerateName("")
	m.SetUID(types.UID(name))
	m.SetDeletionTimestamp(nil)
	m.SetDeletionGracePeriodSeconds(nil)
	m.SetCreationTimestamp(metav1.Unix(1700000000, 0))
	m.SetManagedFields(nil)
	s := protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme)
	return runtime.Encode(legacyscheme.Codecs.EncoderForVersion(s, gvk.GroupVersion()), obj)
}
