// Package volumebinding has the plugin VolumeBinding: a pod goes where its volumes are, or
// where they can be; claims that wait for their first consumer are bound to volumes that
// the chosen node can reach.
package volumebinding

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/scheduler/framework"
	"github.com/skiff-k8s/skiff/scheduler/snapshot"
)

// Name of the plugin in configurations.
const Name = "VolumeBinding"

const (
	// bindTimeout is how long a pod's binding waits for its volumes.
	bindTimeout = 10 * time.Minute
	poll        = 200 * time.Millisecond

	noProvisioner = "kubernetes.io/no-provisioner"
)

var (
	immediate = framework.NewStatus(framework.Unresolvable, Name, "pod has unbound immediate PersistentVolumeClaims")
	elsewhere = framework.NewStatus(framework.Unresolvable, Name, "node(s) didn't match PersistentVolume's node affinity")
	missing   = framework.NewStatus(framework.Unresolvable, Name, "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")
	noVolume  = framework.NewStatus(framework.Unresolvable, Name, "node(s) didn't find available persistent volumes to bind")
)

// Plugin is VolumeBinding.
type Plugin struct {
	client  kubernetes.Interface
	clock   clock.WithTicker
	claims  corelisters.PersistentVolumeClaimLister
	volumes corelisters.PersistentVolumeLister
	classes storagelisters.StorageClassLister

	mu      sync.RWMutex
	assumed map[string]types.UID // volumes promised to claims, not yet shown by the lister
}

// New makes the plugin.
func New(client kubernetes.Interface, shared informers.SharedInformerFactory, c clock.WithTicker) *Plugin {
	core := shared.Core().V1()
	return &Plugin{client: client, clock: c, claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		classes: shared.Storage().V1().StorageClasses().Lister(), assumed: map[string]types.UID{}}
}

// Name of the plugin.
func (*Plugin) Name() string { return Name }

type stateKey struct{}

// state is a pod's claims, and what was decided for the chosen node.
type state struct {
	bound    []*corev1.PersistentVolumeClaim
	waiting  []*corev1.PersistentVolumeClaim
	byClass  map[string][]*corev1.PersistentVolume // smallest first
	decision decision
}

// decision for a node: claims to bind to volumes there are, and claims to provision for.
type decision struct {
	static    map[*corev1.PersistentVolumeClaim]*corev1.PersistentVolume
	provision []*corev1.PersistentVolumeClaim
}

// ClaimNames are the claims of a pod, by volume.
func ClaimNames(p *corev1.Pod) (names []string, fromTemplate []bool) {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		switch {
		case v.PersistentVolumeClaim != nil:
			names, fromTemplate = append(names, v.PersistentVolumeClaim.ClaimName), append(fromTemplate, false)
		case v.Ephemeral != nil:
			names, fromTemplate = append(names, ephemeral.VolumeClaimName(p, v)), append(fromTemplate, true)
		}
	}
	return names, fromTemplate
}

func rejected(format string, args ...any) *framework.Status {
	return framework.NewStatus(framework.Unresolvable, Name, fmt.Sprintf(format, args...))
}

// PreFilter sorts the pod's claims; it skips pods without.
func (pl *Plugin) PreFilter(c *framework.Cycle) *framework.Status {
	names, fromTemplate := ClaimNames(c.Pod.Pod)
	if len(names) == 0 {
		return framework.Skipped
	}
	s := &state{byClass: map[string][]*corev1.PersistentVolume{}}
	for i, name := range names {
		claim, err := pl.claims.PersistentVolumeClaims(c.Pod.Namespace).Get(name)
		switch {
		case apierrors.IsNotFound(err) && fromTemplate[i]:
			return rejected("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
		case apierrors.IsNotFound(err):
			return rejected("persistentvolumeclaim %q not found", name)
		case err != nil:
			return framework.Failed(Name, fmt.Errorf("reading claim %s: %w", name, err))
		case claim.Status.Phase == corev1.ClaimLost:
			return rejected("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name, claim.Spec.VolumeName)
		case claim.DeletionTimestamp != nil:
			return rejected("persistentvolumeclaim %q is being deleted", name)
		}
		if fromTemplate[i] {
			if ref := metav1.GetControllerOfNoCopy(claim); ref == nil || ref.UID != c.Pod.UID {
				return rejected("PVC %s/%s was not created for pod %s/%s (pod is not owner)", claim.Namespace, name, c.Pod.Namespace, c.Pod.Name)
			}
		}
		if claim.Spec.VolumeName != "" && claim.Annotations[volume.AnnBindCompleted] != "" {
			s.bound = append(s.bound, claim)
			continue
		}
		delay, err := volume.IsDelayBindingMode(claim, pl.classes)
		if err != nil && !apierrors.IsNotFound(err) {
			return framework.Failed(Name, fmt.Errorf("reading storage class of claim %s: %w", name, err))
		}
		if !delay || claim.Spec.VolumeName != "" {
			return immediate
		}
		s.waiting = append(s.waiting, claim)
	}
	if st := pl.load(s); st != nil {
		return st
	}
	c.Set(stateKey{}, s)
	return nil
}

// load lists the volumes that waiting claims may take.
func (pl *Plugin) load(s *state) *framework.Status {
	if len(s.waiting) == 0 {
		return nil
	}
	all, err := pl.volumes.List(labels.Everything())
	if err != nil {
		return framework.Failed(Name, fmt.Errorf("listing volumes: %w", err))
	}
	slices.SortFunc(all, func(a, b *corev1.PersistentVolume) int {
		x, y := a.Spec.Capacity[corev1.ResourceStorage], b.Spec.Capacity[corev1.ResourceStorage]
		return cmp.Or(x.Cmp(y), cmp.Compare(a.Name, b.Name))
	})
	for _, v := range all {
		class := volume.GetPersistentVolumeClass(v)
		s.byClass[class] = append(s.byClass[class], v)
	}
	return nil
}

// Filter checks that all volumes are, or can be, within the node's reach.
func (pl *Plugin) Filter(c *framework.Cycle, n *snapshot.Node) *framework.Status {
	s, ok := c.Get(stateKey{}).(*state)
	if !ok {
		return nil
	}
	for _, claim := range s.bound {
		v, err := pl.volumes.Get(claim.Spec.VolumeName)
		if err != nil {
			return missing
		}
		if volume.CheckNodeAffinity(v, n.Object.Labels) != nil {
			return elsewhere
		}
	}
	_, st := pl.decide(s, n)
	return st
}

// decide finds volumes for the waiting claims on a node, the smallest that do.
func (pl *Plugin) decide(s *state, n *snapshot.Node) (decision, *framework.Status) {
	d := decision{}
	if len(s.waiting) == 0 {
		return d, nil
	}
	taken := map[string]*corev1.PersistentVolume{}
	pl.mu.RLock()
	for name := range pl.assumed {
		taken[name] = nil
	}
	pl.mu.RUnlock()
	d.static = map[*corev1.PersistentVolumeClaim]*corev1.PersistentVolume{}
	for _, claim := range s.waiting {
		if chosen := claim.Annotations[volume.AnnSelectedNode]; chosen != "" {
			if chosen != n.Name() {
				return d, elsewhere
			}
			d.provision = append(d.provision, claim)
			continue
		}
		class := volume.GetPersistentVolumeClaimClass(claim)
		v, err := volume.FindMatchingVolume(claim, s.byClass[class], n.Object, taken, true, false)
		if err != nil {
			return d, framework.Failed(Name, fmt.Errorf("matching volumes: %w", err))
		}
		if v != nil {
			taken[v.Name] = v
			d.static[claim] = v
			continue
		}
		sc, err := pl.classes.Get(class)
		if err != nil || sc.Provisioner == "" || sc.Provisioner == noProvisioner || !reaches(sc, n.Object) {
			return d, noVolume
		}
		d.provision = append(d.provision, claim)
	}
	return d, nil
}

// reaches reports whether a class makes volumes that the node can use.
func reaches(sc *storagev1.StorageClass, n *corev1.Node) bool {
	return len(sc.AllowedTopologies) == 0 || slices.ContainsFunc(sc.AllowedTopologies, func(t corev1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(t.MatchLabelExpressions, func(r corev1.TopologySelectorLabelRequirement) bool {
			v, ok := n.Labels[r.Key]
			return !ok || !slices.Contains(r.Values, v)
		})
	})
}

// Reserve promises the volumes.
func (pl *Plugin) Reserve(c *framework.Cycle, n *snapshot.Node) *framework.Status {
	s, ok := c.Get(stateKey{}).(*state)
	if !ok {
		return nil
	}
	d, st := pl.decide(s, n)
	if st != nil {
		return st
	}
	s.decision = d
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for claim, v := range d.static {
		pl.assumed[v.Name] = claim.UID
	}
	return nil
}

// Unreserve takes the promises back.
func (pl *Plugin) Unreserve(c *framework.Cycle, _ string) {
	s, ok := c.Get(stateKey{}).(*state)
	if !ok {
		return
	}
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for claim, v := range s.decision.static {
		if pl.assumed[v.Name] == claim.UID {
			delete(pl.assumed, v.Name)
		}
	}
}

// PreBind writes the decision and waits until the claims are bound.
func (pl *Plugin) PreBind(ctx context.Context, c *framework.Cycle, node string) error {
	s, ok := c.Get(stateKey{}).(*state)
	if !ok || len(s.waiting) == 0 {
		return nil
	}
	for claim, v := range s.decision.static {
		next, dirty, err := volume.GetBindVolumeToClaim(v, claim)
		if err != nil {
			return fmt.Errorf("binding volume %s: %w", v.Name, err)
		}
		if dirty {
			if _, err := pl.client.CoreV1().PersistentVolumes().Update(ctx, next, metav1.UpdateOptions{}); err != nil {
				return fmt.Errorf("binding volume %s: %w", v.Name, err)
			}
		}
	}
	for _, claim := range s.decision.provision {
		if claim.Annotations[volume.AnnSelectedNode] == node {
			continue
		}
		next := claim.DeepCopy()
		if next.Annotations == nil {
			next.Annotations = map[string]string{}
		}
		next.Annotations[volume.AnnSelectedNode] = node
		if _, err := pl.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Update(ctx, next, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("choosing node of claim %s: %w", claim.Name, err)
		}
	}
	return pl.wait(ctx, s.waiting, s.decision.provision, node)
}

// wait blocks until the claims are bound. A provisioner that cannot serve a node takes the choice
// back, by removing the annotation: then the pod is to go elsewhere.
func (pl *Plugin) wait(ctx context.Context, claims, provision []*corev1.PersistentVolumeClaim, node string) error {
	chosen := map[types.UID]bool{} // those that the lister has shown with their node
	ctx, cancel := context.WithTimeoutCause(ctx, bindTimeout, fmt.Errorf("volumes were not bound within %s", bindTimeout))
	defer cancel()
	t := pl.clock.NewTicker(poll)
	defer t.Stop()
	for {
		left := slices.DeleteFunc(slices.Clone(claims), func(want *corev1.PersistentVolumeClaim) bool {
			have, err := pl.claims.PersistentVolumeClaims(want.Namespace).Get(want.Name)
			return err == nil && have.UID == want.UID && have.Spec.VolumeName != "" && have.Annotations[volume.AnnBindCompleted] != ""
		})
		for _, want := range provision {
			have, err := pl.claims.PersistentVolumeClaims(want.Namespace).Get(want.Name)
			switch {
			case err != nil || have.UID != want.UID:
			case have.Annotations[volume.AnnSelectedNode] == node:
				chosen[want.UID] = true
			case chosen[want.UID] && have.Spec.VolumeName == "":
				return fmt.Errorf("provisioning failed for PVC %q", want.Name)
			}
		}
		if len(left) == 0 {
			pl.settle()
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-t.C():
		}
	}
}

// settle forgets promises that the lister shows as kept.
func (pl *Plugin) settle() {
	pl.mu.Lock()
	defer pl.mu.Unlock()
	for name, uid := range pl.assumed {
		v, err := pl.volumes.Get(name)
		if err != nil || v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID == uid {
			delete(pl.assumed, name)
		}
	}
}

// Hints: claims and volumes come and change, and so do nodes.
func (*Plugin) Hints() []framework.Hint {
	return []framework.Hint{{Kinds: framework.VolumeChange | framework.NodeAdd | framework.NodeLabel | framework.SelfUpdate}}
}
