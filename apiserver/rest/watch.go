package rest

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"

	"github.com/skiff-k8s/skiff/apiserver/cacher"
	"github.com/skiff-k8s/skiff/apiserver/flowcontrol"
	"github.com/skiff-k8s/skiff/apiserver/negotiate"
	"github.com/skiff-k8s/skiff/apiserver/table"
	"github.com/skiff-k8s/skiff/apiserver/watch"
)

// watch streams events until the client, the timeout, the server or the resource ends it.
func (c *call) watch(opts *internalversion.ListOptions) error {
	var timeout time.Duration
	if opts.TimeoutSeconds != nil {
		timeout = time.Duration(*opts.TimeoutSeconds) * time.Second
	}
	if timeout == 0 { // spread, so that clients do not come back all at once
		timeout = time.Duration(float64(c.g.MinTimeout) * (rand.Float64() + 1))
	}
	if c.out.Media == negotiate.YAML {
		return negotiate.NotAcceptable([]string{"application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"})
	}
	var to table.Options
	if c.out.As != nil && c.out.As.Kind == "Table" {
		var err error
		if to, err = tableOptions(c.req); err != nil {
			return err
		}
		to.Version = c.out.As.Version
	}
	cache, err := c.r.cache()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	s := &source{call: c, ctx: ctx, cancel: cancel, table: to}
	s.endMarked = opts.SendInitialEvents != nil && *opts.SendInitialEvents && opts.AllowWatchBookmarks
	w, err := cache.Watch(ctx, cacher.WatchOptions{
		Selection:         c.selection(opts),
		ResourceVersion:   opts.ResourceVersion,
		Bookmarks:         opts.AllowWatchBookmarks,
		SendInitialEvents: opts.SendInitialEvents,
	})
	switch {
	case apierrors.IsResourceExpired(err) || apierrors.IsGone(err):
		s.failed = err // told inside the stream, where reflectors look for it
	case err != nil:
		return err
	default:
		defer w.Stop()
		s.events = w.Events()
	}
	if asked := c.req.URL.Query().Get("sendInitialEvents"); asked != "" && opts.AllowWatchBookmarks && *opts.SendInitialEvents {
		c.w.Header().Set("Vary", "Accept-Encoding")
	}
	framing := watch.Framing(watch.JSON{})
	if c.out.Media == negotiate.Protobuf {
		framing = watch.Protobuf{}
	}
	if err := watch.Serve(c.w, c.req, framing, s); err != nil {
		return apierrors.NewInternalError(err)
	}
	return nil
}

// source encodes a watcher's events.
type source struct {
	*call
	ctx    context.Context
	cancel context.CancelFunc
	events <-chan cacher.Event
	// failed is told as the only event.
	failed error
	ended  bool
	// last fires when the watch ends because the server does.
	last  <-chan time.Time
	table table.Options
	// endMarked: a bookmark tells the end of the initial events; else it is when nothing waits.
	endMarked bool
}

// More implements watch.Source.
func (s *source) More() bool { return len(s.events) > 0 }

// Stop implements watch.Source.
func (s *source) Stop() { s.cancel() }

// Next implements watch.Source.
func (s *source) Next() (watch.Event, error) {
	if s.ended {
		return watch.Event{}, io.EOF
	}
	if s.failed != nil {
		return s.failure(s.failed)
	}
	if !s.endMarked && !s.More() {
		flowcontrol.Started(s.ctx)
	}
	stopping := s.g.Stopping
	if s.last != nil {
		stopping = nil
	}
	select {
	case <-s.ctx.Done():
		return watch.Event{}, io.EOF
	case <-stopping:
		if s.g.StoppingGrace <= 0 {
			return watch.Event{}, io.EOF
		}
		s.last = time.After(rand.N(s.g.StoppingGrace))
		return s.Next()
	case <-s.last:
		return watch.Event{}, io.EOF
	case <-s.r.gone:
		return watch.Event{}, io.EOF
	case ev, ok := <-s.events:
		if !ok {
			return watch.Event{}, io.EOF
		}
		if ev.Err != nil {
			return s.failure(ev.Err)
		}
		if ev.InitialEventsEnd {
			flowcontrol.Started(s.ctx)
		}
		b, err := s.encodeEvent(ev)
		if err != nil {
			return s.failure(fmt.Errorf("encoding a watch event of %s: %w", s.r.gr, err))
		}
		return watch.Event{Type: string(ev.Type), Object: b}, nil
	}
}

// failure is the last event.
func (s *source) failure(err error) (watch.Event, error) {
	s.ended = true
	b, err := s.encodeObject(StatusOf(err))
	if err != nil {
		return watch.Event{}, err
	}
	return watch.Event{Type: string(apiwatch.Error), Object: b}, nil
}

// encodeEvent encodes the object as a single object of its own, from the cache where possible.
func (s *source) encodeEvent(ev cacher.Event) ([]byte, error) {
	if ev.Type == apiwatch.Bookmark {
		return s.encodeTransformed(s.bookmark(ev))
	}
	if s.out.As == nil && s.r.FromStored == nil {
		if s.out.Media == negotiate.Protobuf {
			return ev.Object.Proto()
		}
		return ev.Object.JSON()
	}
	obj, err := s.r.seen(ev.Object)
	if err != nil {
		return nil, err
	}
	return s.encodeTransformed(obj)
}

func (s *source) bookmark(ev cacher.Event) runtime.Object {
	obj := s.r.empty()
	m := accessor(obj)
	m.SetResourceVersion(strconv.FormatInt(ev.Revision, 10))
	if ev.InitialEventsEnd {
		m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	}
	return obj
}

func (s *source) encodeTransformed(obj runtime.Object) ([]byte, error) {
	if s.out.As == nil {
		return s.encodeObject(obj)
	}
	if s.out.As.Kind != "Table" {
		p, err := table.Metadata(obj, s.out.As.Version)
		if err != nil {
			return nil, err
		}
		return s.encodeObject(p)
	}
	s.table.Now = s.g.Clock.Now()
	t, err := table.New(s.r.Resource, []runtime.Object{obj}, metav1.ListMeta{ResourceVersion: accessor(obj).GetResourceVersion()}, s.table)
	if err != nil {
		return nil, err
	}
	s.table.NoHeaders = true // only the first event carries the columns
	return s.encodeObject(t)
}

func (s *source) encodeObject(obj runtime.Object) ([]byte, error) {
	if s.out.Media == negotiate.Protobuf {
		return s.g.codecs.Encode(obj, s.out)
	}
	b, err := marshal(obj)
	for len(b) > 0 && b[len(b)-1] == '\n' {
		b = b[:len(b)-1]
	}
	return b, err
}
