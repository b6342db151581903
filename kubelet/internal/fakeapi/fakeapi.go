// Package fakeapi is client-go's fake clientset with two properties of an API server that
// tests in real time depend on: objects have growing resource versions, and a watch
// tells everything since the list before it. (client-go's own starts with what happens after
// it was opened: changes between list and watch are lost.)
package fakeapi

import (
	"strconv"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// New is a clientset with some objects. What is changed by its Tracker is not seen by watches.
func New(objs ...runtime.Object) *fake.Clientset {
	c := fake.NewClientset(objs...)
	s := &server{tracker: c.Tracker(), react: clienttesting.ObjectReaction(c.Tracker()), changed: make(chan struct{})}
	c.PrependReactor("*", "*", s.request)
	c.PrependWatchReactor("*", s.watch)
	return c
}

type server struct {
	tracker clienttesting.ObjectTracker
	react   clienttesting.ReactionFunc

	mu      sync.Mutex
	last    int // resource version
	events  []event
	changed chan struct{} // closed and replaced at each event
}

type event struct {
	version   int
	resource  schema.GroupVersionResource
	namespace string
	watch.Event
}

func (s *server) request(action clienttesting.Action) (bool, runtime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch a := action.(type) {
	case clienttesting.CreateActionImpl:
		if a.Subresource != "" {
			return false, nil, nil
		}
		o, err := s.stamp(a.Object)
		if err != nil {
			return true, nil, err
		}
		a.Object = o
		return s.record(a, watch.Added)
	case clienttesting.UpdateActionImpl:
		o, err := s.stamp(a.Object)
		if err != nil {
			return true, nil, err
		}
		a.Object = o
		return s.record(a, watch.Modified)
	case clienttesting.PatchActionImpl:
		_, o, err := s.react(a)
		if err == nil {
			o, err = s.stamp(o)
		}
		if err != nil {
			return true, nil, err
		}
		if err := s.tracker.Update(a.GetResource(), o, a.GetNamespace()); err != nil {
			return true, nil, err
		}
		s.add(a, watch.Modified, o)
		return true, o, nil
	case clienttesting.DeleteActionImpl:
		o, err := s.tracker.Get(a.GetResource(), a.GetNamespace(), a.Name)
		if err == nil {
			o, err = s.stamp(o)
		}
		if err != nil {
			return true, nil, err
		}
		if _, _, err := s.react(a); err != nil {
			return true, nil, err
		}
		s.add(a, watch.Deleted, o)
		return true, o, nil
	case clienttesting.ListActionImpl:
		_, o, err := s.react(a)
		if err != nil {
			return true, nil, err
		}
		list, err := meta.ListAccessor(o)
		if err != nil {
			return true, nil, err
		}
		list.SetResourceVersion(strconv.Itoa(s.last))
		return true, o, nil
	}
	return false, nil, nil
}

// stamp returns a copy with the next resource version.
func (s *server) stamp(o runtime.Object) (runtime.Object, error) {
	o = o.DeepCopyObject()
	m, err := meta.Accessor(o)
	if err != nil {
		return nil, err
	}
	s.last++
	m.SetResourceVersion(strconv.Itoa(s.last))
	return o, nil
}

func (s *server) record(a clienttesting.Action, kind watch.EventType) (bool, runtime.Object, error) {
	_, o, err := s.react(a)
	if err != nil {
		return true, nil, err
	}
	s.add(a, kind, o)
	return true, o, nil
}

func (s *server) add(a clienttesting.Action, kind watch.EventType, o runtime.Object) {
	s.events = append(s.events, event{s.last, a.GetResource(), a.GetNamespace(), watch.Event{Type: kind, Object: o.DeepCopyObject()}})
	close(s.changed)
	s.changed = make(chan struct{})
}

// watch ignores selectors, as client-go's fake does.
func (s *server) watch(action clienttesting.Action) (bool, watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := s.last
	var o metav1.ListOptions
	if a, ok := action.(clienttesting.WatchActionImpl); ok {
		o = a.ListOptions
	}
	if o.ResourceVersion != "" {
		var err error
		if from, err = strconv.Atoi(o.ResourceVersion); err != nil {
			return true, nil, err
		}
	}
	events := make(chan watch.Event)
	w := watch.NewProxyWatcher(events)
	go s.serve(action, from, events, w.StopChan())
	return true, w, nil
}

func (s *server) serve(a clienttesting.Action, from int, to chan<- watch.Event, stop <-chan struct{}) {
	defer close(to)
	for next := 0; ; {
		s.mu.Lock()
		events, changed := s.events[next:], s.changed
		s.mu.Unlock()
		next += len(events)
		for _, e := range events {
			if e.version <= from || e.resource != a.GetResource() || a.GetNamespace() != "" && e.namespace != a.GetNamespace() {
				continue
			}
			select {
			case to <- watch.Event{Type: e.Type, Object: e.Object.DeepCopyObject()}:
			case <-stop:
				return
			}
		}
		select {
		case <-changed:
		case <-stop:
			return
		}
	}
}
