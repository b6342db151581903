package garbagecollector

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/ptr"
)

func (c *Controller) client(res resource, namespace string) metadata.ResourceInterface {
	if res.namespaced {
		return c.cfg.Metadata.Resource(res.gvr).Namespace(namespace)
	}
	return c.cfg.Metadata.Resource(res.gvr)
}

// get reads an object's metadata from the API server; nil when it is gone or another
// has its name now.
func (c *Controller) get(ctx context.Context, n *node) (*metav1.PartialObjectMetadata, error) {
	live, err := c.client(n.res, n.namespace).Get(ctx, n.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading %s %s/%s: %w", n.res.gvr.Resource, n.namespace, n.name, err)
	case live.UID != n.uid:
		return nil, nil
	}
	return live, nil
}

// withLive adds to the known dependents of an owner those of the same kinds and namespaces that
// the API server has besides.
func (c *Controller) withLive(ctx context.Context, known []node, owner types.UID) ([]node, error) {
	type place struct {
		res       resource
		namespace string
	}
	places, uids := map[place]bool{}, map[types.UID]bool{}
	for i := range known {
		places[place{known[i].res, known[i].namespace}] = true
		uids[known[i].uid] = true
	}
	for p := range places {
		list, err := c.client(p.res, p.namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, fmt.Errorf("listing %s of namespace %q: %w", p.res.gvr.Resource, p.namespace, err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			if !uids[o.UID] && ownerRef(o.OwnerReferences, owner) != nil {
				known = append(known, node{uid: o.UID, res: p.res, namespace: o.Namespace, name: o.Name})
			}
		}
	}
	return known, nil
}

// ownerExists asks the API server about an owner by the name that a dependent gives it.
func (c *Controller) ownerExists(ctx context.Context, uid types.UID, o ownerClaim) (bool, error) {
	gv, err := schema.ParseGroupVersion(o.apiVersion)
	if err != nil {
		return false, fmt.Errorf("owner reference %s %s: %w", o.kind, o.name, err)
	}
	res, ok := c.watch.resourceOf(gv.WithKind(o.kind))
	if !ok {
		// Its kind is not served, or not yet known here: nothing can be said about it.
		c.watch.look()
		return false, fmt.Errorf("owner %s %s of kind %s: the kind is not served", o.name, uid, gv.WithKind(o.kind))
	}
	if res.namespaced && o.namespace == "" {
		return false, nil // an object of the cluster cannot be owned by one of a namespace
	}
	live, err := c.client(res, o.namespace).Get(ctx, o.name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("reading owner %s %s/%s: %w", res.gvr.Resource, o.namespace, o.name, err)
	}
	return live.UID == uid, nil
}

func (c *Controller) delete(ctx context.Context, n *node, live *metav1.PartialObjectMetadata, policy metav1.DeletionPropagation) error {
	err := c.client(n.res, n.namespace).Delete(ctx, n.name, metav1.DeleteOptions{
		PropagationPolicy: &policy,
		// The revision too: if an owner was added meanwhile, look again.
		Preconditions: &metav1.Preconditions{UID: ptr.To(n.uid), ResourceVersion: ptr.To(live.ResourceVersion)},
	})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("deleting %s %s/%s: %w", n.res.gvr.Resource, n.namespace, n.name, err)
}

// patchMeta sends a merge patch of metadata, which all kinds take, for the very revision
// it was made from: lists are replaced whole.
func (c *Controller) patchMeta(ctx context.Context, res resource, live *metav1.PartialObjectMetadata, change func(map[string]any)) error {
	meta := map[string]any{"uid": live.UID, "resourceVersion": live.ResourceVersion}
	change(meta)
	body, err := json.Marshal(map[string]any{"metadata": meta})
	if err != nil {
		return fmt.Errorf("encoding patch: %w", err)
	}
	_, err = c.client(res, live.Namespace).Patch(ctx, live.Name, types.MergePatchType, body, metav1.PatchOptions{})
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("patching %s %s/%s: %w", res.gvr.Resource, live.Namespace, live.Name, err)
}

// uidCache remembers the last uids put into it.
type uidCache struct {
	size int
	ring []types.UID
	next int
	set  map[types.UID]struct{}
}

func newUIDCache(size int) *uidCache { return &uidCache{size: size, set: map[types.UID]struct{}{}} }

func (u *uidCache) add(uid types.UID) {
	if u.has(uid) {
		return
	}
	if len(u.ring) < u.size {
		u.ring = append(u.ring, uid)
	} else {
		delete(u.set, u.ring[u.next])
		u.ring[u.next] = uid
		u.next = (u.next + 1) % u.size
	}
	u.set[uid] = struct{}{}
}

func (u *uidCache) has(uid types.UID) bool { _, ok := u.set[uid]; return ok }
