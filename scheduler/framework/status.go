// Package framework is what scheduler plugins implement and what the scheduling cycle
// gives them: extension points as the Kubernetes scheduling framework names them
// (KEP-624), in a smaller shape of our own.
//
// Plugins run in one goroutine, between which and the API server there is nothing to
// wait for; only Permit waits, PreBind and Bind run elsewhere. Must not: write to the API.
package framework

import "strings"

// Code says what a Status means.
type Code int

// The codes that matter to the cycle.
const (
	Success Code = iota
	// Error is our failure, not the pod's.
	Error
	// Unschedulable: preempting other pods may help.
	Unschedulable
	// Unresolvable: nothing that preemption can do helps.
	Unresolvable
	// Pending: the pod waits for something outside that the plugin has started.
	Pending
	// Skip: this plugin's Filter or Score has no say for this pod.
	Skip
	// Wait holds the binding (Permit).
	Wait
)

// Status is an answer; nil is Success. Plugins return the same pointers again and again:
// a filter that allocates per node is too slow.
type Status struct {
	Code    Code
	Plugin  string
	Reasons []string
	Err     error
}

// Skipped is returned by PreFilter and PreScore.
var Skipped = &Status{Code: Skip}

// NewStatus makes a status.
func NewStatus(code Code, plugin string, reasons ...string) *Status {
	return &Status{Code: code, Plugin: plugin, Reasons: reasons}
}

// Failed makes an Error of err.
func Failed(plugin string, err error) *Status {
	return &Status{Code: Error, Plugin: plugin, Reasons: []string{err.Error()}, Err: err}
}

// Rejected reports whether the status keeps a pod off a node.
func (s *Status) Rejected() bool {
	return s != nil && (s.Code == Unschedulable || s.Code == Unresolvable || s.Code == Pending)
}

// Message is the reasons in one line.
func (s *Status) Message() string {
	if s == nil {
		return ""
	}
	return strings.Join(s.Reasons, ", ")
}
