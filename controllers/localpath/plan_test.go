package localpath

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/api/localpath"
)

func class(change ...func(*storagev1.StorageClass)) *storagev1.StorageClass {
	s := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local-path"}, Provisioner: localpath.Provisioner,
		VolumeBindingMode: ptr.To(storagev1.VolumeBindingWaitForFirstConsumer), ReclaimPolicy: ptr.To(corev1.PersistentVolumeReclaimDelete)}
	for _, f := range change {
		f(s)
	}
	return s
}

func claim(uid types.UID, node string, change ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c" + string(uid), UID: uid, Annotations: map[string]string{
			"volume.kubernetes.io/storage-provisioner": localpath.Provisioner, "volume.kubernetes.io/selected-node": node}},
		Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To("local-path"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func pv(uid types.UID, node string, phase corev1.PersistentVolumePhase, change ...func(*corev1.PersistentVolume)) *corev1.PersistentVolume {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node, Labels: map[string]string{corev1.LabelHostname: node}}}
	v := newVolume("pvc-"+string(uid), waiting{claim(uid, node), class()}, view{node: n, report: localpath.Report{Directory: "/d"}})
	v.UID, v.Status.Phase = "pv-"+uid, phase
	for _, f := range change {
		f(v)
	}
	return v
}

func TestPlan(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelHostname: "host-n"}}}
	report := func(volumes ...string) localpath.Report { return localpath.Report{Directory: "/d", Volumes: volumes} }
	wait := func(c *corev1.PersistentVolumeClaim, s ...*storagev1.StorageClass) []waiting {
		if len(s) == 0 {
			s = append(s, class())
		}
		return []waiting{{c, s[0]}}
	}
	retain := func(v *corev1.PersistentVolume) {
		v.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	}
	deleting := func(v *corev1.PersistentVolume) { v.DeletionTimestamp = ptr.To(metav1.Now()) }
	none := func(string) bool { return false }
	some := func(string) bool { return true }
	type want struct {
		make, remove, prune, create, release, reschedule, removed, unheld string
		event                                                             string
	}
	for _, tt := range []struct {
		name string
		view view
		want want
	}{
		{"a directory is ordered first", view{node: node, reported: true, report: report(), waiting: wait(claim("1", "n")), claimed: some},
			want{make: "pvc-1", event: "Provisioning External provisioner is provisioning volume for claim \"default/c1\""}},
		{"then the volume is made", view{node: node, reported: true, report: report("pvc-1"), waiting: wait(claim("1", "n")), claimed: some},
			want{create: "pvc-1"}},
		{"once", view{node: node, reported: true, report: report("pvc-1"), waiting: wait(claim("1", "n")), volumes: []*corev1.PersistentVolume{pv("1", "n", "")}, claimed: some},
			want{}},
		{"a node that could not make it is not the last", view{node: node, reported: true, report: localpath.Report{Directory: "/d", Failed: map[string]string{"pvc-1": "disk full"}}, waiting: wait(claim("1", "n")), claimed: some},
			want{reschedule: "c1", event: `ProvisioningFailed failed to provision volume with StorageClass "local-path": node n: disk full`}},
		{"a node that has gone neither", view{waiting: wait(claim("1", "n")), claimed: some},
			want{reschedule: "c1", event: `node n, chosen for it, is gone`}},
		{"a node of others", view{node: node, waiting: wait(claim("1", "n")), claimed: some},
			want{event: "has not said where it keeps"}},
		{"no node yet", view{waiting: wait(claim("1", "")), claimed: some}, want{}},
		{"a node without its name as label", view{node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, reported: true, report: report(), waiting: wait(claim("1", "n")), claimed: some},
			want{event: "node n has no label kubernetes.io/hostname"}},
		{"another provisioner's class", view{node: node, reported: true, report: report(), waiting: wait(claim("1", "n"), class(func(s *storagev1.StorageClass) { s.Provisioner = "other" })), claimed: some}, want{}},
		{"no class", view{node: node, reported: true, report: report(), waiting: []waiting{{claim("1", "n"), nil}}, claimed: some}, want{}},

		{"a bound volume stays", view{node: node, reported: true, report: report("pvc-1"), volumes: []*corev1.PersistentVolume{pv("1", "n", corev1.VolumeBound)}, claimed: some}, want{}},
		{"even when it is deleted", view{node: node, reported: true, report: report("pvc-1"), volumes: []*corev1.PersistentVolume{pv("1", "n", corev1.VolumeBound, deleting)}, claimed: some}, want{}},
		{"a released one goes: directory first", view{node: node, reported: true, report: report("pvc-1"), volumes: []*corev1.PersistentVolume{pv("1", "n", corev1.VolumeReleased)}, claimed: none},
			want{remove: "pvc-1"}},
		{"deleted or not", view{node: node, reported: true, report: report("pvc-1"), volumes: []*corev1.PersistentVolume{pv("1", "n", corev1.VolumeReleased, deleting)}, claimed: none},
			want{remove: "pvc-1"}},
		{"then the volume", view{node: node, reported: true, report: report(), volumes: []*corev1.PersistentVolume{pv("1", "n", corev1.VolumeReleased)}, claimed: none},
			want{release: "pvc-1"}},
		{"what cannot be removed is told", view{node: node, reported: true, report: localpath.Report{Directory: "/d", Volumes: []string{"pvc-1"}, Failed: map[string]string{"pvc-1": "busy"}}, volumes: []*corev1.PersistentVolume{pv("1", "n", corev1.VolumeReleased)}, claimed: none},
			want{remove: "pvc-1", event: "VolumeFailedDelete node n: busy"}},
		{"a node that is silent is waited for", view{node: node, volumes: []*corev1.PersistentVolume{pv("1", "n", corev1.VolumeReleased)}, claimed: none}, want{}},
		{"one that is gone is not, but remembered", view{volumes: []*corev1.PersistentVolume{pv("1", "n", corev1.VolumeReleased)}, removed: []string{"pvc-0"}, claimed: none},
			want{release: "pvc-1", removed: "pvc-0 pvc-1"}},
		{"a bound volume of a node that is gone stays", view{volumes: []*corev1.PersistentVolume{pv("1", "n", corev1.VolumeBound)}, claimed: some}, want{}},
		{"should it come back", view{node: node, reported: true, report: report("pvc-1"), removed: []string{"pvc-1"}, claimed: none},
			want{remove: "pvc-1", removed: "pvc-1"}},
		{"it is forgotten after", view{node: node, reported: true, report: report(), removed: []string{"pvc-1"}, claimed: none}, want{}},
		{"not before it has said what it has", view{node: node, removed: []string{"pvc-1"}, claimed: none}, want{removed: "pvc-1"}},
		{"what nobody knows goes if it is empty", view{node: node, reported: true, report: report("pvc-1"), claimed: none}, want{prune: "pvc-1"}},
		{"what a claim waits for does not", view{node: node, reported: true, report: report("pvc-1"), claimed: some}, want{}},
		{"a retained volume's directory stays", view{node: node, reported: true, report: report("pvc-1"), volumes: []*corev1.PersistentVolume{pv("1", "n", corev1.VolumeReleased, retain)}, claimed: none},
			want{unheld: "pvc-1"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a := plan(tt.view)
			var create, release, reschedule, unheld []string
			for _, v := range a.create {
				create = append(create, v.Name)
			}
			for _, v := range a.release {
				release = append(release, v.Name)
			}
			for _, c := range a.reschedule {
				reschedule = append(reschedule, c.Name)
			}
			for v, f := range a.finalize {
				if !slices.Contains(f, finalizer) {
					unheld = append(unheld, v.Name)
				}
			}
			for what, pair := range map[string][2]string{
				"make": {strings.Join(a.orders.Make, " "), tt.want.make}, "remove": {strings.Join(a.orders.Remove, " "), tt.want.remove},
				"prune": {strings.Join(a.orders.Prune, " "), tt.want.prune}, "create": {strings.Join(create, " "), tt.want.create},
				"release": {strings.Join(release, " "), tt.want.release}, "reschedule": {strings.Join(reschedule, " "), tt.want.reschedule},
				"removed": {strings.Join(a.removed, " "), tt.want.removed}, "unheld": {strings.Join(unheld, " "), tt.want.unheld},
			} {
				if pair[0] != pair[1] {
					t.Errorf("%s %q, want %q", what, pair[0], pair[1])
				}
			}
			events := ""
			for _, n := range a.tell {
				events += n.reason + " " + n.message
			}
			if (tt.want.event == "") != (events == "") || !strings.Contains(events, tt.want.event) {
				t.Errorf("events %q, want %q", events, tt.want.event)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	for want, change := range map[string]any{
		"access mode ReadWriteMany": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}
		},
		"access mode ReadOnlyMany": func(c *corev1.PersistentVolumeClaim) {
			c.Spec.AccessModes = append(c.Spec.AccessModes, corev1.ReadOnlyMany)
		},
		"volumeMode Block": func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeMode = ptr.To(corev1.PersistentVolumeBlock) },
		"selector":         func(c *corev1.PersistentVolumeClaim) { c.Spec.Selector = &metav1.LabelSelector{} },
		"dataSource":       func(c *corev1.PersistentVolumeClaim) { c.Spec.DataSourceRef = &corev1.TypedObjectReference{} },
		"WaitForFirstConsumer": func(s *storagev1.StorageClass) {
			s.VolumeBindingMode = ptr.To(storagev1.VolumeBindingImmediate)
		},
		"parameters":   func(s *storagev1.StorageClass) { s.Parameters = map[string]string{"a": "b"} },
		"mountOptions": func(s *storagev1.StorageClass) { s.MountOptions = []string{"ro"} },
	} {
		c, s := claim("1", "n"), class()
		switch f := change.(type) {
		case func(*corev1.PersistentVolumeClaim):
			f(c)
		case func(*storagev1.StorageClass):
			f(s)
		}
		if got := refusal(c, s); !strings.Contains(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
	c := claim("1", "n", func(c *corev1.PersistentVolumeClaim) {
		c.Spec.AccessModes, c.Spec.VolumeMode = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}, ptr.To(corev1.PersistentVolumeFilesystem)
	})
	if got := refusal(c, class()); got != "" {
		t.Errorf("what can be done is refused: %s", got)
	}
}
