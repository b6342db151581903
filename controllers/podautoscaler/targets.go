package podautoscaler

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
)

// kinds finds the resources of kinds by discovery of their group alone.
type kinds struct {
	client rest.Interface
	clock  clock.PassiveClock

	mu    sync.Mutex
	known map[schema.GroupKind]found
}

type found struct {
	resource   schema.GroupVersionResource
	namespaced bool
	at         time.Time
}

// remembered is how long a resource is taken to be where it was found: versions of custom
// resources come and go.
const remembered = 30 * time.Second

func (k *kinds) resource(ctx context.Context, gk schema.GroupKind) (schema.GroupVersionResource, bool, error) {
	now := k.clock.Now()
	k.mu.Lock()
	f, ok := k.known[gk]
	k.mu.Unlock()
	if ok && now.Sub(f.at) < remembered {
		return f.resource, f.namespaced, nil
	}
	f, err := k.find(ctx, gk)
	if err != nil {
		return schema.GroupVersionResource{}, false, err
	}
	f.at = now
	k.mu.Lock()
	defer k.mu.Unlock()
	for other, f := range k.known { // those of autoscalers that are gone
		if now.Sub(f.at) >= remembered {
			delete(k.known, other)
		}
	}
	k.known[gk] = f
	return f.resource, f.namespaced, nil
}

func (k *kinds) find(ctx context.Context, gk schema.GroupKind) (found, error) {
	versions, err := versionsOf(ctx, k.client, gk.Group)
	if apierrors.IsNotFound(err) {
		return found{}, &meta.NoKindMatchError{GroupKind: gk}
	}
	if err != nil {
		return found{}, err
	}
	for _, v := range versions {
		gv := schema.GroupVersion{Group: gk.Group, Version: v}
		var list metav1.APIResourceList
		if err := get(ctx, k.client, prefix(gv), nil, &list); apierrors.IsNotFound(err) {
			continue // gone meanwhile
		} else if err != nil {
			return found{}, err
		}
		for _, r := range list.APIResources {
			if r.Kind == gk.Kind && !strings.Contains(r.Name, "/") {
				return found{resource: gv.WithResource(r.Name), namespaced: r.Namespaced}, nil
			}
		}
	}
	return found{}, &meta.NoKindMatchError{GroupKind: gk}
}

// versionsOf are the versions of a group, the preferred one first.
func versionsOf(ctx context.Context, client rest.Interface, group string) ([]string, error) {
	if group == "" {
		return []string{"v1"}, nil
	}
	var g metav1.APIGroup
	if err := get(ctx, client, "/apis/"+group, nil, &g); err != nil {
		return nil, err
	}
	var out []string
	if v := g.PreferredVersion.Version; v != "" {
		out = append(out, v)
	}
	for _, v := range g.Versions {
		if !slices.Contains(out, v.Version) {
			out = append(out, v.Version)
		}
	}
	return out, nil
}

func prefix(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.String()
}

// get reads JSON, which every server speaks.
func get(ctx context.Context, client rest.Interface, path string, params map[string]string, into any) error {
	req := client.Get().AbsPath(path).SetHeader("Accept", "application/json")
	for name, v := range params {
		req.Param(name, v)
	}
	res := req.Do(ctx)
	if err := res.Error(); err != nil { // unlike Raw's it has the server's words
		return err
	}
	raw, err := res.Raw()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("reading the answer to %s: %w", path, err)
	}
	return nil
}

// target is the scale of what an autoscaler is about.
type target struct {
	client rest.Interface
	path   string
}

// targets finds targets of any kind that has the subresource scale.
type targets struct {
	client rest.Interface
	kinds  *kinds
}

func (t *targets) find(ctx context.Context, namespace string, ref autoscalingv2.CrossVersionObjectReference) (resizable, error) {
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return nil, err
	}
	r, namespaced, err := t.kinds.resource(ctx, schema.GroupKind{Group: gv.Group, Kind: ref.Kind})
	if err != nil {
		return nil, err
	}
	path := prefix(r.GroupVersion())
	if namespaced {
		path += "/namespaces/" + namespace
	}
	return &target{t.client, path + "/" + r.Resource + "/" + ref.Name + "/scale"}, nil
}

func (t *target) scale(ctx context.Context) (*autoscalingv1.Scale, error) {
	s := &autoscalingv1.Scale{}
	return s, get(ctx, t.client, t.path, nil, s)
}

// resize changes the size that s tells, or what became of it meanwhile.
func (t *target) resize(ctx context.Context, s *autoscalingv1.Scale, replicas int32) error {
	for range tries {
		next := s.DeepCopy()
		next.Spec.Replicas = replicas
		next.SetGroupVersionKind(autoscalingv1.SchemeGroupVersion.WithKind("Scale"))
		body, err := json.Marshal(next)
		if err != nil {
			return fmt.Errorf("encoding scale: %w", err)
		}
		err = t.client.Put().AbsPath(t.path).SetHeader("Content-Type", "application/json").SetHeader("Accept", "application/json").Body(body).Do(ctx).Error()
		if !apierrors.IsConflict(err) {
			return err
		}
		if s, err = t.scale(ctx); err != nil {
			return fmt.Errorf("reading the scale again: %w", err)
		}
	}
	return apierrors.NewConflict(schema.GroupResource{}, s.Name, fmt.Errorf("it changed %d times meanwhile", tries))
}

// tries are how often a change is tried while others change the same object.
const tries = 5
