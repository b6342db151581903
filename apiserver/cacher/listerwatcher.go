package cacher

import (
	"context"
	"errors"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
)

// sharedList is a list whose items are the cache's own objects.
type sharedList struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
}

// DeepCopyObject implements runtime.Object. The items stay shared: they never change.
func (l *sharedList) DeepCopyObject() runtime.Object {
	c := *l
	c.Items = append([]runtime.Object(nil), l.Items...)
	return &c
}

// listerWatcher lets informers in this process read the cache's own objects. It
// outlives its resource: a CustomResourceDefinition that changes gets a new cache.
type listerWatcher struct{ first *resource }

var (
	_ cache.ListerWatcher            = listerWatcher{}
	_ cache.ListerWatcherWithContext = listerWatcher{}
)

// ListerWatcher implements Resource.
func (r *resource) ListerWatcher() cache.ListerWatcherWithContext {
	r.pinned.Store(true)
	return listerWatcher{r}
}

// resource is the one that serves now.
func (lw listerWatcher) resource() *resource {
	s := lw.first.caches
	s.mu.Lock()
	r := s.byPath[lw.first.api.StoragePath]
	s.mu.Unlock()
	if r == nil {
		return lw.first // removed: it says so itself
	}
	r.pinned.Store(true)
	return r
}

// IsWatchListSemanticsUnSupported tells reflectors to list: here that costs nothing.
func (listerWatcher) IsWatchListSemanticsUnSupported() bool { return true }

func selection(o metav1.ListOptions) (Selection, error) {
	l, err := labels.Parse(o.LabelSelector)
	if err != nil {
		return Selection{}, apierrors.NewBadRequest(err.Error())
	}
	f, err := fields.ParseSelector(o.FieldSelector)
	if err != nil {
		return Selection{}, apierrors.NewBadRequest(err.Error())
	}
	return Selection{Labels: l, Fields: f}, nil
}

func (lw listerWatcher) List(o metav1.ListOptions) (runtime.Object, error) {
	return lw.ListWithContext(context.Background(), o)
}

func (lw listerWatcher) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	sel, err := selection(o)
	if err != nil {
		return nil, err
	}
	l, err := lw.resource().List(ctx, ListOptions{
		Selection:            sel,
		ResourceVersion:      o.ResourceVersion,
		ResourceVersionMatch: o.ResourceVersionMatch,
		Limit:                o.Limit,
		Continue:             o.Continue,
	})
	if err != nil {
		return nil, err
	}
	out := &sharedList{Items: make([]runtime.Object, len(l.Items))}
	out.ResourceVersion = strconv.FormatInt(l.Revision, 10)
	out.Continue = l.Continue
	out.RemainingItemCount = l.Remaining
	for i, item := range l.Items {
		f, err := item.(*entry).decode()
		if err != nil {
			return nil, storeReadError(err)
		}
		out.Items[i] = f.obj
	}
	return out, nil
}

func (lw listerWatcher) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return lw.WatchWithContext(context.Background(), o)
}

func (lw listerWatcher) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	sel, err := selection(o)
	if err != nil {
		return nil, err
	}
	r := lw.resource()
	w, err := r.Watch(ctx, WatchOptions{
		Selection:         sel,
		ResourceVersion:   o.ResourceVersion,
		Bookmarks:         o.AllowWatchBookmarks,
		SendInitialEvents: o.SendInitialEvents,
	})
	if err != nil {
		return nil, err
	}
	a := &objectWatch{r: r, w: w, out: make(chan watch.Event), done: make(chan struct{})}
	go a.run()
	return a, nil
}

// objectWatch shows a Watcher as apimachinery's watch.Interface.
type objectWatch struct {
	r    *resource
	w    Watcher
	out  chan watch.Event
	once sync.Once
	done chan struct{}
}

func (a *objectWatch) ResultChan() <-chan watch.Event { return a.out }

func (a *objectWatch) Stop() {
	a.once.Do(func() {
		close(a.done)
		a.w.Stop()
	})
}

func (a *objectWatch) run() {
	defer close(a.out)
	defer a.w.Stop()
	for e := range a.w.Events() {
		select {
		case a.out <- a.event(e):
		case <-a.done:
			return
		}
	}
}

func (a *objectWatch) event(e Event) watch.Event {
	switch e.Type {
	case watch.Bookmark:
		obj := a.r.api.New()
		obj.GetObjectKind().SetGroupVersionKind(a.r.codec.gvk)
		obj.SetResourceVersion(strconv.FormatInt(e.Revision, 10))
		if e.InitialEventsEnd {
			obj.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		}
		return watch.Event{Type: watch.Bookmark, Object: obj}
	case watch.Error:
		return errorEvent(e.Err)
	}
	f, err := e.Object.(*entry).decode()
	if err != nil {
		return errorEvent(storeReadError(err))
	}
	return watch.Event{Type: e.Type, Object: f.obj}
}

func errorEvent(err error) watch.Event {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		status = apierrors.NewInternalError(err)
	}
	s := status.Status()
	return watch.Event{Type: watch.Error, Object: &s}
}
