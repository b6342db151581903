// Package cmp stands in for github.com/google/go-cmp, which etcd's server links for one
// message of a check that production never runs. The real one looks methods up by
// reflection, so that the linker must keep every exported method of the whole binary.
// See docs/adr/0002-go-cmp.md.
package cmp

import (
	"fmt"
	"reflect"
)

// Option is accepted and ignored.
type Option any

// Equal compares with reflect.DeepEqual.
func Equal(x, y any, _ ...Option) bool { return reflect.DeepEqual(x, y) }

// Diff is empty for equal values, else it shows both.
func Diff(x, y any, _ ...Option) string {
	if reflect.DeepEqual(x, y) {
		return ""
	}
	return fmt.Sprintf("-%+v\n+%+v\n", x, y)
}
