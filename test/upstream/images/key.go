package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
)

// keyFile says in a layout what it was made of.
const keyFile = "made-of"

// keyOf names all that goes into the images: the base's packages, the catalog with its
// texts, and the content of each program.
func keyOf(all []image) (string, error) {
	sum := sha256.New()
	fmt.Fprintln(sum, baseKey())
	for _, im := range all {
		fmt.Fprintf(sum, "%q %t %q %q %q %q\n", im.names, im.scratch, im.entrypoint, im.cmd, im.user, im.stopSignal)
		for _, f := range append(im.files, standIn(im)) {
			fmt.Fprintf(sum, "%q %q %q %t %o\n", f.path, f.text, f.link, f.dir, f.mode)
			if err := sumFile(sum, f.from); err != nil {
				return "", fmt.Errorf("image %s: %w", im.names[0], err)
			}
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func sumFile(sum io.Writer, path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read program: %w", err)
	}
	defer f.Close()
	own := sha256.New()
	if _, err := io.Copy(own, f); err != nil {
		return fmt.Errorf("read program: %w", err)
	}
	fmt.Fprintf(sum, "%x\n", own.Sum(nil))
	return nil
}
