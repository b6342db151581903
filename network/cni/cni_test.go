package cni

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// scripted is a plugin that writes down what it is called with, and fails where a file says so.
const scripted = `#!/bin/sh
cd "$(dirname "$0")"
stdin=$(cat)
printf %s "$stdin" > "$0.stdin.$CNI_COMMAND"
name=$(printf %s "$stdin" | grep -o '"name":"[^"]*"' | head -n 1 | cut -d '"' -f 4)
[ $CNI_COMMAND = VERSION ] || echo "$CNI_COMMAND $name $CNI_CONTAINERID netns=$CNI_NETNS $CNI_IFNAME $CNI_ARGS" >> calls
if [ -f fail.$CNI_COMMAND ]; then cat fail.$CNI_COMMAND; exit 1; fi
case $CNI_COMMAND in
ADD) echo '{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"eth0","sandbox":"/x"}],
  "ips":[{"address":"10.9.0.1/24","interface":0},{"address":"10.9.0.7/24","gateway":"10.9.0.1","interface":1},{"address":"fd00:9::7/64","interface":1}]}';;
VERSION) echo '{"cniVersion":"1.0.0","supportedVersions":["0.3.1","0.4.0","1.0.0","1.1.0"]}';;
esac
`

type rig struct {
	t   *testing.T
	cfg Config
	now time.Time
	*Network
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{t: t, now: time.Unix(1e9, 0), cfg: Config{ConfDir: dir + "/net.d", BinDirs: []string{dir + "/none", dir + "/bin"}, StateDir: dir + "/state", Logger: slog.New(slog.DiscardHandler)}}
	r.cfg.Now = func() time.Time { return r.now }
	for _, d := range []string{r.cfg.ConfDir, r.cfg.BinDirs[1]} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r.write(r.cfg.BinDirs[1]+"/scripted", scripted)
	r.restart()
	return r
}

func (r *rig) write(path, text string) {
	r.t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rig) restart() {
	r.t.Helper()
	n, err := New(r.cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Network = n
}

func (r *rig) conf(file, text string) {
	r.t.Helper()
	r.write(filepath.Join(r.cfg.ConfDir, file), text)
}

func (r *rig) bin(file string) string { return filepath.Join(r.cfg.BinDirs[1], file) }

// calls since the last time, without their arguments.
func (r *rig) calls() []string {
	r.t.Helper()
	text, err := os.ReadFile(r.bin("calls"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		r.t.Fatal(err)
	}
	_ = os.Remove(r.bin("calls"))
	var out []string
	for line := range strings.Lines(string(text)) {
		out = append(out, strings.Join(strings.Fields(line + " - - - -")[:4], " "))
	}
	return out
}

func (r *rig) want(calls ...string) {
	r.t.Helper()
	if got := r.calls(); !slices.Equal(got, calls) {
		r.t.Errorf("plugins were called with\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(calls, "\n"))
	}
}

func list(name, version string) string {
	return fmt.Sprintf(`{"cniVersion":%q,"name":%q,"plugins":[{"type":"scripted","capabilities":{"portMappings":true,"bandwidth":true,"dns":true}}]}`, version, name)
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestLife(t *testing.T) {
	r := newRig(t)
	netns := t.TempDir()
	addrs := must[[]netip.Addr](t)
	r.conf("20-later.conflist", list("later", "1.0.0"))
	r.conf("10-first.conflist", list("first", "1.0.0"))
	r.conf("00-broken.conflist", `{"name":`)
	r.conf("00-ignored.txt", list("ignored", "1.0.0"))
	s := Sandbox{ID: "a", Namespace: "ns", Name: "pod", UID: "u", NetNS: netns, Ports: []Port{{HostPort: 80, ContainerPort: 8080, Protocol: "tcp"}},
		Ingress: 1e6, DNS: DNS{Servers: []string{"10.96.0.10"}}}
	want := []netip.Addr{netip.MustParseAddr("10.9.0.7"), netip.MustParseAddr("fd00:9::7")}
	if got := addrs(r.Attach(t.Context(), s)); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v: those of the sandbox's interface", got, want)
	}
	r.want("ADD first a netns=" + netns)
	var stdin struct {
		RuntimeConfig struct {
			PortMappings []Port
			Bandwidth    map[string]uint64
			DNS          DNS
		}
	}
	text, err := os.ReadFile(r.bin("scripted.stdin.ADD"))
	if err != nil || json.Unmarshal(text, &stdin) != nil {
		t.Fatalf("%v, %s", err, text)
	}
	if c := stdin.RuntimeConfig; len(c.PortMappings) != 1 || c.PortMappings[0] != s.Ports[0] || c.Bandwidth["ingressRate"] != 1e6 || c.Bandwidth["egressRate"] != 0 || len(c.DNS.Servers) != 1 {
		t.Errorf("the plugin was given %s", text)
	}

	// Again, after a restart: the same, if the plugins find it in order.
	r.restart()
	if !r.Attached("a") || r.Attached("b") {
		t.Error("after a restart it is not known who is attached")
	}
	if got := addrs(r.Attach(t.Context(), s)); !slices.Equal(got, want) {
		t.Errorf("got %v again, want %v", got, want)
	}
	r.want("CHECK first a netns=" + netns)
	r.write(r.bin("fail.CHECK"), `{"cniVersion":"1.0.0","code":100,"msg":"link has gone"}`)
	addrs(r.Attach(t.Context(), s))
	r.want("CHECK first a netns="+netns, "DEL first a netns="+netns, "ADD first a netns="+netns)

	// Another configuration is for new sandboxes; old ones are taken off with theirs.
	if err := os.Remove(filepath.Join(r.cfg.ConfDir, "10-first.conflist")); err != nil {
		t.Fatal(err)
	}
	addrs(r.Attach(t.Context(), Sandbox{ID: "b", NetNS: netns}))
	r.want("ADD later b netns=" + netns)
	for range 2 {
		if err := r.Detach(t.Context(), "a", filepath.Join(netns, "gone")); err != nil {
			t.Fatal(err)
		}
	}
	r.want("DEL first a netns=")
	if left, err := os.ReadDir(filepath.Join(r.cfg.StateDir, "cache", "results")); err != nil || len(left) != 1 {
		t.Errorf("%d results are kept, %v, want that of one sandbox", len(left), err)
	}
}

func TestFailures(t *testing.T) {
	r := newRig(t)
	r.conf("1.conf", `{"cniVersion":"0.3.1","name":"old","type":"scripted"}`)
	const words = "no space in subnet 10.9.0.0/24"
	r.write(r.bin("fail.ADD"), fmt.Sprintf(`{"cniVersion":"0.3.1","code":11,"msg":%q,"details":"all taken"}`, words))
	_, err := r.Attach(t.Context(), Sandbox{ID: "a", NetNS: "/x"})
	if err == nil || !strings.Contains(err.Error(), words) || !strings.Contains(err.Error(), "all taken") || !strings.Contains(err.Error(), `"old"`) || !strings.Contains(err.Error(), `"scripted"`) {
		t.Errorf("error is %v, want network, plugin and what it says", err)
	}
	r.want("ADD old a netns=/x", "DEL old a netns=")
	if r.Attached("a") {
		t.Error("what failed is attached")
	}
	// A plugin that dies without a word.
	r.write(r.bin("fail.ADD"), "")
	if _, err := r.Attach(t.Context(), Sandbox{ID: "a", NetNS: "/x"}); err == nil || !strings.Contains(err.Error(), "scripted") {
		t.Errorf("error is %v, want the plugin's name", err)
	}
	// DEL that fails is tried again.
	if err := os.Remove(r.bin("fail.ADD")); err != nil {
		t.Fatal(err)
	}
	must[[]netip.Addr](t)(r.Attach(t.Context(), Sandbox{ID: "a", NetNS: "/x"}))
	r.write(r.bin("fail.DEL"), `{"code":11,"msg":"busy"}`)
	if err := r.Detach(t.Context(), "a", ""); err == nil || !strings.Contains(err.Error(), "busy") {
		t.Errorf("error is %v, want what the plugin says", err)
	}
	if !r.Attached("a") {
		t.Error("a failed DEL was forgotten")
	}
	if err := os.Remove(r.bin("fail.DEL")); err != nil {
		t.Fatal(err)
	}
	if err := r.Detach(t.Context(), "a", ""); err != nil || r.Attached("a") {
		t.Errorf("second try: %v", err)
	}
	// A crash between the book's entry and the plugins' answer.
	r.calls()
	l, _, err := load(r.cfg.ConfDir)
	config := must[[]byte](t)(flatten(l))
	if err != nil || r.book.put("c", record{Config: config, NetNS: "/x"}) != nil {
		t.Fatal(err)
	}
	r.restart()
	must[[]netip.Addr](t)(r.Attach(t.Context(), Sandbox{ID: "c", NetNS: "/x"}))
	r.want("DEL old c netns=", "ADD old c netns=/x")

	// Plugins that are taken away: what can't be attached leaves nothing, what was never attached or has
	// lost its namespace can be taken off, what is attached waits.
	alive := t.TempDir()
	must[[]netip.Addr](t)(r.Attach(t.Context(), Sandbox{ID: "d", NetNS: alive}))
	if r.book.put("e", record{Config: config, NetNS: alive}) != nil {
		t.Fatal("can't write")
	}
	if err := os.Rename(r.bin("scripted"), r.bin("elsewhere")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Attach(t.Context(), Sandbox{ID: "f", NetNS: alive}); err == nil || !strings.Contains(err.Error(), "scripted") || r.Attached("f") {
		t.Errorf("attached without a plugin: %v", err)
	}
	if err := errors.Join(r.Detach(t.Context(), "c", ""), r.Detach(t.Context(), "e", alive)); err != nil {
		t.Errorf("taken off without a plugin: %v", err)
	}
	if err := r.Detach(t.Context(), "d", alive); err == nil || !r.Attached("d") {
		t.Errorf("what is attached was forgotten: %v", err)
	}
	if err := os.Rename(r.bin("elsewhere"), r.bin("scripted")); err != nil {
		t.Fatal(err)
	}
	if err := r.Detach(t.Context(), "d", alive); err != nil || r.Attached("d") {
		t.Errorf("with the plugin back: %v", err)
	}
}

func TestReady(t *testing.T) {
	r := newRig(t)
	says := func(want string) {
		t.Helper()
		err := r.Ready(t.Context())
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("ready: %v, want %q", err, want)
		}
	}
	says("no CNI configuration in " + r.cfg.ConfDir)
	if r.Configured() {
		t.Error("an empty directory is a configuration")
	}
	r.conf("1.conflist", `{"cniVersion":"1.0.0","name":"x"}`)
	says("1.conflist")
	r.conf("1.conflist", `{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"../scripted"}]}`)
	says("plugins[0].type")
	r.conf("1.conflist", `{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"absent","ipam":{"type":"missing"}},{"type":"scripted"}]}`)
	says("absent, missing")
	r.conf("1.conflist", list("x", "1.0.0"))
	says("")
	r.want()
	// Since 1.1 plugins are asked themselves, now and then.
	r.conf("1.conflist", list("x", "1.1.0"))
	says("")
	says("")
	if got := r.calls(); len(got) != 1 || !strings.HasPrefix(got[0], "STATUS x") {
		t.Errorf("plugins were called with %q, want STATUS once", got)
	}
	r.write(r.bin("fail.STATUS"), `{"cniVersion":"1.1.0","code":50,"msg":"daemon is starting"}`)
	says("")
	r.now = r.now.Add(time.Minute)
	says("daemon is starting")
}

func TestCollect(t *testing.T) {
	r := newRig(t)
	r.conf("1.conflist", list("x", "1.1.0"))
	for _, id := range []string{"a", "b", "c"} {
		must[[]netip.Addr](t)(r.Attach(t.Context(), Sandbox{ID: id, NetNS: "/x"}))
	}
	r.calls()
	r.restart()
	if err := r.Collect(t.Context(), []string{"b", "unknown"}); err != nil {
		t.Fatal(err)
	}
	got := r.calls()
	slices.Sort(got)
	if len(got) != 3 || got[0] != "DEL x a netns=" || got[1] != "DEL x c netns=" || !strings.HasPrefix(got[2], "GC x") {
		t.Errorf("plugins were called with %q", got)
	}
	text, err := os.ReadFile(r.bin("scripted.stdin.GC"))
	if err != nil || !strings.Contains(string(text), `"containerID":"b"`) || strings.Contains(string(text), `"containerID":"a"`) {
		t.Errorf("GC was given %s, %v; want b as valid", text, err)
	}
	if r.Attached("a") || !r.Attached("b") {
		t.Error("the wrong ones are attached")
	}
}

// TestConcurrent has the same sandbox attached and detached at once: what is left is one of both.
func TestConcurrent(t *testing.T) {
	r := newRig(t)
	r.conf("1.conflist", list("x", "0.3.1"))
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			id := fmt.Sprint("s", i%2)
			if i < 4 {
				if _, err := r.Attach(context.Background(), Sandbox{ID: id, NetNS: "/x"}); err != nil {
					t.Error(err)
				}
			} else if err := r.Detach(context.Background(), id, ""); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	attached := map[string]bool{}
	for _, call := range r.calls() {
		f := strings.Fields(call)
		if f[0] == "ADD" && attached[f[2]] {
			t.Errorf("%s was added twice", f[2])
		}
		attached[f[2]] = f[0] == "ADD"
	}
	for id, is := range attached {
		if r.Attached(id) != is {
			t.Errorf("%s: the book says %t, the plugins %t", id, r.Attached(id), is)
		}
	}
	if len(r.locks) != 0 {
		t.Errorf("%d locks are left", len(r.locks))
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(list("x", "1.1.0"))
	f.Add(`{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"a","ipam":{"type":"b"}},null]}`)
	f.Add(`{"cniVersions":["0.4.0",1],"name":"x","plugins":{}}`)
	f.Fuzz(func(t *testing.T, text string) {
		dir := t.TempDir()
		for _, name := range []string{"a.conflist", "b.conf"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		l, _, err := load(dir)
		if err != nil {
			return
		}
		flat, err := flatten(l)
		if err != nil {
			t.Fatal(err)
		}
		again, err := record{Config: flat}.list()
		if err != nil || len(again.Plugins) != len(l.Plugins) || again.Name != l.Name {
			t.Errorf("%q is not what it was: %v", flat, err)
		}
	})
}
