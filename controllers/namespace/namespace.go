// Package namespace empties namespaces that are being deleted, then takes away their
// finalizer "kubernetes" so that they can go.
//
// Owns: deleting all content of a terminating namespace, of kinds unknown at build time
// too, and the conditions that tell what holds it up. Must not: refuse new content; that
// is the API server's admission.
package namespace

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

// recheck is how soon to look again at content that waits for finalizers or for pods
// to stop. Upstream estimates 15 s and halves it; pods' ends wake us up before.
const recheck = 5 * time.Second

// Controller finishes namespaces.
type Controller struct {
	cfg    controller.Config
	loop   *controller.Loop[controller.Key]
	lister corelisters.NamespaceLister
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	if cfg.Metadata == nil || cfg.Discovery == nil {
		return nil, errors.New("namespace-controller: Metadata and Discovery clients are required")
	}
	namespaces := cfg.Informers.Core().V1().Namespaces()
	c := &Controller{cfg: cfg, lister: namespaces.Lister()}
	c.loop = controller.NewLoop("namespace-controller", 10, cfg.Clock, cfg.Logger, c.reconcile)
	return c, errors.Join(
		controller.Watch(c.loop, namespaces.Informer(), controller.OnEach(func(ns *corev1.Namespace) {
			if ns.DeletionTimestamp != nil {
				c.loop.Add(controller.KeyOf(ns))
			}
		})),
		// The last pod's end is what a namespace waits for most.
		controller.Watch(c.loop, cfg.Informers.Core().V1().Pods().Informer(), controller.Handlers[*corev1.Pod]{
			Deleted: func(p *corev1.Pod) {
				if ns, err := c.lister.Get(p.Namespace); err == nil && ns.DeletionTimestamp != nil {
					c.loop.Add(controller.KeyOf(ns))
				}
			},
		}),
	)
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

func (c *Controller) reconcile(ctx context.Context, key controller.Key) (time.Duration, error) {
	client := c.cfg.Client.CoreV1().Namespaces()
	ns, err := c.lister.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading namespace: %w", err)
	}
	if ns.DeletionTimestamp == nil || len(ns.Spec.Finalizers) == 0 {
		return 0, nil
	}
	// The cached one may be a revision behind another writer's; what follows deletes
	// everything, so ask the server.
	live, err := client.Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading namespace: %w", err)
	}
	if live.UID != ns.UID || live.DeletionTimestamp == nil || len(live.Spec.Finalizers) == 0 {
		return 0, nil
	}
	if live.Status.Phase != corev1.NamespaceTerminating {
		live.Status.Phase = corev1.NamespaceTerminating
		if live, err = client.UpdateStatus(ctx, live, metav1.UpdateOptions{}); err != nil {
			return 0, ignoreGone(fmt.Errorf("updating namespace status: %w", err))
		}
	}

	o := c.empty(ctx, live)
	if conditions, changed := merge(live.Status.Conditions, o.conditions(), c.cfg.Clock.Now()); changed {
		live.Status.Conditions = conditions
		if live, err = client.UpdateStatus(ctx, live, metav1.UpdateOptions{}); err != nil {
			return 0, ignoreGone(fmt.Errorf("updating namespace conditions: %w", err))
		}
	}
	if err := errors.Join(append(o.failures, o.discovery)...); err != nil {
		return 0, err
	}
	if o.waiting || len(o.remaining) > 0 {
		return recheck, nil
	}
	live.Spec.Finalizers = slices.DeleteFunc(live.Spec.Finalizers, func(f corev1.FinalizerName) bool { return f == corev1.FinalizerKubernetes })
	if _, err := client.Finalize(ctx, live, metav1.UpdateOptions{}); err != nil {
		return 0, ignoreGone(fmt.Errorf("finalizing namespace: %w", err))
	}
	return 0, nil
}

func ignoreGone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// kind is one namespaced resource that can be deleted.
type kind struct {
	gvr        schema.GroupVersionResource
	collection bool // deletecollection is served
	list       bool
}

var pods = schema.GroupResource{Resource: "pods"}

// empty deletes everything in the namespace: first pods, which may still need the rest
// (secrets, claims …) while they stop.
func (c *Controller) empty(ctx context.Context, ns *corev1.Namespace) *outcome {
	o := &outcome{remaining: map[schema.GroupResource]int{}, finalizers: map[string]int{}}
	kinds, err := c.kinds()
	o.discovery = err
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.gvr.GroupResource() == pods })
	if i >= 0 {
		c.emptyOne(ctx, ns.Name, kinds[i], o)
		if o.remaining[pods] > 0 {
			o.waiting = true
			return o
		}
		kinds = slices.Delete(kinds, i, i+1)
	}
	for _, k := range kinds {
		if ctx.Err() != nil {
			o.failures = append(o.failures, ctx.Err())
			break
		}
		c.emptyOne(ctx, ns.Name, k, o)
	}
	return o
}

// kinds asks the server for all namespaced kinds that can be deleted, in one version each.
func (c *Controller) kinds() ([]kind, error) {
	lists, err := c.cfg.Discovery.ServerPreferredNamespacedResources()
	if err != nil && discovery.IsGroupDiscoveryFailedError(err) {
		err = fmt.Errorf("discovery failed for some groups: %w", err)
	}
	var kinds []kind
	for _, l := range lists {
		gv, parseErr := schema.ParseGroupVersion(l.GroupVersion)
		if parseErr != nil {
			err = errors.Join(err, parseErr)
			continue
		}
		for _, r := range l.APIResources {
			if !slices.Contains(r.Verbs, "delete") {
				continue
			}
			kinds = append(kinds, kind{
				gvr:        schema.GroupVersionResource{Group: cmp.Or(r.Group, gv.Group), Version: cmp.Or(r.Version, gv.Version), Resource: r.Name},
				collection: slices.Contains(r.Verbs, "deletecollection"),
				list:       slices.Contains(r.Verbs, "list"),
			})
		}
	}
	return kinds, err
}

func (c *Controller) emptyOne(ctx context.Context, namespace string, k kind, o *outcome) {
	if err := c.deleteAll(ctx, namespace, k, o); err != nil && !unsupported(err) {
		o.failures = append(o.failures, fmt.Errorf("deleting %s: %w", k.gvr.GroupResource(), err))
	}
}

func unsupported(err error) bool {
	return apierrors.IsMethodNotSupported(err) || apierrors.IsNotFound(err)
}

func (c *Controller) deleteAll(ctx context.Context, namespace string, k kind, o *outcome) error {
	if !k.list {
		if k.collection {
			return c.cfg.Metadata.Resource(k.gvr).Namespace(namespace).DeleteCollection(ctx, background(), metav1.ListOptions{})
		}
		return nil
	}
	client := c.cfg.Metadata.Resource(k.gvr).Namespace(namespace)
	// Most kinds have nothing here: ask before deleting.
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) == 0 {
		return err
	}
	if k.collection {
		err = client.DeleteCollection(ctx, background(), metav1.ListOptions{})
	} else {
		err = deleteEach(ctx, client, list)
	}
	if err != nil && !unsupported(err) {
		return err
	}
	if list, err = client.List(ctx, metav1.ListOptions{}); err != nil {
		return err
	}
	if len(list.Items) > 0 {
		o.remaining[k.gvr.GroupResource()] = len(list.Items)
	}
	for i := range list.Items {
		for _, f := range list.Items[i].Finalizers {
			o.finalizers[f]++
		}
	}
	return nil
}

func deleteEach(ctx context.Context, client metadata.ResourceInterface, list *metav1.PartialObjectMetadataList) error {
	var errs []error
	for i := range list.Items {
		o := background()
		o.Preconditions = &metav1.Preconditions{UID: ptr.To(list.Items[i].UID)}
		if err := client.Delete(ctx, list.Items[i].Name, o); err != nil && !unsupported(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// background: the collector must not orphan dependents that we delete all the same.
func background() metav1.DeleteOptions {
	return metav1.DeleteOptions{PropagationPolicy: ptr.To(metav1.DeletePropagationBackground)}
}
