// Package snapshot keeps copies of etcd's database in files, in etcd's own format: the
// database, and behind it the SHA-256 of its bytes. etcdutl reads what Save writes, and
// Restore what etcdctl saved.
//
// Owns: the file's format, and what a data directory of a restored member holds. Must not:
// speak to a member that runs.
package snapshot

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"
)

// sector divides the size of a database: what is left over is the hash.
const sector = 512

// ErrNoHash says that a file has no hash behind its database, as a copy of a member's own
// file has not.
var ErrNoHash = errors.New("there is no hash behind the database, by which it could be checked")

// Save writes what a member sends. The file is there whole or not at all; one of that name
// from before is replaced.
func Save(from io.Reader, path string) (size int64, err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".part-*")
	if err != nil {
		return 0, fmt.Errorf("save a snapshot: %w", err)
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	size, err = io.Copy(f, from)
	if err == nil && size%sector != sha256.Size {
		err = errors.New("etcd sent it without a hash")
	}
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = check(f.Name(), size)
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err == nil {
		err = syncDir(filepath.Dir(path))
	}
	if err != nil {
		return 0, fmt.Errorf("save a snapshot to %s: %w", path, err)
	}
	return size, nil
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// check compares a file with the hash at its end.
func check(path string, size int64) error {
	if size%sector != sha256.Size {
		return ErrNoHash
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.CopyN(h, f, size-sha256.Size); err != nil {
		return err
	}
	want, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	if !bytes.Equal(want, h.Sum(nil)) {
		return errors.New("it is damaged: its content does not have the hash at its end")
	}
	return nil
}

// Info is what is in a snapshot.
type Info struct {
	// Hash is CRC-32 (Castagnoli) of all buckets' names, keys and values, as etcdutl tells it.
	Hash     uint32
	Revision int64
	// Keys are all in the database, those of history included.
	Keys int
	Size int64
	// Version of etcd that the database is for; empty before 3.6.
	Version string
	// Checked says that the file has a hash, which is right.
	Checked bool
}

// Status reads a snapshot through, and finds whatever is damaged.
func Status(path string) (Info, error) {
	var info Info
	st, err := os.Stat(path)
	if err != nil {
		return info, fmt.Errorf("read a snapshot: %w", err)
	}
	if !st.Mode().IsRegular() {
		return info, fmt.Errorf("read a snapshot: %s is no file", path)
	}
	switch err := check(path, st.Size()); {
	case err == nil:
		info.Checked = true
	case !errors.Is(err, ErrNoHash):
		return info, fmt.Errorf("snapshot %s: %w", path, err)
	}
	db, err := bbolt.Open(path, 0o400, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		return info, fmt.Errorf("snapshot %s is no database of etcd's: %w", path, err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		if tx.Size() > st.Size() { // what is read beyond the end of a map ends the process
			return fmt.Errorf("it is cut: it has %d bytes of %d", st.Size(), tx.Size())
		}
		for err := range tx.Check() {
			return fmt.Errorf("it is damaged: %w", err)
		}
		if tx.Bucket(schema.Key.Name()) == nil {
			return errors.New("it is no database of etcd's: it has no keys' bucket")
		}
		info.Size = tx.Size()
		if tx.Bucket(schema.Meta.Name()) != nil {
			if v := schema.ReadStorageVersionFromSnapshot(tx); v != nil {
				info.Version = v.String()
			}
		}
		h := crc32.New(crc32.MakeTable(crc32.Castagnoli))
		return tx.ForEach(func(name []byte, b *bbolt.Bucket) error {
			h.Write(name)
			keys := bytes.Equal(name, schema.Key.Name())
			err := b.ForEach(func(k, v []byte) error {
				h.Write(k)
				h.Write(v)
				if keys {
					info.Revision = mvcc.BytesToBucketKey(k).Main
				}
				info.Keys++
				return nil
			})
			info.Hash = h.Sum32()
			return err
		})
	})
	if err != nil {
		return info, fmt.Errorf("snapshot %s: %w", path, err)
	}
	return info, nil
}

// exists tells whether there is something at a path.
func exists(path string) (bool, error) {
	_, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// quiet is for libraries that want a logger and say nothing that is not in their errors.
var quiet = zap.NewNop()
