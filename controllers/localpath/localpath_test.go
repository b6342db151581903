package localpath_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	api "github.com/skiff-k8s/skiff/api/localpath"
	"github.com/skiff-k8s/skiff/apiserver/servertest"
	"github.com/skiff-k8s/skiff/cluster/addons"
	"github.com/skiff-k8s/skiff/controllers/controller"
	"github.com/skiff-k8s/skiff/controllers/localpath"
	"github.com/skiff-k8s/skiff/controllers/storageprotection"
	"github.com/skiff-k8s/skiff/controllers/volumebinder"
	node "github.com/skiff-k8s/skiff/kubelet/localpath"
)

// bed is an API server with all rules in force and the controllers of volumes; every part acts as who it is.
type bed struct {
	*testing.T
	server *servertest.Server
	admin  kubernetes.Interface
	stop   func() // ends the provisioner
}

func (b *bed) must(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bed) as(user string, groups ...string) kubernetes.Interface {
	b.Helper()
	cfg := rest.CopyConfig(b.server.Admin())
	cfg.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	c, err := kubernetes.NewForConfig(cfg)
	b.must(err)
	return c
}

type runner interface{ Run(context.Context) error }

// run runs something until the test or the returned function ends it.
func (b *bed) run(shared informers.SharedInformerFactory, rs ...runner) (stop func()) {
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, len(rs))
	if shared != nil {
		shared.StartWithContext(ctx)
	}
	for _, r := range rs {
		go func() { done <- r.Run(ctx) }()
	}
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		for range rs {
			if err := <-done; err != nil {
				b.Error(err)
			}
		}
		if shared != nil {
			shared.Shutdown()
		}
	}
	b.Cleanup(stop)
	return stop
}

func newBed(t *testing.T) *bed {
	b := &bed{T: t, server: servertest.Full(t)}
	var err error
	b.admin, err = kubernetes.NewForConfig(b.server.Admin())
	b.must(err)
	b.must(addons.EnsureAccess(t.Context(), b.admin))
	b.must(addons.EnsureStorageClass(t.Context(), b.admin))
	shared := informers.NewSharedInformerFactory(b.admin, 0)
	base := controller.Config{Client: b.admin, Informers: shared, Events: record.NewFakeRecorder(1000), Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler)}
	binder, err := volumebinder.New(base)
	b.must(err)
	claims, err := storageprotection.NewClaims(base)
	b.must(err)
	volumes, err := storageprotection.NewVolumes(base)
	b.must(err)
	b.run(shared, binder, claims, volumes)
	b.provisioner()
	return b
}

// provisioner runs with no more than the account's rights.
func (b *bed) provisioner() {
	client := b.as("system:serviceaccount:kube-system:"+addons.LocalPathAccount, "system:serviceaccounts", "system:serviceaccounts:kube-system")
	own := informers.NewSharedInformerFactory(client, 0)
	c, err := localpath.New(controller.Config{Client: client, Informers: own, Events: record.NewFakeRecorder(1000), Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler)})
	b.must(err)
	b.stop = b.run(own, c)
}

// node runs a node's part with no more than a kubelet's rights.
func (b *bed) node(name, dir string) (stop func()) {
	client := b.as("system:node:"+name, "system:nodes")
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
	if _, err := client.CoreV1().Nodes().Create(b.Context(), n, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		b.Fatal(err)
	}
	part, err := node.New(node.Config{NodeName: name, Directory: dir, Client: client, Logger: slog.New(slog.DiscardHandler)})
	b.must(err)
	return b.run(nil, part)
}

// claim makes a claim and, as a scheduler, chooses its node.
func (b *bed) claim(name, node string) *corev1.PersistentVolumeClaim {
	b.Helper()
	claims := b.admin.CoreV1().PersistentVolumeClaims("default")
	c, err := claims.Create(b.Context(), &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PersistentVolumeClaimSpec{
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}}, metav1.CreateOptions{})
	b.must(err)
	_, err = claims.Patch(b.Context(), name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"volume.kubernetes.io/selected-node":"`+node+`"}}}`), metav1.PatchOptions{})
	b.must(err)
	return c
}

func (b *bed) await(what string, ok func() bool) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			all, err := b.admin.CoreV1().Nodes().List(b.Context(), metav1.ListOptions{})
			b.must(err)
			for _, n := range all.Items {
				b.Logf("node %s: %v", n.Name, n.Annotations)
			}
			b.Fatalf("never: %s", what)
		}
	}
}

func (b *bed) awaitBound(name string) *corev1.PersistentVolume {
	b.Helper()
	var c *corev1.PersistentVolumeClaim
	b.await(name+" bound", func() bool {
		var err error
		c, err = b.admin.CoreV1().PersistentVolumeClaims("default").Get(b.Context(), name, metav1.GetOptions{})
		return err == nil && c.Status.Phase == corev1.ClaimBound
	})
	v, err := b.admin.CoreV1().PersistentVolumes().Get(b.Context(), c.Spec.VolumeName, metav1.GetOptions{})
	b.must(err)
	return v
}

func (b *bed) gone(v *corev1.PersistentVolume) func() bool {
	return func() bool {
		_, err := b.admin.CoreV1().PersistentVolumes().Get(b.Context(), v.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	}
}

func (b *bed) deleteClaim(name string) {
	b.Helper()
	b.must(b.admin.CoreV1().PersistentVolumeClaims("default").Delete(b.Context(), name, metav1.DeleteOptions{}))
}

func empty(dir string) func() bool {
	return func() bool {
		entries, err := os.ReadDir(dir)
		return err == nil && len(entries) == 0
	}
}

func TestProvisionAndReclaim(t *testing.T) {
	b := newBed(t)
	one, two := filepath.Join(t.TempDir(), "v"), filepath.Join(t.TempDir(), "v")
	b.node("one", one)
	stopTwo := b.node("two", two)
	b.claim("a", "one")
	b.claim("b", "two")
	va, vb := b.awaitBound("a"), b.awaitBound("b")
	if va.Spec.Local == nil || va.Spec.Local.Path != filepath.Join(one, va.Name) || vb.Spec.Local.Path != filepath.Join(two, vb.Name) {
		t.Fatalf("paths %v, %v", va.Spec.Local, vb.Spec.Local)
	}
	if got := va.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0]; got != "one" {
		t.Errorf("node affinity to %s", got)
	}
	if va.Annotations["pv.kubernetes.io/provisioned-by"] != api.Provisioner {
		t.Errorf("annotations %v", va.Annotations)
	}
	for _, v := range []*corev1.PersistentVolume{va, vb} {
		b.must(os.WriteFile(filepath.Join(v.Spec.Local.Path, "data"), []byte("x"), 0o600))
	}
	// Another start of everything changes nothing.
	b.stop()
	b.provisioner()

	b.deleteClaim("a")
	b.await("volume a reclaimed", b.gone(va))
	if !empty(one)() {
		t.Error("the volume is gone, its directory is not")
	}
	// While a node is down its volume waits for it.
	stopTwo()
	b.deleteClaim("b")
	b.await("order given", func() bool {
		n, err := b.admin.CoreV1().Nodes().Get(t.Context(), "two", metav1.GetOptions{})
		return err == nil && strings.Contains(n.Annotations[api.OrdersAnnotation], vb.Name)
	})
	if b.gone(vb)() || empty(two)() {
		t.Fatal("reclaimed without its node")
	}
	b.node("two", two)
	b.await("volume b reclaimed", b.gone(vb))
	b.await("orders done", func() bool {
		n, err := b.admin.CoreV1().Nodes().Get(t.Context(), "two", metav1.GetOptions{})
		return err == nil && n.Annotations[api.OrdersAnnotation] == "" && empty(two)()
	})
}

// TestANodeThatLeaves: its volumes stay as long as their claims, are reclaimed without it, and
// their directories go when it comes back; what was retained stays.
func TestANodeThatLeaves(t *testing.T) {
	b := newBed(t)
	dir := filepath.Join(t.TempDir(), "v")
	stop := b.node("n", dir)
	for _, c := range []string{"kept", "reclaimed", "retained"} {
		b.claim(c, "n")
	}
	kept, reclaimed, retained := b.awaitBound("kept"), b.awaitBound("reclaimed"), b.awaitBound("retained")
	for _, v := range []*corev1.PersistentVolume{kept, reclaimed, retained} {
		b.must(os.WriteFile(filepath.Join(v.Spec.Local.Path, "data"), []byte("x"), 0o600))
	}
	volumes := b.admin.CoreV1().PersistentVolumes()
	_, err := volumes.Patch(t.Context(), retained.Name, types.MergePatchType, []byte(`{"spec":{"persistentVolumeReclaimPolicy":"Retain"}}`), metav1.PatchOptions{})
	b.must(err)
	b.await("no finalizer of ours on what is retained", func() bool {
		v, err := volumes.Get(t.Context(), retained.Name, metav1.GetOptions{})
		return err == nil && len(v.Finalizers) == 1
	})
	stop()
	b.must(b.admin.CoreV1().Nodes().Delete(t.Context(), "n", metav1.DeleteOptions{}))
	b.deleteClaim("reclaimed")
	b.deleteClaim("retained")
	b.await("volume reclaimed without its node", b.gone(reclaimed))
	b.must(volumes.Delete(t.Context(), retained.Name, metav1.DeleteOptions{}))
	b.await("retained volume deleted", b.gone(retained))

	b.node("n", dir)
	b.await("the reclaimed volume's directory gone", func() bool {
		_, err := os.Stat(filepath.Join(dir, reclaimed.Name))
		return os.IsNotExist(err)
	})
	b.await("nothing left to remember", func() bool {
		m, err := b.admin.CoreV1().ConfigMaps("kube-system").Get(t.Context(), localpath.RemovedName, metav1.GetOptions{})
		return err == nil && len(m.Data) == 0
	})
	for _, v := range []*corev1.PersistentVolume{kept, retained} {
		if text, err := os.ReadFile(filepath.Join(dir, v.Name, "data")); err != nil || string(text) != "x" {
			t.Errorf("%s: %q, %v", v.Spec.ClaimRef.Name, text, err)
		}
	}
	if b.gone(kept)() {
		t.Error("a volume went whose claim is there")
	}
}

// TestAClaimThatGoesEarly leaves nothing, wherever provisioning was.
func TestAClaimThatGoesEarly(t *testing.T) {
	b := newBed(t)
	dir := filepath.Join(t.TempDir(), "v")
	b.node("n", dir)
	// The directory is made and the provisioner ends before it makes the volume.
	b.stop()
	c := b.claim("c", "n")
	name := api.VolumeName(string(c.UID))
	n, err := b.admin.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
	b.must(err)
	orders, err := api.Patch(n.UID, api.OrdersAnnotation, api.Orders{Make: []string{name}})
	b.must(err)
	_, err = b.admin.CoreV1().Nodes().Patch(t.Context(), "n", types.MergePatchType, orders, metav1.PatchOptions{})
	b.must(err)
	b.await("directory made", func() bool { _, err := os.Stat(filepath.Join(dir, name)); return err == nil })
	b.deleteClaim("c")
	b.provisioner()
	b.await("directory gone", empty(dir))
	for i := range 20 {
		name := fmt.Sprintf("quick-%d", i)
		b.claim(name, "n")
		b.deleteClaim(name)
	}
	b.await("no volumes and no directories", func() bool {
		all, err := b.admin.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
		n, err2 := b.admin.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		return err == nil && err2 == nil && len(all.Items) == 0 && empty(dir)() && n.Annotations[api.OrdersAnnotation] == ""
	})
}

func TestStorageClassIsMadeOnce(t *testing.T) {
	b := newBed(t)
	classes := b.admin.StorageV1().StorageClasses()
	c, err := classes.Get(t.Context(), "local-path", metav1.GetOptions{})
	b.must(err)
	if c.Annotations["storageclass.kubernetes.io/is-default-class"] != "true" {
		t.Errorf("annotations %v", c.Annotations)
	}
	b.must(classes.Delete(t.Context(), "local-path", metav1.DeleteOptions{}))
	b.must(addons.EnsureStorageClass(t.Context(), b.admin))
	if _, err := classes.Get(t.Context(), "local-path", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("a class that a user deleted is back: %v", err)
	}
	// In a cluster that has a default class already ours is none.
	c.Name, c.ResourceVersion, c.UID = "other", "", ""
	_, err = classes.Create(t.Context(), c, metav1.CreateOptions{})
	b.must(err)
	b.must(b.admin.CoreV1().ConfigMaps("kube-system").Delete(t.Context(), "skiff-addons", metav1.DeleteOptions{}))
	b.must(addons.EnsureStorageClass(t.Context(), b.admin))
	if c, err = classes.Get(t.Context(), "local-path", metav1.GetOptions{}); err != nil || c.Annotations["storageclass.kubernetes.io/is-default-class"] != "false" {
		t.Errorf("%v, %v", c.Annotations, err)
	}
}
