package oci

import (
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

//go:embed bin
var built embed.FS

// Program is a program that skiff carries; containers/build.mk makes them.
type Program string

// The programs.
const (
	Launcher Program = "launcher"
	Monitor  Program = "monitor"
	Hello    Program = "hello"
)

// ErrNotBuilt says that this binary was built without the programs it carries.
var ErrNotBuilt = errors.New("not built into this binary: run `make build`")

// open returns a program's content as a stream, and its size.
func (p Program) open() (io.Reader, int, error) {
	packed, err := built.Open("bin/" + string(p) + ".gz")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, fmt.Errorf("containers/oci/bin/%s.gz is %w", p, ErrNotBuilt)
	}
	if err != nil {
		return nil, 0, err
	}
	// An embedded file can be read at any place; the last four bytes of a gzip
	// file are the size of what it holds (RFC 1952).
	st, err := packed.Stat()
	if err != nil {
		return nil, 0, err
	}
	var tail [4]byte
	at, ok := packed.(io.ReaderAt)
	if !ok {
		return nil, 0, fmt.Errorf("unpack %s: not an embedded file", p)
	}
	if _, err := at.ReadAt(tail[:], st.Size()-int64(len(tail))); err != nil {
		return nil, 0, fmt.Errorf("unpack %s: %w", p, err)
	}
	z, err := gzip.NewReader(packed)
	if err != nil {
		return nil, 0, fmt.Errorf("unpack %s: %w", p, err)
	}
	return z, int(binary.LittleEndian.Uint32(tail[:])), nil
}

// Read returns a program's content.
func (p Program) Read() ([]byte, error) {
	in, size, err := p.open()
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	if _, err := io.ReadFull(in, b); err != nil {
		return nil, fmt.Errorf("unpack %s: %w", p, err)
	}
	return b, nil
}

// sum identifies a program's content. The build leaves it beside the program:
// at a start that need not extract anything, the program's pages stay unread.
func (p Program) sum() (string, error) {
	if b, err := built.ReadFile("bin/" + string(p) + ".sum"); err == nil && len(b) >= 16 {
		return string(b[:16]), nil
	}
	packed, err := built.ReadFile("bin/" + string(p) + ".gz")
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("containers/oci/bin/%s.gz is %w", p, ErrNotBuilt)
	}
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(packed)
	return hex.EncodeToString(sum[:8]), nil
}

// Extract puts a program into dir under a name with its content's hash, unless
// it is there, and returns the path. Programs of other versions stay: monitors
// of running containers may be theirs.
func (p Program) Extract(dir string) (string, error) {
	sum, err := p.sum()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "skiff-"+string(p)+"-"+sum)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	in, _, err := p.open()
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("extract %s: %w", p, err)
	}
	tmp, err := os.CreateTemp(dir, ".tmp-*")
	if err != nil {
		return "", fmt.Errorf("extract %s: %w", p, err)
	}
	_, err = io.Copy(tmp, in)
	if err == nil {
		err = tmp.Chmod(0o755)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
		return "", fmt.Errorf("extract %s: %w", p, err)
	}
	return path, nil
}
