package volumes

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/host/mount"
	"github.com/skiff-k8s/skiff/kubelet/environ"
)

type objects map[string]map[string]string

func (o objects) ConfigMap(_ context.Context, _, name string) (*corev1.ConfigMap, error) {
	d, ok := o[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
	}
	return &corev1.ConfigMap{Data: d}, nil
}

func (o objects) Secret(_ context.Context, _, name string) (*corev1.Secret, error) {
	d, ok := o[name]
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
	}
	s := &corev1.Secret{Data: map[string][]byte{}}
	for k, v := range d {
		s.Data[k] = []byte(v)
	}
	return s, nil
}

func manager(t *testing.T, table mount.Table, o objects, client *fake.Clientset, clk *testclock.FakeClock) *Manager {
	t.Helper()
	cfg := Config{RootDir: t.TempDir(), Mounts: table, Objects: o, Logger: slog.New(slog.DiscardHandler), Clock: clk,
		Downward: func() environ.Downward {
			return environ.Downward{Allocatable: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}
		}}
	if client != nil {
		cfg.Client = client
	}
	return New(cfg)
}

func read(t *testing.T, path string) string {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestLifecycle(t *testing.T) {
	ctx := context.Background()
	table := &mount.Twin{}
	o := objects{"cm": {"a": "1", "b": "2"}, "sec": {"s": "x"}}
	issued := 0
	client := fake.NewClientset()
	client.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, runtime.Object, error) {
		issued++
		return true, &authv1.TokenRequest{Status: authv1.TokenRequestStatus{Token: strings.Repeat("t", issued)}, Spec: authv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](1000)}}, nil
	})
	clk := testclock.NewFakeClock(time.Now())
	m := manager(t, table, o, client, clk)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Labels: map[string]string{"l": "1"}},
		Spec: corev1.PodSpec{
			ServiceAccountName: "sa",
			Containers:         []corev1.Container{{Name: "c"}},
			Volumes: []corev1.Volume{
				{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
				{Name: "m", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: ptr.To(resource.MustParse("8Mi"))}}},
				{Name: "c", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, Items: []corev1.KeyToPath{{Key: "a", Path: "dir/a", Mode: ptr.To[int32](0o400)}}}}},
				{Name: "p", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
					{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}},
					{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "sec"}}},
					{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}},
				}}}},
			},
		},
	}
	next, err := m.Setup(ctx, pod)
	if err != nil {
		t.Fatal(err)
	}
	if d := next.Sub(clk.Now()); d != 800*time.Second {
		t.Errorf("refresh in %v", d)
	}
	path := func(v string) string {
		p, err := m.Path("u", v)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	if e := table.Mounts[path("m")]; e.Size != 8<<20 {
		t.Errorf("memory volume %+v", e)
	}
	if fi, _ := os.Stat(path("e")); fi.Mode().Perm() != 0o777 {
		t.Errorf("emptyDir mode %v", fi.Mode())
	}
	if got := read(t, path("c")+"/dir/a"); got != "1" {
		t.Errorf("configMap item %q", got)
	}
	if fi, _ := os.Stat(path("c") + "/dir/a"); fi.Mode().Perm() != 0o400 {
		t.Errorf("item mode %v", fi.Mode())
	}
	if read(t, path("p")+"/token") != "t" || read(t, path("p")+"/s") != "x" || read(t, path("p")+"/labels") != `l="1"` {
		t.Error("projected volume is wrong")
	}

	// Live updates: object, labels, token.
	o["cm"]["a"] = "new"
	pod = pod.DeepCopy()
	pod.Labels["l"] = "2"
	clk.Step(801 * time.Second)
	if err := os.WriteFile(path("e")+"/keep", []byte("k"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Setup(ctx, pod); err != nil {
		t.Fatal(err)
	}
	if read(t, path("c")+"/dir/a") != "new" || read(t, path("p")+"/token") != "tt" || read(t, path("p")+"/labels") != `l="2"` {
		t.Error("volumes were not refreshed")
	}

	// A new kubelet finds all as it is.
	m2 := New(m.cfg)
	if _, err := m2.Setup(ctx, pod); err != nil {
		t.Fatal(err)
	}
	if read(t, path("e")+"/keep") != "k" {
		t.Error("emptyDir was lost over a restart")
	}
	if uids, err := m2.Pods(); err != nil || len(uids) != 1 || uids[0] != "u" {
		t.Errorf("pods %v, %v", uids, err)
	}
	if err := m2.Teardown("u"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(m.PodDir("u")); !os.IsNotExist(err) || len(table.Mounts) != 0 {
		t.Errorf("left behind: %v %v", err, table.Mounts)
	}
}

func TestSetupErrors(t *testing.T) {
	m := manager(t, &mount.Twin{}, objects{"cm": {"a": "1"}}, nil, nil)
	cm := func(name string, optional bool, keys ...string) corev1.Volume {
		v := &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Optional: &optional}
		for _, k := range keys {
			v.Items = append(v.Items, corev1.KeyToPath{Key: k, Path: k})
		}
		return corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{ConfigMap: v}}
	}
	for _, tc := range []struct {
		v    corev1.Volume
		want string
	}{
		{cm("gone", false), `MountVolume.SetUp failed for volume "v" : configmap "gone" not found`},
		{cm("gone", true), ""},
		{cm("cm", false, "zz"), `MountVolume.SetUp failed for volume "v" : references non-existent config key: zz`},
		{cm("cm", true, "zz"), ""},
		{corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/etc/passwd", Type: ptr.To(corev1.HostPathDirectory)}}}, `MountVolume.SetUp failed for volume "v" : hostPath type check failed: /etc/passwd is not a directory`},
		{corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{NFS: &corev1.NFSVolumeSource{}}}, `MountVolume.SetUp failed for volume "v" : this kind of volume is not supported by this kubelet`},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", UID: "u"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{tc.v}}}
		_, err := m.Setup(context.Background(), pod)
		got := ""
		if err != nil {
			got = err.Error()
			var ve *Error
			if !errors.As(err, &ve) || ve.Volume != "v" {
				t.Errorf("%v does not name the volume", err)
			}
		}
		if got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
		if err := m.Teardown("u"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSubPath(t *testing.T) {
	for name, table := range map[string]mount.Table{"twin": &mount.Twin{}, "kernel": mount.Kernel{}} {
		t.Run(name, func(t *testing.T) {
			if name == "kernel" && os.Geteuid() != 0 {
				t.Skip("mounting needs root")
			}
			m := manager(t, table, nil, nil, nil)
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}}}
			if _, err := m.Setup(context.Background(), pod); err != nil {
				t.Fatal(err)
			}
			defer m.Teardown("u")
			dir, _ := m.Path("u", "e")
			if err := os.Symlink("/etc", filepath.Join(dir, "escape")); err != nil {
				t.Fatal(err)
			}
			mounts := func(vm corev1.VolumeMount) error {
				vm.Name, vm.MountPath = "e", "/m"
				ms, err := m.Mounts(pod, &corev1.Container{Name: "c", VolumeMounts: []corev1.VolumeMount{vm}}, []environ.Var{{Name: "V", Value: "val"}}, nil, false)
				if err == nil && name == "kernel" {
					if err := os.WriteFile(filepath.Join(ms[0].HostPath, "f"), []byte("x"), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				return err
			}
			if err := mounts(corev1.VolumeMount{SubPath: "new/dir"}); err != nil {
				t.Error(err)
			}
			if err := mounts(corev1.VolumeMount{SubPathExpr: "x-$(V)"}); err != nil {
				t.Error(err)
			}
			if _, err := os.Stat(filepath.Join(dir, "x-val")); err != nil {
				t.Error(err)
			}
			if name == "kernel" && read(t, filepath.Join(dir, "new/dir/f")) != "x" {
				t.Error("the bind mount does not lead into the volume")
			}
			for _, vm := range []corev1.VolumeMount{{SubPath: "escape"}, {SubPath: "../x"}, {SubPath: "/abs"}, {SubPathExpr: "$(NOPE)"}, {SubPath: "escape/passwd"}} {
				if mounts(vm) == nil {
					t.Errorf("%+v was allowed", vm)
				}
			}
			if err := m.Teardown("u"); err != nil {
				t.Fatal(err)
			}
			if points, _ := table.Under(m.cfg.RootDir); len(points) > 0 {
				t.Errorf("left mounted: %v", points)
			}
		})
	}
}

func TestFSGroup(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("changing groups needs root")
	}
	m := manager(t, &mount.Twin{}, objects{"cm": {"a": "1"}}, nil, nil)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: corev1.PodSpec{
		SecurityContext: &corev1.PodSecurityContext{FSGroup: ptr.To[int64](4321)},
		Volumes: []corev1.Volume{
			{Name: "e", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "c", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}, DefaultMode: ptr.To[int32](0o400)}}},
		}}}
	if _, err := m.Setup(context.Background(), pod); err != nil {
		t.Fatal(err)
	}
	for v, want := range map[string]os.FileMode{"e": os.ModeDir | os.ModeSetgid | 0o777, "c/a": 0o440} {
		name, rest, _ := strings.Cut(v, "/")
		dir, _ := m.Path("u", name)
		fi, err := os.Stat(filepath.Join(dir, rest))
		if err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, %v; want %v", v, fi.Mode(), err, want)
		}
	}
}

func TestPersistentVolumes(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	claim := func(name, pv string, phase corev1.PersistentVolumeClaimPhase) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: "claim-" + types.UID(name)}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: pv}, Status: corev1.PersistentVolumeClaimStatus{Phase: phase}}
	}
	volume := func(name, claim string, src corev1.PersistentVolumeSource) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: src, ClaimRef: &corev1.ObjectReference{UID: "claim-" + types.UID(claim)}}}
	}
	hostPath := corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: filepath.Join(dir, "made"), Type: ptr.To(corev1.HostPathDirectoryOrCreate)}}
	client := fake.NewClientset(
		claim("host", "pv-host", corev1.ClaimBound), volume("pv-host", "host", hostPath),
		claim("local", "pv-local", corev1.ClaimBound), volume("pv-local", "local", corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: dir}}),
		claim("p-gen", "pv-gen", corev1.ClaimBound), volume("pv-gen", "p-gen", hostPath),
		claim("pending", "", corev1.ClaimPending),
		claim("stolen", "pv-stolen", corev1.ClaimBound), volume("pv-stolen", "other", hostPath),
		claim("csi", "pv-csi", corev1.ClaimBound), volume("pv-csi", "csi", corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{}}),
	)
	m := manager(t, &mount.Twin{}, nil, client, nil)
	for name, tc := range map[string]struct {
		src  corev1.VolumeSource
		path string
		err  string
	}{
		"hostPath": {corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "host"}}, filepath.Join(dir, "made"), ""},
		"local":    {corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "local"}}, dir, ""},
		"generic":  {corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}, filepath.Join(dir, "made"), ""},
		"pending":  {corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "pending"}}, "", "PVC ns/pending has not been bound to a volume yet"},
		"stolen":   {corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "stolen"}}, "", "is not bound to claim stolen"},
		"csi":      {corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "csi"}}, "", "use hostPath or local"},
		"absent":   {corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "absent"}}, "", "not found"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: types.UID("uid-" + name)}, Spec: corev1.PodSpec{Volumes: []corev1.Volume{{Name: "gen", VolumeSource: tc.src}}}}
		_, err := m.Setup(ctx, pod)
		if tc.err != "" {
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, _ := m.Path(pod.UID, "gen"); got != tc.path {
			t.Errorf("%s: %s", name, got)
		}
		if err := m.Teardown(pod.UID); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "made")); err != nil {
		t.Errorf("tearing down a pod removed what is not the kubelet's: %v", err)
	}
}
