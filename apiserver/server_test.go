package apiserver_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/retry"

	"github.com/skiff-k8s/skiff/apiserver/servertest"
)

// clients are the ways to reach a server: JSON and protobuf over HTTP, and in process.
func clients(t *testing.T, s *servertest.Server) map[string]kubernetes.Interface {
	t.Helper()
	out := map[string]kubernetes.Interface{}
	json := s.Config()
	proto := s.Config()
	proto.ContentType = "application/vnd.kubernetes.protobuf"
	proto.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	local := &rest.Config{Host: "http://skiff.local", Transport: s.Transport(&user.DefaultInfo{Name: "test"}), QPS: -1, ContentConfig: proto.ContentConfig}
	for name, c := range map[string]*rest.Config{"json": json, "protobuf": proto, "in process": local} {
		k, err := kubernetes.NewForConfig(c)
		if err != nil {
			t.Fatal(err)
		}
		out[name] = k
	}
	return out
}

func namespace(t *testing.T, k kubernetes.Interface, name string) {
	t.Helper()
	_, err := k.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"v": value}}, Data: map[string]string{"k": value}}
}

func TestLifecycle(t *testing.T) {
	s := servertest.New(t)
	i := 0
	for name, k := range clients(t, s) {
		i++
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			ns := "ns-" + strings.ReplaceAll(name, " ", "-")
			namespace(t, k, ns)
			cms := k.CoreV1().ConfigMaps(ns)
			a, err := cms.Create(ctx, configMap("a", "1"), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if a.UID == "" || a.ResourceVersion == "" || a.Namespace != ns || a.CreationTimestamp.IsZero() {
				t.Errorf("system fields: %+v", a.ObjectMeta)
			}
			if len(a.ManagedFields) != 1 || a.ManagedFields[0].Operation != metav1.ManagedFieldsOperationUpdate {
				t.Errorf("managed fields: %+v", a.ManagedFields)
			}
			if _, err := cms.Create(ctx, configMap("a", "1"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) || err.Error() != `configmaps "a" already exists` {
				t.Errorf("create again: %v", err)
			}
			w, err := cms.Watch(ctx, metav1.ListOptions{ResourceVersion: a.ResourceVersion})
			if err != nil {
				t.Fatal(err)
			}
			defer w.Stop()
			b, err := cms.Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "gen-"}}, metav1.CreateOptions{})
			if err != nil || !strings.HasPrefix(b.Name, "gen-") || len(b.Name) != 9 {
				t.Fatalf("generateName: %v %v", b, err)
			}
			expect(t, w, watch.Added, b.Name)

			stale := a.DeepCopy()
			a.Data["k"] = "2"
			a, err = cms.Update(ctx, a, metav1.UpdateOptions{})
			if err != nil || a.Data["k"] != "2" {
				t.Fatalf("update: %v %v", a, err)
			}
			expect(t, w, watch.Modified, "a")
			again, err := cms.Update(ctx, a, metav1.UpdateOptions{})
			if err != nil || again.ResourceVersion != a.ResourceVersion {
				t.Errorf("update without change: revision %s -> %s, %v", a.ResourceVersion, again.ResourceVersion, err)
			}
			if _, err := cms.Update(ctx, stale, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
				t.Errorf("stale update: %v", err)
			}
			for _, p := range []struct {
				t    types.PatchType
				body string
			}{
				{types.JSONPatchType, `[{"op":"replace","path":"/data/k","value":"3"}]`},
				{types.MergePatchType, `{"data":{"k":"3"}}`},
				{types.StrategicMergePatchType, `{"data":{"k":"3"}}`},
			} {
				if a, err = cms.Patch(ctx, "a", p.t, []byte(p.body), metav1.PatchOptions{}); err != nil || a.Data["k"] != "3" {
					t.Errorf("patch %s: %v %v", p.t, a, err)
				}
			}
			expect(t, w, watch.Modified, "a")
			list, err := cms.List(ctx, metav1.ListOptions{})
			if err != nil || len(list.Items) != 2 || list.ResourceVersion == "" {
				t.Errorf("list: %v %v", list, err)
			}
			list, err = cms.List(ctx, metav1.ListOptions{LabelSelector: "v=1"})
			if err != nil || len(list.Items) != 1 || list.Items[0].Name != "a" {
				t.Errorf("list by label: %v %v", list, err)
			}
			list, err = cms.List(ctx, metav1.ListOptions{Limit: 1})
			if err != nil || len(list.Items) != 1 || list.Continue == "" || list.RemainingItemCount == nil || *list.RemainingItemCount != 1 {
				t.Errorf("first page: %+v %v", list.ListMeta, err)
			}
			applied, err := cms.Apply(ctx, corev1apply.ConfigMap("c", ns).WithData(map[string]string{"x": "1"}), metav1.ApplyOptions{FieldManager: "one"})
			if err != nil || applied.Data["x"] != "1" {
				t.Fatalf("apply: %v %v", applied, err)
			}
			expect(t, w, watch.Added, "c")
			_, err = cms.Apply(ctx, corev1apply.ConfigMap("c", ns).WithData(map[string]string{"x": "2"}), metav1.ApplyOptions{FieldManager: "two"})
			if !apierrors.IsConflict(err) {
				t.Errorf("apply by another: %v", err)
			}
			if err := cms.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
				t.Errorf("delete: %v", err)
			}
			expect(t, w, watch.Deleted, "a")
			if _, err := cms.Get(ctx, "a", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				t.Errorf("get after delete: %v", err)
			}
			if err := cms.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
				t.Errorf("deletecollection: %v", err)
			}
			if list, err = cms.List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
				t.Errorf("list at the end: %v %v", list, err)
			}
		})
	}
}

func expect(t *testing.T, w watch.Interface, typ watch.EventType, name string) {
	t.Helper()
	select {
	case ev, ok := <-w.ResultChan():
		if !ok {
			t.Fatalf("watch ended, want %s %s", typ, name)
		}
		m, isObject := ev.Object.(metav1.Object)
		if ev.Type != typ || !isObject || m.GetName() != name {
			t.Fatalf("got %s %v, want %s %s", ev.Type, ev.Object, typ, name)
		}
	case <-time.After(time.Minute):
		t.Fatalf("no event, want %s %s", typ, name)
	}
}

func TestScaleAndStatus(t *testing.T) {
	s := servertest.New(t)
	k := clients(t, s)["json"]
	ctx := t.Context()
	namespace(t, k, "default")
	one := int32(1)
	labels := map[string]string{"app": "x"}
	d, err := k.AppsV1().Deployments("default").Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec: appsv1.DeploymentSpec{Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if d.Generation != 1 || d.Spec.Strategy.Type == "" {
		t.Errorf("generation %d, strategy %q", d.Generation, d.Spec.Strategy.Type)
	}
	sc, err := k.AppsV1().Deployments("default").GetScale(ctx, "d", metav1.GetOptions{})
	if err != nil || sc.Spec.Replicas != 1 || sc.Status.Selector != "app=x" {
		t.Fatalf("scale: %+v %v", sc, err)
	}
	sc.Spec.Replicas = 3
	if sc, err = k.AppsV1().Deployments("default").UpdateScale(ctx, "d", sc, metav1.UpdateOptions{}); err != nil || sc.Spec.Replicas != 3 {
		t.Fatalf("update scale: %+v %v", sc, err)
	}
	d, err = k.AppsV1().Deployments("default").Get(ctx, "d", metav1.GetOptions{})
	if err != nil || *d.Spec.Replicas != 3 || d.Generation != 2 {
		t.Fatalf("after scale: %+v %v", d, err)
	}
	d.Status.Replicas = 3
	d.Spec.Paused = true
	d, err = k.AppsV1().Deployments("default").UpdateStatus(ctx, d, metav1.UpdateOptions{})
	if err != nil || d.Status.Replicas != 3 || d.Spec.Paused || d.Generation != 2 {
		t.Fatalf("after status: %+v %v", d, err)
	}
	if err := k.AppsV1().Deployments("default").Delete(ctx, "d", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)}); err != nil {
		t.Fatal(err)
	}
	d, err = k.AppsV1().Deployments("default").Get(ctx, "d", metav1.GetOptions{})
	if err != nil || d.DeletionTimestamp == nil || len(d.Finalizers) != 1 || d.Finalizers[0] != metav1.FinalizerDeleteDependents {
		t.Fatalf("foreground: %+v %v", d.ObjectMeta, err)
	}
	d.Finalizers = nil
	if _, err = k.AppsV1().Deployments("default").Update(ctx, d, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err = k.AppsV1().Deployments("default").Get(ctx, "d", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Fatalf("after the last finalizer: %v", err)
	}
}

// TestMetadataClient: the garbage collector and the namespace controller see objects
// by their metadata alone.
func TestMetadataClient(t *testing.T) {
	s := servertest.New(t)
	k := clients(t, s)["json"]
	ctx := t.Context()
	namespace(t, k, "default")
	a, err := k.CoreV1().ConfigMaps("default").Create(ctx, configMap("a", "1"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m, err := metadata.NewForConfig(metadata.ConfigFor(s.Config()))
	if err != nil {
		t.Fatal(err)
	}
	r := m.Resource(corev1.SchemeGroupVersion.WithResource("configmaps")).Namespace("default")
	list, err := r.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 || list.Items[0].UID != a.UID || list.ResourceVersion == "" {
		t.Fatalf("list: %+v %v", list, err)
	}
	w, err := r.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	p, err := r.Patch(ctx, "a", types.MergePatchType, []byte(`{"metadata":{"finalizers":["example.com/x"]}}`), metav1.PatchOptions{})
	if err != nil || len(p.Finalizers) != 1 {
		t.Fatalf("patch: %+v %v", p, err)
	}
	expect(t, w, watch.Modified, "a")
	if err := r.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(t, w, watch.Modified, "a")
	if _, err := r.Patch(ctx, "a", types.JSONPatchType, []byte(`[{"op":"remove","path":"/metadata/finalizers"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	expect(t, w, watch.Deleted, "a")
}

// TestInformer: client-go's reflector by WatchList.
func TestInformer(t *testing.T) {
	s := servertest.New(t)
	for name, k := range clients(t, s) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			ns := "ns-" + strings.ReplaceAll(name, " ", "-")
			namespace(t, k, ns)
			if _, err := k.CoreV1().ConfigMaps(ns).Create(ctx, configMap("a", "1"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			f := informers.NewSharedInformerFactoryWithOptions(k, 0, informers.WithNamespace(ns))
			lister := f.Core().V1().ConfigMaps().Lister()
			f.StartWithContext(ctx)
			for typ, ok := range f.WaitForCacheSync(ctx.Done()) {
				if !ok {
					t.Fatalf("%v did not sync", typ)
				}
			}
			if _, err := lister.ConfigMaps(ns).Get("a"); err != nil {
				t.Error(err)
			}
			if _, err := k.CoreV1().ConfigMaps(ns).Create(ctx, configMap("b", "1"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			err := wait.PollUntilContextCancel(ctx, 5*time.Millisecond, true, func(context.Context) (bool, error) {
				_, err := lister.ConfigMaps(ns).Get("b")
				return err == nil, nil
			})
			if err != nil {
				t.Error(err)
			}
			cancel()
			f.Shutdown()
		})
	}
}

// TestConcurrentUpdates: no update is lost, whichever way it comes.
func TestConcurrentUpdates(t *testing.T) {
	s := servertest.New(t)
	k := clients(t, s)["protobuf"]
	ctx := t.Context()
	namespace(t, k, "default")
	if _, err := k.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Data: map[string]string{"n": "0"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const workers, each = 8, 20
	var g errgroup.Group
	for i := range workers {
		g.Go(func() error {
			for j := range each {
				err := retry.OnError(retry.DefaultBackoff, apierrors.IsConflict, func() error {
					for {
						cm, err := k.CoreV1().ConfigMaps("default").Get(ctx, "a", metav1.GetOptions{})
						if err != nil {
							return err
						}
						n, err := strconv.Atoi(cm.Data["n"])
						if err != nil {
							return err
						}
						cm.Data["n"] = strconv.Itoa(n + 1)
						if _, err = k.CoreV1().ConfigMaps("default").Update(ctx, cm, metav1.UpdateOptions{}); !apierrors.IsConflict(err) {
							return err
						}
					}
				})
				if err != nil {
					return err
				}
				// A patch of its own field never conflicts.
				body := fmt.Appendf(nil, `{"data":{"w%d":"%d"}}`, i, j)
				if _, err := k.CoreV1().ConfigMaps("default").Patch(ctx, "a", types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	cm, err := k.CoreV1().ConfigMaps("default").Get(ctx, "a", metav1.GetOptions{})
	if err != nil || cm.Data["n"] != strconv.Itoa(workers*each) {
		t.Fatalf("%v %v", cm.Data, err)
	}
	for i := range workers {
		if got := cm.Data[fmt.Sprintf("w%d", i)]; got != strconv.Itoa(each-1) {
			t.Errorf("worker %d's field is %s", i, got)
		}
	}
}
