// Package plan is what the guest and its host agree on.
package plan

import "time"

const (
	// Path of the steps, in JSON.
	Path = "/plan.json"
	// Address and Gateway of the guest's one link; nobody is at the gateway.
	Address, Gateway = "192.0.2.10", "192.0.2.1"
	// Mark begins each line by which the guest says how it gets on; a Result in JSON follows.
	Mark = "\x01guest "
)

// Step is one program to run.
type Step struct {
	Name, Dir string
	Args, Env []string
	Timeout   time.Duration
}

// Result is how a step ended.
type Result struct {
	Name    string
	Error   string // empty: well
	Passed  int
	Failed  int
	Skipped []string // tests that did not run, with the reason
	Seconds float64
}
