// Package localpath provisions volumes that are directories of nodes, as the external
// provisioner of StorageClasses whose provisioner is skiff.dev/local-path: events,
// annotations and finalizer are those of upstream's external provisioners.
//
// Owns: PersistentVolumes that it provisioned, the orders to the nodes (api/localpath) and the
// ConfigMap kube-system/local-path-removed. Must not: touch disks (kubelet/localpath does).
package localpath

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"

	"github.com/skiff-k8s/skiff/api/localpath"
	"github.com/skiff-k8s/skiff/controllers/controller"
)

const (
	byNode = "local-path-node"
	byUID  = "uid"
)

// Controller provisions and reclaims, node by node.
type Controller struct {
	cfg     controller.Config
	loop    *controller.Loop[string] // of node names; "": claims without node
	claims  cache.Indexer
	volumes cache.Indexer
	nodes   corelisters.NodeLister
	classes storagelisters.StorageClassLister

	mu   sync.Mutex
	told map[types.UID]string // the last event about an object: one is enough
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	core, storage := cfg.Informers.Core().V1(), cfg.Informers.Storage().V1()
	claims, volumes, nodes, classes := core.PersistentVolumeClaims().Informer(), core.PersistentVolumes().Informer(), core.Nodes(), storage.StorageClasses()
	c := &Controller{cfg: cfg, claims: claims.GetIndexer(), volumes: volumes.GetIndexer(), nodes: nodes.Lister(), classes: classes.Lister(), told: map[types.UID]string{}}
	c.loop = controller.NewLoop("local-path-provisioner", 2, cfg.Clock, cfg.Logger, c.reconcile)
	return c, errors.Join(
		claims.AddIndexers(cache.Indexers{
			byNode: func(o any) ([]string, error) {
				if p, ok := o.(*corev1.PersistentVolumeClaim); ok && asksUs(p) {
					return []string{p.Annotations[volume.AnnSelectedNode]}, nil
				}
				return nil, nil
			},
			byUID: func(o any) ([]string, error) {
				if p, ok := o.(*corev1.PersistentVolumeClaim); ok {
					return []string{string(p.UID)}, nil
				}
				return nil, nil
			},
		}),
		volumes.AddIndexers(cache.Indexers{byNode: func(o any) ([]string, error) {
			if v, ok := o.(*corev1.PersistentVolume); ok && ours(v) {
				return []string{v.Annotations[localpath.NodeAnnotation]}, nil
			}
			return nil, nil
		}}),
		controller.Watch(c.loop, claims, controller.Handlers[*corev1.PersistentVolumeClaim]{
			Added:   c.claim,
			Updated: func(old, p *corev1.PersistentVolumeClaim) { c.claim(old); c.claim(p) },
			Deleted: func(p *corev1.PersistentVolumeClaim) { c.claim(p); c.forget(p.UID) },
		}),
		controller.Watch(c.loop, volumes, controller.Handlers[*corev1.PersistentVolume]{
			Added:   c.volume,
			Updated: func(_, v *corev1.PersistentVolume) { c.volume(v) },
			Deleted: func(v *corev1.PersistentVolume) { c.volume(v); c.forget(v.UID) },
		}),
		controller.Watch(c.loop, nodes.Informer(), controller.Handlers[*corev1.Node]{
			Added: func(n *corev1.Node) { c.loop.Add(n.Name) },
			Updated: func(old, n *corev1.Node) { // heartbeats say nothing new
				if old.UID != n.UID || old.Labels[corev1.LabelHostname] != n.Labels[corev1.LabelHostname] ||
					old.Annotations[localpath.ReportAnnotation] != n.Annotations[localpath.ReportAnnotation] ||
					old.Annotations[localpath.OrdersAnnotation] != n.Annotations[localpath.OrdersAnnotation] {
					c.loop.Add(n.Name)
				}
			},
			Deleted: func(n *corev1.Node) { c.loop.Add(n.Name) },
		}),
		controller.Watch(c.loop, classes.Informer(), controller.OnEach(func(s *storagev1.StorageClass) {
			if s.Provisioner == localpath.Provisioner {
				for _, node := range c.claims.ListIndexFuncValues(byNode) {
					c.loop.Add(node)
				}
			}
		})),
	)
}

// Run provisions until ctx ends.
func (c *Controller) Run(ctx context.Context) error { return c.loop.Run(ctx) }

// asksUs says whether the binder has named us as the provisioner of a claim.
func asksUs(p *corev1.PersistentVolumeClaim) bool {
	return p.Annotations[volume.AnnStorageProvisioner] == localpath.Provisioner || p.Annotations[volume.AnnBetaStorageProvisioner] == localpath.Provisioner
}

func ours(v *corev1.PersistentVolume) bool {
	return v.Annotations[provisionedBy] == localpath.Provisioner && v.Annotations[localpath.NodeAnnotation] != ""
}

func (c *Controller) claim(p *corev1.PersistentVolumeClaim) {
	if asksUs(p) {
		c.loop.Add(p.Annotations[volume.AnnSelectedNode])
	}
}

func (c *Controller) volume(v *corev1.PersistentVolume) {
	if ours(v) {
		c.loop.Add(v.Annotations[localpath.NodeAnnotation])
	}
}

func (c *Controller) forget(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.told, uid)
}

func (c *Controller) reconcile(ctx context.Context, node string) (time.Duration, error) {
	v, err := c.look(ctx, node)
	if err != nil {
		return 0, err
	}
	return 0, c.act(ctx, node, v, plan(v))
}

// look gathers what is known of a node.
func (c *Controller) look(ctx context.Context, node string) (view, error) {
	v := view{claimed: func(name string) bool {
		found, err := c.claims.ByIndex(byUID, localpath.ClaimUID(name))
		return err != nil || len(found) > 0
	}}
	var err error
	if v.node, err = c.nodes.Get(node); apierrors.IsNotFound(err) {
		v.node = nil
	} else if err != nil {
		return v, fmt.Errorf("reading node: %w", err)
	}
	if v.node != nil {
		if v.report, v.reported, err = localpath.ReadReport(v.node.Annotations); err != nil {
			c.cfg.Logger.Warn("local-path volumes: a node's report is ignored", "node", node, "err", err)
		}
		if v.orders, err = localpath.ReadOrders(v.node.Annotations); err != nil {
			c.cfg.Logger.Warn("local-path volumes: orders are written anew", "node", node, "err", err)
		}
	}
	claims, err := c.claims.ByIndex(byNode, node)
	if err != nil {
		return v, fmt.Errorf("listing claims: %w", err)
	}
	for _, o := range claims {
		p, ok := o.(*corev1.PersistentVolumeClaim)
		if !ok || p.Spec.VolumeName != "" || p.DeletionTimestamp != nil {
			continue
		}
		class, err := c.classes.Get(volume.GetPersistentVolumeClaimClass(p))
		if err != nil && !apierrors.IsNotFound(err) {
			return v, fmt.Errorf("reading storage class: %w", err)
		}
		v.waiting = append(v.waiting, waiting{p, class})
	}
	volumes, err := c.volumes.ByIndex(byNode, node)
	if err != nil {
		return v, fmt.Errorf("listing volumes: %w", err)
	}
	owned := map[string]bool{}
	for _, o := range volumes {
		if pv, ok := o.(*corev1.PersistentVolume); ok {
			v.volumes = append(v.volumes, pv)
			owned[pv.Name] = true
		}
	}
	slices.SortFunc(v.waiting, func(a, b waiting) int { return strings.Compare(string(a.claim.UID), string(b.claim.UID)) })
	slices.SortFunc(v.volumes, func(a, b *corev1.PersistentVolume) int { return strings.Compare(a.Name, b.Name) })
	// Who else has been here is asked only where it matters.
	if v.node == nil && len(v.volumes) > 0 || slices.ContainsFunc(append(slices.Clone(v.report.Volumes), v.orders.Remove...), func(n string) bool { return !owned[n] && !v.claimed(n) }) {
		v.removed, err = c.removed(ctx, node)
	}
	return v, err
}

// act does what was decided. What destroys is checked with the server first: caches lag.
func (c *Controller) act(ctx context.Context, node string, v view, a actions) error {
	var errs []error
	for _, n := range a.tell {
		c.tell(n)
	}
	for _, p := range a.reschedule {
		errs = append(errs, c.unselect(ctx, p))
	}
	for i, pv := range a.create {
		_, err := c.cfg.Client.CoreV1().PersistentVolumes().Create(ctx, pv, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			errs = append(errs, fmt.Errorf("creating volume %s: %w", pv.Name, err))
			continue
		}
		c.tell(a.created[i])
	}
	for pv, finalizers := range a.finalize {
		errs = append(errs, c.setFinalizers(ctx, pv, finalizers))
	}
	// Before a volume goes whose directory stays behind, that is written down.
	if !slices.Equal(a.removed, v.removed) {
		if err := c.setRemoved(ctx, node, a.removed); err != nil {
			return errors.Join(append(errs, err)...)
		}
	}
	for _, pv := range a.release {
		errs = append(errs, c.release(ctx, node, pv))
	}
	if v.node != nil && !a.orders.Equal(v.orders) {
		errs = append(errs, c.order(ctx, v, a.orders))
	}
	return errors.Join(errs...)
}

func (c *Controller) tell(n note) {
	about, ok := n.about.(interface {
		runtime.Object
		metav1.Object
	})
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.told[about.GetUID()] == n.message {
		return
	}
	c.told[about.GetUID()] = n.message
	c.cfg.Events.Event(about, n.kind, n.reason, n.message)
}

// unselect has the scheduler choose a node again.
func (c *Controller) unselect(ctx context.Context, p *corev1.PersistentVolumeClaim) error {
	next := p.DeepCopy()
	delete(next.Annotations, volume.AnnSelectedNode)
	_, err := c.cfg.Client.CoreV1().PersistentVolumeClaims(p.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("having a node chosen again: %w", err)
	}
	return nil
}

func (c *Controller) setFinalizers(ctx context.Context, pv *corev1.PersistentVolume, finalizers []string) error {
	next := pv.DeepCopy()
	next.Finalizers = finalizers
	if _, err := c.cfg.Client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("updating finalizers of volume %s: %w", pv.Name, err)
	}
	return nil
}

// release deletes a volume whose directory is gone.
func (c *Controller) release(ctx context.Context, node string, pv *corev1.PersistentVolume) error {
	n, err := c.cfg.Client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("reading node: %w", err)
	default:
		r, ok, err := localpath.ReadReport(n.Annotations)
		if err != nil || !ok || slices.Contains(r.Volumes, pv.Name) {
			return fmt.Errorf("deleting volume %s: %w", pv.Name, controller.ErrStale)
		}
	}
	volumes := c.cfg.Client.CoreV1().PersistentVolumes()
	if pv.DeletionTimestamp == nil {
		err := volumes.Delete(ctx, pv.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pv.UID, ResourceVersion: &pv.ResourceVersion}})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("deleting volume %s: %w", pv.Name, err)
		}
		if pv, err = volumes.Get(ctx, pv.Name, metav1.GetOptions{}); apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading volume: %w", err)
		}
	}
	if !slices.Contains(pv.Finalizers, finalizer) {
		return nil
	}
	return c.setFinalizers(ctx, pv, slices.DeleteFunc(slices.Clone(pv.Finalizers), func(f string) bool { return f == finalizer }))
}

// order tells the node what to do.
func (c *Controller) order(ctx context.Context, v view, o localpath.Orders) error {
	for _, name := range o.Remove {
		if slices.Contains(v.orders.Remove, name) {
			continue
		}
		pv, err := c.cfg.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err): // it went while the node was gone
		case err != nil:
			return fmt.Errorf("reading volume: %w", err)
		case !ours(pv) || pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimDelete || pv.Status.Phase != corev1.VolumeReleased && pv.Status.Phase != corev1.VolumeFailed:
			return fmt.Errorf("having the directory of volume %s removed: %w", name, controller.ErrStale)
		}
	}
	if slices.ContainsFunc(o.Prune, func(n string) bool { return !slices.Contains(v.orders.Prune, n) }) {
		if err := c.unclaimed(ctx, o.Prune); err != nil {
			return err
		}
	}
	var value any = o
	if o.Empty() {
		value = nil
	}
	patch, err := localpath.Patch(v.node.UID, localpath.OrdersAnnotation, value)
	if err != nil {
		return err
	}
	if _, err := c.cfg.Client.CoreV1().Nodes().Patch(ctx, v.node.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("ordering volumes of node %s: %w", v.node.Name, err)
	}
	return nil
}

// unclaimed makes sure that neither a claim nor a volume of these names is there.
func (c *Controller) unclaimed(ctx context.Context, names []string) error {
	all, err := c.cfg.Client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("listing claims: %w", err)
	}
	for i := range all.Items {
		if slices.Contains(names, localpath.VolumeName(string(all.Items[i].UID))) {
			return controller.ErrStale
		}
	}
	for _, name := range names {
		if _, err := c.cfg.Client.CoreV1().PersistentVolumes().Get(ctx, name, metav1.GetOptions{}); err == nil {
			return controller.ErrStale
		} else if !apierrors.IsNotFound(err) {
			return fmt.Errorf("reading volume: %w", err)
		}
	}
	return nil
}
