package robustness

import (
	"fmt"

	"github.com/anishathalye/porcupine"
)

// An object is a register with compare-and-swap: what is in it is a value that no two
// writes share, or nothing.

type opKind uint8

const (
	opGet opKind = iota
	opCreate
	opSwap // of the value expected for the one that is new
	opDelete
)

type input struct {
	kind   opKind
	key    string
	expect string // of swap and delete
	value  string // of create and swap
}

type output struct {
	value string // of get; empty: there is none
	// refused: there was an object to be created, or it was not what was expected.
	refused bool
	// unknown: the write may have happened, or happen still.
	unknown bool
}

// register is what linearizability means here.
var register = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range history {
			k := o.Input.(input).key
			byKey[k] = append(byKey[k], o)
		}
		var out [][]porcupine.Operation
		for _, h := range byKey {
			out = append(out, h)
		}
		return out
	},
	Init: func() []any { return []any{""} },
	Step: func(state, in, out any) []any {
		s, i, o := state.(string), in.(input), out.(output)
		applies, next := false, s
		switch i.kind {
		case opGet:
			if o.value == s {
				return []any{s}
			}
			return nil
		case opCreate:
			applies, next = s == "", i.value
		case opSwap:
			applies, next = s == i.expect, i.value
		case opDelete:
			applies, next = s == i.expect, ""
		}
		switch {
		case o.unknown && applies:
			return []any{s, next}
		case o.unknown, o.refused && !applies:
			return []any{s}
		case !o.refused && applies:
			return []any{next}
		}
		return nil
	},
	DescribeOperation: func(in, out any) string { return fmt.Sprintf("%+v: %+v", in, out) },
}
