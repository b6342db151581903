//go:build !linux || !cgo

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "skiff-helper: built without cgo; libcontainer needs it. Build with: make -f containers/build.mk helper")
	os.Exit(1)
}
