// Package component is how the parts of a process start, become ready and stop.
//
// Owns: the Component interface and ordered Groups of them; leader election lives in
// component/leader. Must not: know any particular component, or Kubernetes kinds.
package component

import "context"

// Component is a part of a process. Run blocks until ctx ends or the component fails,
// and returns only when everything it started has stopped. It returns nil (or ctx's
// error) when ctx ended it.
type Component interface {
	Run(ctx context.Context) error
}

// Func makes a function a Component.
type Func func(ctx context.Context) error

// Run calls f.
func (f Func) Run(ctx context.Context) error { return f(ctx) }

// Waiter is a Component that says when it serves. WaitReady blocks until it does, or
// returns an error when ctx ends first. It may be called before Run and many times.
type Waiter interface {
	WaitReady(ctx context.Context) error
}
