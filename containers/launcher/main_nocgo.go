//go:build !linux || !cgo

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "skiff-launcher: built without cgo; libcontainer needs it. Build with: make -f containers/build.mk embedded")
	os.Exit(1)
}
