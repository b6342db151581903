// Package controllertest runs controllers against client-go's fake clientset, for the
// tests of the controllers. Call it inside a testing/synctest bubble.
package controllertest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/skiff-k8s/skiff/controllers/controller"
)

// Env is a fake API server and what controllers need to run against it.
type Env struct {
	controller.Config
	Client *fake.Clientset
	Events *record.FakeRecorder
	t      *testing.T
	ids    atomic.Int64
}

// undelayErrors drops the library's handler that sleeps until a millisecond after the last
// error of the process, which to a bubble in the year 2000 is 26 years away.
var undelayErrors = sync.OnceFunc(func() { utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] })

// New makes an environment that holds objs.
func New(t *testing.T, objs ...runtime.Object) *Env {
	undelayErrors()
	e := &Env{Client: fake.NewClientset(objs...), Events: record.NewFakeRecorder(10000), t: t}
	// The fake tracker completes no metadata.
	e.Client.PrependReactor("create", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		create := a.(k8stesting.CreateAction)
		if create.GetSubresource() != "" {
			return false, nil, nil
		}
		m, err := meta.Accessor(create.GetObject())
		if err != nil {
			return false, nil, nil
		}
		n := e.ids.Add(1)
		if m.GetName() == "" {
			m.SetName(m.GetGenerateName() + strconv.FormatInt(n, 36))
		}
		m.SetNamespace(a.GetNamespace())
		m.SetUID(types.UID(fmt.Sprintf("uid-%d", n)))
		m.SetCreationTimestamp(metav1.NewTime(time.Now()))
		m.SetGeneration(1)
		m.SetResourceVersion(strconv.FormatInt(n, 10))
		return false, nil, nil
	})
	e.Client.PrependReactor("update", "*", func(a k8stesting.Action) (bool, runtime.Object, error) {
		update := a.(k8stesting.UpdateAction)
		m, err := meta.Accessor(update.GetObject())
		if err == nil {
			stored, err := e.Client.Tracker().Get(a.GetResource(), a.GetNamespace(), m.GetName())
			if err != nil {
				return false, nil, nil // the tracker says NotFound
			}
			if was, err := meta.Accessor(stored); err == nil && m.GetResourceVersion() != "" && m.GetResourceVersion() != was.GetResourceVersion() {
				return true, nil, apierrors.NewConflict(a.GetResource().GroupResource(), m.GetName(), errors.New("the object has been modified"))
			}
			m.SetResourceVersion(strconv.FormatInt(e.ids.Add(1), 10))
			if update.GetSubresource() == "" {
				m.SetGeneration(m.GetGeneration() + 1)
			}
		}
		return false, nil, nil
	})
	e.Config = controller.Config{
		Client:    e.Client,
		Informers: informers.NewSharedInformerFactory(e.Client, 0),
		Events:    e.Events,
		Clock:     clock.RealClock{}, // virtual in the bubble
		Logger:    slog.New(slog.DiscardHandler),
	}
	return e
}

// Start runs the controllers until the test ends, and checks then that none of them
// has changed an object that it shares with the informers.
func (e *Env) Start(cs ...controller.Controller) {
	e.t.Helper()
	ctx, cancel := context.WithCancel(e.t.Context())
	done := make(chan error, len(cs))
	for _, c := range cs {
		go func() { done <- c.Run(ctx) }()
	}
	e.Informers.Start(ctx.Done())
	e.Settle()
	e.t.Cleanup(func() {
		e.checkShared()
		cancel()
		for range cs {
			if err := <-done; err != nil {
				e.t.Errorf("controller: %v", err)
			}
		}
		e.Informers.Shutdown()
	})
}

// Settle waits until nothing happens any more without time passing, for a second of
// virtual time.
func (e *Env) Settle() { e.After(time.Second) }

// After lets virtual time pass.
func (e *Env) After(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// Pods lists pods whose labels match.
func (e *Env) Pods(namespace, selector string) []corev1.Pod {
	e.t.Helper()
	list, err := e.Client.CoreV1().Pods(namespace).List(e.t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		e.t.Fatal(err)
	}
	return list.Items
}

// SetPods changes the status of all pods that match, as a kubelet would. Pods that a
// controller deletes meanwhile are left out.
func (e *Env) SetPods(namespace, selector string, change func(p *corev1.Pod)) {
	e.t.Helper()
	for _, p := range e.Pods(namespace, selector) {
		change(&p)
		if _, err := e.Client.CoreV1().Pods(namespace).UpdateStatus(e.t.Context(), &p, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			e.t.Fatal(err)
		}
	}
}

// MakeReady marks a pod running and ready since now.
func MakeReady(p *corev1.Pod) {
	if p.Status.Phase == corev1.PodRunning {
		return
	}
	now := metav1.NewTime(time.Now())
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}}
}

// DrainEvents returns the events so far.
func (e *Env) DrainEvents() []string {
	var all []string
	for {
		select {
		case ev := <-e.Events.Events:
			all = append(all, ev)
		default:
			return all
		}
	}
}

func (e *Env) checkShared() {
	for _, gvr := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "pods"}, {Version: "v1", Resource: "nodes"}, {Version: "v1", Resource: "services"},
		{Version: "v1", Resource: "namespaces"}, {Version: "v1", Resource: "serviceaccounts"}, {Version: "v1", Resource: "configmaps"},
		{Group: "apps", Version: "v1", Resource: "deployments"}, {Group: "apps", Version: "v1", Resource: "replicasets"},
		{Group: "apps", Version: "v1", Resource: "statefulsets"}, {Group: "apps", Version: "v1", Resource: "daemonsets"},
		{Group: "batch", Version: "v1", Resource: "jobs"}, {Group: "batch", Version: "v1", Resource: "cronjobs"},
		{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
		{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	} {
		inf, err := e.Informers.ForResource(gvr)
		if err != nil || !inf.Informer().HasSynced() {
			continue
		}
		objs, err := inf.Lister().List(labels.Everything())
		if err != nil {
			e.t.Error(err)
		}
		for _, o := range objs {
			m, err := meta.Accessor(o)
			if err != nil {
				e.t.Error(err)
				continue
			}
			stored, err := e.Client.Tracker().Get(gvr, m.GetNamespace(), m.GetName())
			if err == nil && !reflect.DeepEqual(stored, o) {
				e.t.Errorf("shared %s %s/%s differs from the stored one: a controller has changed it\nshared %+v\nstored %+v", gvr.Resource, m.GetNamespace(), m.GetName(), o, stored)
			}
		}
	}
}
