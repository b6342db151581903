package match

import (
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Reinvocation remembers what one kind of mutator did to a write in the first round, and so
// whom a second round calls again: those that ask for it and ran before another change.
type Reinvocation struct {
	// Second is set in the second round, which never calls anybody for the first time.
	Second bool
	// Changed says that something changed the object, so that a second round is due.
	Changed bool

	invoked, again sets.Set[string]
	output         runtime.Object
}

// Begin starts a round.
func (r *Reinvocation) Begin(obj runtime.Object) {
	if r.Second && r.output != nil && !equality.Semantic.DeepEqual(r.output, obj) {
		r.forward()
	}
}

// End ends a round.
func (r *Reinvocation) End(obj runtime.Object) {
	// Only a second round looks at it, and only a change makes one.
	if !r.Second && obj != nil && r.invoked.Len() > 0 {
		r.output = obj.DeepCopyObject()
	}
}

// Calls says whether this round calls a mutator.
func (r *Reinvocation) Calls(key string) bool { return !r.Second || r.again.Has(key) }

// Called records a call; again: the mutator wants to see later changes of others.
func (r *Reinvocation) Called(key string, changed, again bool) {
	if changed {
		r.Changed = true
		r.forward()
	}
	if again {
		if r.invoked == nil {
			r.invoked = sets.New[string]()
		}
		r.invoked.Insert(key)
	}
}

func (r *Reinvocation) forward() {
	r.again = r.again.Union(r.invoked)
	r.invoked = nil
}
