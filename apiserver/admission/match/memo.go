package match

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Memo keeps what was made of each shared object until the object changes. Objects of the
// cache never change: another state is another pointer.
type Memo[T comparable, C any] struct {
	Build func(T) C

	mu    sync.Mutex // held by who makes the next state
	state atomic.Pointer[memoState[T, C]]
}

type memoState[T comparable, C any] struct {
	from []T
	made []C
}

// Of is what was made of the objects, in their order.
func (m *Memo[T, C]) Of(objs []T) []C {
	if len(objs) == 0 {
		return nil
	}
	if s := m.state.Load(); s != nil && slices.Equal(s.from, objs) {
		return s.made
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.state.Load()
	if s == nil {
		s = &memoState[T, C]{}
	}
	if slices.Equal(s.from, objs) {
		return s.made
	}
	next := &memoState[T, C]{from: slices.Clone(objs), made: make([]C, len(objs))}
	for i, o := range objs {
		if j := slices.Index(s.from, o); j >= 0 {
			next.made[i] = s.made[j]
		} else {
			next.made[i] = m.Build(o)
		}
	}
	m.state.Store(next)
	return next.made
}
