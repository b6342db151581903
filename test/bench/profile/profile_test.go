package profile

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"os"
	"path/filepath"
	"runtime/pprof"
	"testing"
	"time"
)

// TestTop profiles this process while it hashes much and encodes a little.
func TestTop(t *testing.T) {
	var out bytes.Buffer
	if err := pprof.StartCPUProfile(&out); err != nil {
		t.Fatal(err)
	}
	data := make([]byte, 1<<20)
	values := make([]int, 2000)
	for start := time.Now(); time.Since(start) < 1500*time.Millisecond; {
		for range 20 {
			_ = sha256.Sum256(data)
		}
		if _, err := json.Marshal(values); err != nil {
			t.Fatal(err)
		}
	}
	pprof.StopCPUProfile()
	path := filepath.Join(t.TempDir(), "a.pprof")
	if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
	costs, err := Top(path, 3)
	if err != nil {
		t.Fatal(err)
	}
	if len(costs) == 0 || costs[0].What != "TLS" || costs[0].Share < 0.5 || costs[0].Share > 1 {
		t.Errorf("hashing should be the largest cost, under the name of crypto; got %v", costs)
	}
}

func TestName(t *testing.T) {
	for _, c := range []struct {
		want  string
		stack []string
	}{
		{"JSON", []string{"runtime.memmove", "runtime.mallocgc", "encoding/json.Marshal", skiff + "apiserver/rest.respond"}},
		{"garbage collection", []string{"runtime.scanobject", "runtime.gcDrain", "runtime.gcBgMarkWorker"}},
		{"garbage collection", []string{"runtime.scanobject", "runtime.gcAssistAlloc", "runtime.mallocgc", "encoding/json.Marshal"}},
		{"protobuf", []string{"k8s.io/api/core/v1.(*Pod).MarshalToSizedBuffer", skiff + "apiserver/cacher.(*Entry).encode"}},
		{"protobuf", []string{"k8s.io/api/core/v1.(*Pod).Size", skiff + "apiserver/cacher.(*Entry).encode"}},
		{"deep copies", []string{"k8s.io/api/core/v1.(*Pod).DeepCopyInto", skiff + "apiserver/rest.create"}},
		{"socket system calls", []string{"internal/runtime/syscall.Syscall6", "syscall.write", "internal/poll.(*FD).Write", "net.(*netFD).Write", "crypto/tls.(*Conn).write"}},
		{"file system calls", []string{"internal/runtime/syscall.Syscall6", "internal/poll.(*FD).Fsync", "os.(*File).Sync", "go.etcd.io/etcd/server/v3/storage/wal.(*WAL).sync"}},
		{"TLS", []string{"crypto/internal/fips140/aes/gcm.gcmAesEnc", "crypto/tls.(*halfConn).encrypt"}},
		{"etcd: Raft, log and database", []string{"runtime.memmove", "go.etcd.io/bbolt.(*node).write"}},
		{"watch cache", []string{"runtime.mapaccess1", skiff + "apiserver/cacher.(*Cache).Get"}},
		{"conversion to and from internal versions", []string{"k8s.io/kubernetes/pkg/apis/core/v1.Convert_v1_Pod_To_core_Pod"}},
		{other, []string{"runtime.memmove", "main.main"}},
		{other, nil},
	} {
		if got := name(c.stack); got != c.want {
			t.Errorf("%v: %q, want %q", c.stack, got, c.want)
		}
	}
}

func TestDamagedProfile(t *testing.T) {
	for name, raw := range map[string][]byte{
		"cut":       {0x12, 0x7f, 1},
		"no gzip":   {0x1f, 0x8b, 0, 0},
		"bad field": {0xff},
	} {
		if s, err := parse(raw); err == nil {
			t.Errorf("%s: %v", name, s)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte{0x12, 4, 0x0a, 1, 1, 0x10})
	f.Fuzz(func(_ *testing.T, raw []byte) { _, _ = parse(raw) })
}
