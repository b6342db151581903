package pods

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/ptr"

	"github.com/skiff-k8s/skiff/host/mount"
	"github.com/skiff-k8s/skiff/kubelet/cri"
	"github.com/skiff-k8s/skiff/kubelet/criconfig"
	"github.com/skiff-k8s/skiff/kubelet/images"
	"github.com/skiff-k8s/skiff/kubelet/internal/fakeapi"
	"github.com/skiff-k8s/skiff/kubelet/internal/fakecri"
	"github.com/skiff-k8s/skiff/kubelet/objects"
	"github.com/skiff-k8s/skiff/kubelet/volumes"
)

// harness is a manager over a fake runtime and a fake API.
type harness struct {
	t      testing.TB
	rt     *fakecri.Server
	client *fake.Clientset
	dir    string
	// manifests is the directory of static pods, if any.
	manifests string
	// apparmor is why the host has none, if so.
	apparmor error

	m    *Manager
	stop func()

	mu   sync.Mutex
	seen []string // events
}

func newHarness(t testing.TB, objs ...*corev1.Pod) *harness {
	t.Helper()
	h := &harness{t: t, rt: fakecri.Start(t), client: fakeapi.New(), dir: t.TempDir()}
	h.rt.AddImage("img:1", nil, "")
	for _, o := range objs {
		h.create(o)
	}
	return h
}

// start runs a (new) manager.
func (h *harness) start() {
	h.t.Helper()
	c, err := cri.New(cri.Config{RuntimeEndpoint: h.rt.Endpoint(), TerminationMessage: ReadTerminationMessage})
	if err != nil {
		h.t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	var m *Manager
	obj := objects.New(objects.Config{Client: h.client, Logger: log, Changed: func(r objects.Ref) { m.ObjectChanged(r) }})
	rec := record.NewFakeRecorder(10000)
	m, err = New(Config{
		NodeName: "node", Client: h.client, CRI: c, Images: images.New(images.Config{CRI: c}), Objects: obj, Services: objects.NewServices(h.client, log),
		Volumes: volumes.New(volumes.Config{RootDir: filepath.Join(h.dir, "kubelet"), Mounts: &mount.Twin{}, Objects: obj, Client: h.client, Logger: log}),
		CRINode: func() *criconfig.Node {
			return &criconfig.Node{PodLogsDir: filepath.Join(h.dir, "logs"), ClusterDNS: []string{"10.96.0.10"}, ClusterDomain: "cluster.local", MemoryCapacity: 1 << 30}
		},
		HostIPs: func() []string { return []string{"192.0.2.1"} }, Node: func() *corev1.Node { return nil }, RuntimeName: func() string { return "fake" },
		Allocatable: func() corev1.ResourceList {
			return corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourcePods: resource.MustParse("50")}
		},
		NetworkReady: func() error { return nil }, Recorder: rec, PodLogsDir: filepath.Join(h.dir, "logs"), ManifestDir: h.manifests, AppArmor: h.apparmor, Logger: log,
	})
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { m.Run(ctx); close(done) }()
	go func() {
		for {
			select {
			case e := <-rec.Events:
				h.mu.Lock()
				h.seen = append(h.seen, e)
				h.mu.Unlock()
			case <-done:
				return
			}
		}
	}()
	var once sync.Once
	h.m = m
	h.stop = func() {
		once.Do(func() {
			cancel()
			<-done
			obj.Close()
			c.Close()
		})
	}
	h.t.Cleanup(h.stop)
}

func (h *harness) event(part string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.seen {
		if strings.Contains(e, part) {
			return true
		}
	}
	return false
}

func (h *harness) create(p *corev1.Pod) {
	h.t.Helper()
	if _, err := h.client.CoreV1().Pods(p.Namespace).Create(context.Background(), p, metav1.CreateOptions{}); err != nil {
		h.t.Fatal(err)
	}
}

// get is nil when the pod is gone.
func (h *harness) get(name string) *corev1.Pod {
	p, err := h.client.CoreV1().Pods("ns").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return p
}

// del deletes gracefully, as the API server would.
func (h *harness) del(name string, grace int64) {
	h.t.Helper()
	p := h.get(name)
	p.DeletionTimestamp = ptr.To(metav1.Now())
	p.DeletionGracePeriodSeconds = &grace
	if _, err := h.client.CoreV1().Pods("ns").Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
		h.t.Fatal(err)
	}
}

func (h *harness) wait(what string, f func() bool) {
	h.t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !f() {
		if time.Now().After(deadline) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.t.Fatalf("waited in vain for: %s\nevents: %s", what, strings.Join(h.seen, "\n"))
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (h *harness) waitPod(name, what string, f func(*corev1.Pod) bool) *corev1.Pod {
	h.t.Helper()
	var p *corev1.Pod
	defer func() {
		if h.t.Failed() && p != nil {
			h.t.Logf("status of %s: %+v", name, p.Status)
		}
	}()
	h.wait(name+": "+what, func() bool { p = h.get(name); return p != nil && f(p) })
	return p
}

func ready(p *corev1.Pod) bool {
	c := condition(p.Status.Conditions, corev1.PodReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

func newPod(name string, edit func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID("uid-" + name), Generation: 1},
		Spec: corev1.PodSpec{
			NodeName: "node", RestartPolicy: corev1.RestartPolicyAlways, EnableServiceLinks: ptr.To(true), TerminationGracePeriodSeconds: ptr.To[int64](30), DNSPolicy: corev1.DNSClusterFirst,
			Containers: []corev1.Container{newContainer("c")},
		},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if edit != nil {
		edit(p)
	}
	return p
}

func newContainer(name string) corev1.Container {
	return corev1.Container{Name: name, Image: "img:1", ImagePullPolicy: corev1.PullIfNotPresent, TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile}
}
