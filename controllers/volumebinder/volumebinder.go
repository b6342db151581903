// Package volumebinder binds PersistentVolumeClaims to PersistentVolumes.
//
// Owns: binding of claims that do not wait for a pod, phases of both kinds, the
// annotations that ask an external provisioner for a volume, and the default storage
// class of claims made before there was one. Must not: make, wipe or delete storage.
package volumebinder

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

const (
	defaultClass     = "storageclass.kubernetes.io/is-default-class"
	defaultClassBeta = "storageclass.beta.kubernetes.io/is-default-class"
	noProvisioner    = "kubernetes.io/no-provisioner"
)

// Controller binds.
type Controller struct {
	cfg     controller.Config
	claims  *controller.Loop[controller.Key]
	volumes *controller.Loop[controller.Key]
	byClaim cache.Indexer // volumes
	pvcs    corelisters.PersistentVolumeClaimLister
	pvs     corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister
	mu      sync.Mutex // two claims must not take one volume
}

// New makes the controller.
func New(cfg controller.Config) (*Controller, error) {
	const name = "persistentvolume-binder-controller"
	core, storage := cfg.Informers.Core().V1(), cfg.Informers.Storage().V1()
	c := &Controller{cfg: cfg, pvcs: core.PersistentVolumeClaims().Lister(), pvs: core.PersistentVolumes().Lister(), classes: storage.StorageClasses().Lister()}
	c.claims = controller.NewLoop(name, 1, cfg.Clock, cfg.Logger, c.claim)
	c.volumes = controller.NewLoop(name, 1, cfg.Clock, cfg.Logger, c.volume)
	c.byClaim = core.PersistentVolumes().Informer().GetIndexer()
	return c, errors.Join(
		core.PersistentVolumes().Informer().AddIndexers(cache.Indexers{claimIndex: claimOf}),
		controller.Watch(c.claims, core.PersistentVolumeClaims().Informer(), controller.OnEach(func(p *corev1.PersistentVolumeClaim) {
			c.claims.Add(controller.KeyOf(p))
			if p.Spec.VolumeName != "" {
				c.volumes.Add(controller.Key{Name: p.Spec.VolumeName})
			}
			c.wakeNamers(p)
		})),
		controller.Watch(c.claims, core.PersistentVolumes().Informer(), controller.OnEach(func(v *corev1.PersistentVolume) {
			c.volumes.Add(controller.KeyOf(v))
			if r := v.Spec.ClaimRef; r != nil {
				c.claims.Add(controller.Key{Namespace: r.Namespace, Name: r.Name})
				return
			}
			c.wake() // it may be what a claim waits for
		})),
		controller.Watch(c.claims, storage.StorageClasses().Informer(), controller.OnEach(func(*storagev1.StorageClass) { c.wake() })),
	)
}

// claimIndex finds the volumes that name a claim, which need not name them: it may go before
// it is bound to the volume that was made for it.
const claimIndex = "claim"

func claimOf(o any) ([]string, error) {
	v, ok := o.(*corev1.PersistentVolume)
	if !ok || v.Spec.ClaimRef == nil {
		return nil, nil
	}
	return []string{v.Spec.ClaimRef.Namespace + "/" + v.Spec.ClaimRef.Name}, nil
}

// wakeNamers looks at the volumes that name a claim.
func (c *Controller) wakeNamers(p *corev1.PersistentVolumeClaim) {
	found, err := c.byClaim.ByIndex(claimIndex, p.Namespace+"/"+p.Name)
	if err != nil {
		c.cfg.Logger.Error("find volumes of a claim", "claim", p.Namespace+"/"+p.Name, "err", err)
	}
	for _, o := range found {
		if v, ok := o.(*corev1.PersistentVolume); ok {
			c.volumes.Add(controller.KeyOf(v))
		}
	}
}

// Run reconciles until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	if !c.claims.WaitSynced(ctx) {
		return nil
	}
	done := make(chan error, 1)
	go func() { done <- c.volumes.Run(ctx) }()
	return errors.Join(c.claims.Run(ctx), <-done)
}

// wake looks at all claims that are not bound.
func (c *Controller) wake() {
	all, err := c.pvcs.List(labels.Everything())
	if err != nil {
		return
	}
	for _, p := range all {
		if p.Status.Phase != corev1.ClaimBound {
			c.claims.Add(controller.KeyOf(p))
		}
	}
}

func (c *Controller) claim(ctx context.Context, key controller.Key) (time.Duration, error) {
	p, err := c.pvcs.PersistentVolumeClaims(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading claim: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.Spec.VolumeName == "" {
		if p.DeletionTimestamp != nil {
			return 0, nil
		}
		return 0, c.find(ctx, p)
	}
	v, err := c.pvs.Get(p.Spec.VolumeName)
	if apierrors.IsNotFound(err) {
		if p.Annotations[volume.AnnBindCompleted] != "" {
			return 0, c.lost(ctx, p, "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!")
		}
		return 0, c.phase(ctx, p, corev1.ClaimPending, nil)
	}
	if err != nil {
		return 0, fmt.Errorf("reading volume: %w", err)
	}
	switch r := v.Spec.ClaimRef; {
	case r == nil, volume.IsVolumeBoundToClaim(v, p):
		return 0, c.bind(ctx, p, v)
	case p.Annotations[volume.AnnBindCompleted] != "":
		return 0, c.lost(ctx, p, "ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly")
	}
	return 0, c.phase(ctx, p, corev1.ClaimPending, nil) // the volume is another's; it may be let go
}

// find looks for a volume, or tells why there is none.
func (c *Controller) find(ctx context.Context, p *corev1.PersistentVolumeClaim) error {
	if p.Spec.StorageClassName == nil && p.Annotations[corev1.BetaStorageClassAnnotation] == "" {
		if class := c.defaultClass(); class != "" {
			next := p.DeepCopy()
			next.Spec.StorageClassName = ptr.To(class)
			_, err := c.cfg.Client.CoreV1().PersistentVolumeClaims(p.Namespace).Update(ctx, next, metav1.UpdateOptions{})
			return wrap(err, "setting default storage class")
		}
	}
	delay, err := volume.IsDelayBindingMode(p, c.classes)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("reading storage class: %w", err)
	}
	all, err := c.pvs.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing volumes: %w", err)
	}
	slices.SortFunc(all, func(a, b *corev1.PersistentVolume) int {
		x, y := a.Spec.Capacity[corev1.ResourceStorage], b.Spec.Capacity[corev1.ResourceStorage]
		return x.Cmp(y)
	})
	v, err := volume.FindMatchingVolume(p, all, nil, nil, delay, false)
	if err != nil {
		return fmt.Errorf("matching volumes: %w", err)
	}
	if v != nil {
		return c.bind(ctx, p, v)
	}
	class := volume.GetPersistentVolumeClaimClass(p)
	switch {
	case delay && !volume.IsDelayBindingProvisioning(p):
		c.cfg.Events.Event(p, corev1.EventTypeNormal, "WaitForFirstConsumer", "waiting for first consumer to be created before binding")
	case class == "":
		c.cfg.Events.Event(p, corev1.EventTypeNormal, "FailedBinding", "no persistent volumes available for this claim and no storage class is set")
	default:
		if err := c.provision(ctx, p, class); err != nil {
			return err
		}
	}
	return c.phase(ctx, p, corev1.ClaimPending, nil)
}

func (c *Controller) defaultClass() string {
	all, err := c.classes.List(labels.Everything())
	if err != nil {
		return ""
	}
	var best *storagev1.StorageClass
	for _, s := range all {
		if s.Annotations[defaultClass] != "true" && s.Annotations[defaultClassBeta] != "true" {
			continue
		}
		if best == nil || best.CreationTimestamp.Before(&s.CreationTimestamp) || best.CreationTimestamp.Equal(&s.CreationTimestamp) && s.Name < best.Name {
			best = s
		}
	}
	if best == nil {
		return ""
	}
	return best.Name
}

// provision asks the class's external provisioner.
func (c *Controller) provision(ctx context.Context, p *corev1.PersistentVolumeClaim, class string) error {
	s, err := c.classes.Get(class)
	if apierrors.IsNotFound(err) {
		c.cfg.Events.Eventf(p, corev1.EventTypeWarning, "ProvisioningFailed", "storageclass.storage.k8s.io %q not found", class)
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading storage class: %w", err)
	}
	if s.Provisioner == noProvisioner {
		c.cfg.Events.Event(p, corev1.EventTypeNormal, "FailedBinding", "no volume plugin matched name: "+noProvisioner)
		return nil
	}
	if p.Annotations[volume.AnnStorageProvisioner] != s.Provisioner {
		next := p.DeepCopy()
		if next.Annotations == nil {
			next.Annotations = map[string]string{}
		}
		next.Annotations[volume.AnnStorageProvisioner] = s.Provisioner
		next.Annotations[volume.AnnBetaStorageProvisioner] = s.Provisioner
		if _, err := c.cfg.Client.CoreV1().PersistentVolumeClaims(p.Namespace).Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("naming the provisioner: %w", err)
		}
	}
	c.cfg.Events.Eventf(p, corev1.EventTypeNormal, "ExternalProvisioning", "Waiting for a volume to be created either by the external provisioner '%s' or manually by the system administrator. "+
		"If volume creation is delayed, please verify that the provisioner is running and correctly registered.", s.Provisioner)
	return nil
}

// bind writes volume, then claim: a crash between leaves a volume that only this claim
// can take.
func (c *Controller) bind(ctx context.Context, p *corev1.PersistentVolumeClaim, v *corev1.PersistentVolume) error {
	next, dirty, err := volume.GetBindVolumeToClaim(v, p)
	if err != nil {
		return fmt.Errorf("binding volume %s: %w", v.Name, err)
	}
	if dirty {
		if v, err = c.cfg.Client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("binding volume %s: %w", next.Name, err)
		}
	}
	if v.Status.Phase != corev1.VolumeBound {
		if v, err = c.volumePhase(ctx, v, corev1.VolumeBound, ""); err != nil {
			return err
		}
	}
	q := p.DeepCopy()
	if q.Annotations == nil {
		q.Annotations = map[string]string{}
	}
	if q.Spec.VolumeName != v.Name {
		q.Spec.VolumeName = v.Name
		q.Annotations[volume.AnnBoundByController] = "yes"
	}
	q.Annotations[volume.AnnBindCompleted] = "yes"
	if !equality.Semantic.DeepEqual(p.Spec, q.Spec) || !equality.Semantic.DeepEqual(p.Annotations, q.Annotations) {
		if q, err = c.cfg.Client.CoreV1().PersistentVolumeClaims(p.Namespace).Update(ctx, q, metav1.UpdateOptions{}); err != nil {
			return wrap(err, "binding claim")
		}
	}
	return c.phase(ctx, q, corev1.ClaimBound, v)
}

// phase writes a claim's status; v is its volume when it is bound.
func (c *Controller) phase(ctx context.Context, p *corev1.PersistentVolumeClaim, phase corev1.PersistentVolumeClaimPhase, v *corev1.PersistentVolume) error {
	next := p.DeepCopy()
	next.Status.Phase = phase
	if v == nil {
		next.Status.AccessModes, next.Status.Capacity = nil, nil
	} else {
		next.Status.AccessModes = v.Spec.AccessModes
		if p.Status.Phase != corev1.ClaimBound { // later it is the resizer's
			next.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: v.Spec.Capacity[corev1.ResourceStorage]}
		}
	}
	if equality.Semantic.DeepEqual(p.Status, next.Status) {
		return nil
	}
	_, err := c.cfg.Client.CoreV1().PersistentVolumeClaims(p.Namespace).UpdateStatus(ctx, next, metav1.UpdateOptions{})
	return wrap(err, "updating claim status")
}

func (c *Controller) lost(ctx context.Context, p *corev1.PersistentVolumeClaim, reason, message string) error {
	if p.Status.Phase == corev1.ClaimLost {
		return nil
	}
	c.cfg.Events.Event(p, corev1.EventTypeWarning, reason, message)
	return c.phase(ctx, p, corev1.ClaimLost, nil)
}

func wrap(err error, what string) error {
	if err == nil || apierrors.IsNotFound(err) {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

func (c *Controller) volume(ctx context.Context, key controller.Key) (time.Duration, error) {
	v, err := c.pvs.Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("reading volume: %w", err)
	}
	r := v.Spec.ClaimRef
	if r == nil || r.UID == "" {
		_, err := c.volumePhase(ctx, v, corev1.VolumeAvailable, "")
		return 0, err
	}
	p, err := c.pvcs.PersistentVolumeClaims(r.Namespace).Get(r.Name)
	if apierrors.IsNotFound(err) || err == nil && p.UID != r.UID {
		// Releasing a volume may wipe it: ask the server.
		p, err = c.cfg.Client.CoreV1().PersistentVolumeClaims(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	}
	switch {
	case apierrors.IsNotFound(err) || err == nil && p.UID != r.UID:
		if v.Status.Phase != corev1.VolumeFailed {
			_, err = c.volumePhase(ctx, v, corev1.VolumeReleased, "")
		} else {
			err = nil
		}
		return 0, err
	case err != nil:
		return 0, fmt.Errorf("reading claim: %w", err)
	case p.Spec.VolumeName == "":
		c.claims.Add(controller.KeyOf(p)) // half bound
	case p.Spec.VolumeName == v.Name:
		_, err := c.volumePhase(ctx, v, corev1.VolumeBound, "")
		return 0, err
	}
	return 0, nil
}

func (c *Controller) volumePhase(ctx context.Context, v *corev1.PersistentVolume, phase corev1.PersistentVolumePhase, message string) (*corev1.PersistentVolume, error) {
	if v.Status.Phase == phase && v.Status.Message == message {
		return v, nil
	}
	next := v.DeepCopy()
	next.Status.Phase, next.Status.Message = phase, message
	next.Status.LastPhaseTransitionTime = ptr.To(metav1.NewTime(c.cfg.Clock.Now()))
	written, err := c.cfg.Client.CoreV1().PersistentVolumes().UpdateStatus(ctx, next, metav1.UpdateOptions{})
	if err != nil {
		return v, wrap(err, "updating volume status")
	}
	return written, nil
}
