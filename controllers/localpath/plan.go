package localpath

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/localpath"
)

const (
	provisionedBy = "pv.kubernetes.io/provisioned-by"
	// finalizer is what upstream's external provisioners put on volumes: one that is deleted
	// before its claim keeps its directory no longer than the claim (KEP-2644).
	finalizer = "external-provisioner.volume.kubernetes.io/finalizer"
)

// view is what is known of one node and its volumes.
type view struct {
	node     *corev1.Node // nil: there is none of that name
	report   localpath.Report
	reported bool
	orders   localpath.Orders
	waiting  []waiting
	volumes  []*corev1.PersistentVolume
	// claimed says whether the claim that a volume is named after is there.
	claimed func(volume string) bool
	// removed are volumes whose PersistentVolume went while the node was gone.
	removed []string
}

// waiting is a claim that is to be provisioned on the node, and its class if there is one.
type waiting struct {
	claim *corev1.PersistentVolumeClaim
	class *storagev1.StorageClass
}

// note is an event.
type note struct {
	about                 any
	kind, reason, message string
}

// actions are what is to be done for a node.
type actions struct {
	orders     localpath.Orders
	create     []*corev1.PersistentVolume
	created    []note
	reschedule []*corev1.PersistentVolumeClaim
	// finalize are volumes with the finalizers they should have.
	finalize map[*corev1.PersistentVolume][]string
	// release are volumes whose directory is gone, or was left on a node that is.
	release []*corev1.PersistentVolume
	// removed is the next value of the view's.
	removed []string
	tell    []note
}

// refusal says what of a claim or its class the provisioner cannot do; "": nothing.
func refusal(c *corev1.PersistentVolumeClaim, s *storagev1.StorageClass) string {
	for _, m := range c.Spec.AccessModes {
		if m != corev1.ReadWriteOnce && m != corev1.ReadWriteOncePod {
			return fmt.Sprintf("access mode %s is not supported: a directory of one node can be ReadWriteOnce or ReadWriteOncePod", m)
		}
	}
	switch {
	case s.VolumeBindingMode == nil || *s.VolumeBindingMode != storagev1.VolumeBindingWaitForFirstConsumer:
		return fmt.Sprintf("volumeBindingMode of StorageClass %s must be WaitForFirstConsumer: the pod's node is where the directory is made", s.Name)
	case c.Spec.VolumeMode != nil && *c.Spec.VolumeMode != corev1.PersistentVolumeFilesystem:
		return fmt.Sprintf("volumeMode %s is not supported: a directory is a Filesystem", *c.Spec.VolumeMode)
	case c.Spec.Selector != nil:
		return "selector is not supported by a provisioner that makes the volume"
	case c.Spec.DataSource != nil || c.Spec.DataSourceRef != nil:
		return "dataSource is not supported: the directory is made empty"
	case len(s.Parameters) > 0:
		return fmt.Sprintf("StorageClass %s has parameters, of which there are none", s.Name)
	case len(s.MountOptions) > 0:
		return fmt.Sprintf("StorageClass %s has mountOptions, which a directory cannot have", s.Name)
	}
	return ""
}

// plan decides. It names the same actions again until they have shown.
func plan(v view) actions {
	a := actions{finalize: map[*corev1.PersistentVolume][]string{}}
	has := map[string]bool{} // directories
	for _, name := range v.report.Volumes {
		has[name] = v.reported
	}
	kept := map[string]bool{} // by a PersistentVolume
	for _, pv := range v.volumes {
		kept[pv.Name] = true
	}
	for _, w := range v.waiting {
		if w.class != nil && w.class.Provisioner == localpath.Provisioner && !kept[localpath.VolumeName(string(w.claim.UID))] {
			provision(&a, v, w, has)
		}
	}
	for _, pv := range v.volumes {
		reclaim(&a, v, pv, has)
	}
	// What is a volume's no longer. A directory that holds something goes only if it is known that
	// its volume was to be reclaimed: volumes may have been retained, or the API restored from a backup.
	for _, name := range v.removed {
		if !v.reported || has[name] {
			a.removed = append(a.removed, name)
		}
	}
	for _, name := range v.report.Volumes {
		switch {
		case !has[name] || kept[name] || v.claimed(name):
		case slices.Contains(v.removed, name):
			a.orders.Remove = append(a.orders.Remove, name)
		default:
			a.orders.Prune = append(a.orders.Prune, name)
		}
	}
	for _, names := range []*[]string{&a.orders.Make, &a.orders.Remove, &a.orders.Prune, &a.removed} {
		slices.Sort(*names)
		*names = slices.Compact(*names)
	}
	return a
}

func provision(a *actions, v view, w waiting, has map[string]bool) {
	name := localpath.VolumeName(string(w.claim.UID))
	fail := func(format string, args ...any) {
		a.tell = append(a.tell, note{w.claim, corev1.EventTypeWarning, "ProvisioningFailed",
			fmt.Sprintf("failed to provision volume with StorageClass %q: ", w.class.Name) + fmt.Sprintf(format, args...)})
	}
	why := v.report.Failed[name]
	switch no := refusal(w.claim, w.class); {
	case no != "":
		fail("%s", no)
	case w.claim.Annotations[volume.AnnSelectedNode] == "": // the scheduler has yet to choose
	case v.node == nil || v.node.DeletionTimestamp != nil:
		fail("node %s, chosen for it, is gone", w.claim.Annotations[volume.AnnSelectedNode])
		a.reschedule = append(a.reschedule, w.claim)
	case v.node.Labels[corev1.LabelHostname] == "":
		fail("node %s has no label %s", v.node.Name, corev1.LabelHostname)
	case !v.reported:
		fail("node %s has not said where it keeps local-path volumes: its skiff node process does not run, or it is not skiff's", v.node.Name)
	case has[name]:
		a.create = append(a.create, newVolume(name, w, v))
		a.created = append(a.created, note{w.claim, corev1.EventTypeNormal, "ProvisioningSucceeded", "Successfully provisioned volume " + name})
	case why != "":
		fail("node %s: %s", v.node.Name, why)
		a.reschedule = append(a.reschedule, w.claim)
	default:
		a.orders.Make = append(a.orders.Make, name)
		a.tell = append(a.tell, note{w.claim, corev1.EventTypeNormal, "Provisioning",
			fmt.Sprintf("External provisioner is provisioning volume for claim %q", w.claim.Namespace+"/"+w.claim.Name)})
	}
}

func newVolume(name string, w waiting, v view) *corev1.PersistentVolume {
	c := w.claim
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{provisionedBy: localpath.Provisioner, localpath.NodeAnnotation: v.node.Name}},
		Spec: corev1.PersistentVolumeSpec{
			// Capacity is what was asked for; nothing holds a pod to it.
			Capacity:                      corev1.ResourceList{corev1.ResourceStorage: c.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes:                   c.Spec.AccessModes,
			PersistentVolumeReclaimPolicy: ptr.Deref(w.class.ReclaimPolicy, corev1.PersistentVolumeReclaimDelete),
			StorageClassName:              w.class.Name,
			VolumeMode:                    ptr.To(corev1.PersistentVolumeFilesystem),
			ClaimRef: &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: c.Namespace, Name: c.Name,
				UID: c.UID, ResourceVersion: c.ResourceVersion},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: v.report.Directory + "/" + name}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{v.node.Labels[corev1.LabelHostname]}}},
			}}}},
		},
	}
	if pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete {
		pv.Finalizers = []string{finalizer}
	}
	return pv
}

// reclaim takes a released volume's directory away, then the volume.
func reclaim(a *actions, v view, pv *corev1.PersistentVolume, has map[string]bool) {
	deletes := pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	held := slices.Contains(pv.Finalizers, finalizer)
	switch {
	case !deletes && held:
		a.finalize[pv] = slices.DeleteFunc(slices.Clone(pv.Finalizers), func(f string) bool { return f == finalizer })
	case deletes && !held && pv.DeletionTimestamp == nil:
		a.finalize[pv] = append(slices.Clone(pv.Finalizers), finalizer)
	}
	if !deletes || pv.Status.Phase != corev1.VolumeReleased && pv.Status.Phase != corev1.VolumeFailed {
		return
	}
	switch why := v.report.Failed[pv.Name]; {
	case v.node == nil:
		a.removed = append(a.removed, pv.Name)
		a.release = append(a.release, pv)
	case !v.reported: // its part of the node process will come
	case has[pv.Name]:
		a.orders.Remove = append(a.orders.Remove, pv.Name)
		if why != "" {
			a.tell = append(a.tell, note{pv, corev1.EventTypeWarning, "VolumeFailedDelete", fmt.Sprintf("node %s: %s", v.node.Name, why)})
		}
	default:
		a.release = append(a.release, pv)
	}
}
