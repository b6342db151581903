package containers

import (
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// broadcaster hands events to every subscriber. One that falls behind is cut
// off, so that it lists anew instead of missing something unawares.
type broadcaster struct {
	mu     sync.Mutex
	subs   map[chan *runtimeapi.ContainerEventResponse]bool
	closed bool
}

const eventBacklog = 1000

func newBroadcaster() *broadcaster {
	return &broadcaster{subs: map[chan *runtimeapi.ContainerEventResponse]bool{}}
}

func (b *broadcaster) subscribe() (chan *runtimeapi.ContainerEventResponse, func()) {
	ch := make(chan *runtimeapi.ContainerEventResponse, eventBacklog)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		close(ch)
		return ch, func() {}
	}
	b.subs[ch] = true
	return ch, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.subs[ch] {
			delete(b.subs, ch)
			close(ch)
		}
	}
}

func (b *broadcaster) wanted() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.subs) > 0
}

func (b *broadcaster) send(e *runtimeapi.ContainerEventResponse) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ch := range b.subs {
		select {
		case ch <- e:
		default:
			delete(b.subs, ch)
			close(ch)
		}
	}
}

func (b *broadcaster) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for ch := range b.subs {
		delete(b.subs, ch)
		close(ch)
	}
}

// publish tells subscribers of a change, with the whole pod as it is now.
func (r *Runtime) publish(id string, kind runtimeapi.ContainerEventType, sandboxID string) {
	if !r.events.wanted() {
		return
	}
	e := &runtimeapi.ContainerEventResponse{ContainerId: id, ContainerEventType: kind, CreatedAt: time.Now().UnixNano()}
	if s, err := r.sandboxFor(sandboxID); err == nil {
		e.PodSandboxStatus = sandboxStatus(s)
		for _, c := range r.containersOf(sandboxID) {
			e.ContainersStatuses = append(e.ContainersStatuses, r.containerStatus(c))
		}
	}
	r.events.send(e)
}

// GetContainerEvents streams changes from now on.
func (r *Runtime) GetContainerEvents(_ *runtimeapi.GetEventsRequest, out runtimeapi.RuntimeService_GetContainerEventsServer) error {
	ch, cancel := r.events.subscribe()
	defer cancel()
	for {
		select {
		case e, ok := <-ch:
			if !ok {
				return status.Error(codes.Unavailable, "the event stream ended; list and subscribe again")
			}
			if err := out.Send(e); err != nil {
				return err
			}
		case <-out.Context().Done():
			return out.Context().Err()
		}
	}
}
