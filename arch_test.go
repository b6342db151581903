// Package arch holds the tests of the tree's shape: who may import whom, how deep folders
// go, and what may not be linked into the binary. Every ban carries its reason.
package arch

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/skiff-k8s/skiff/"

// layer says what a folder, with all below it, may import of this module. It may always
// import itself. The layers stand in the order of the lattice: nothing imports downwards.
type layer struct {
	dir  string
	uses []string
}

var lattice = []layer{
	{"version", nil},
	{"component", nil},
	{"store", nil},
	{"host", nil},
	{"api", nil},
	{"apiserver", []string{"api", "store", "component", "version"}},
	{"scheduler", []string{"api", "component"}},
	{"controllers", []string{"api", "component"}},
	{"cloud", []string{"api", "component", "controllers/controller"}}, // the loop that every controller is made of
	{"kubelet", []string{"api", "host", "component", "version"}},
	{"network", []string{"host", "component"}},
	{"proxy", []string{"host", "component"}},
	{"containers", []string{"host", "component"}},
	{"cluster", []string{"*"}},
	{"cmd/hello", nil},
	{"cmd/kubectl", nil},
	{"cmd/skiff", []string{"cluster", "containers", "version", "kubelet", "scheduler", "controllers", "cloud", "proxy", "apiserver"}},
	{"sim", []string{"*"}},
	{"test", []string{"*"}},
}

// ban keeps a package out of everything but some folders.
type ban struct {
	path, reason string
	except       []string
}

var bans = []ban{
	{"k8s.io/kubernetes", "it is not a library: what lives only inside it is what skiff exists to write", []string{"test/upstream"}},
	{"go.etcd.io/", "the store contract hides etcd, so that kine, an external etcd or a test store can take its place", []string{"store/etcd"}},
	{"github.com/vishvananda/netlink", "the kernel is a seam: host/netlink", []string{"host/netlink"}},
	{"github.com/vishvananda/netns", "the kernel is a seam: host/netlink", []string{"host/netlink", "network/bridge/bridgetest"}},
	{"github.com/google/nftables", "the kernel is a seam: host/nft", []string{"host/nft"}},
	{"github.com/moby/ipvs", "the kernel is a seam: host/ipvs", []string{"host/ipvs"}},
	{"github.com/opencontainers/runc", "libcontainer needs cgo and starts threads in init: it lives in the launcher program only", []string{"containers/launcher"}},
	{"k8s.io/apiserver/pkg/server", "600 packages and a second apiserver", nil},
	{"k8s.io/apiserver/pkg/registry", "brings etcd3 storage and the cacher; ours is apiserver/cacher", nil},
	{"k8s.io/apiserver/pkg/storage", "brings etcd3 storage; ours is store", nil},
	{"k8s.io/kubectl", "kubectl is a binary of its own: linking it in doubles memory at idle", []string{"cmd/kubectl"}},
	{"text/template", "looks methods up by name: the linker then keeps every method (see docs/adr/0002-go-cmp.md)", []string{"test"}},
	{"html/template", "looks methods up by name: the linker then keeps every method (see docs/adr/0002-go-cmp.md)", nil},
	{"github.com/google/go-cmp", "go.mod replaces it by a stand-in (docs/adr/0002-go-cmp.md)", []string{"store/etcd/gocmp"}},
	{"k8s.io/client-go", "api is pure: types and functions, no clients", []string{"apiserver", "scheduler", "controllers", "cloud", "kubelet", "proxy", "network", "cluster", "component", "sim", "test", "cmd"}},
	{"k8s.io/cloud-provider/app", "brings the server packages of k8s.io/apiserver; cloud/ is what it composes", nil},
	{"k8s.io/cloud-provider/controllers", "upstream's controllers; ours are cloud/'s", nil},
}

// file is a Go file with what it imports.
type file struct {
	path    string // slash-separated, from the root
	imports []string
}

func files(t *testing.T) []file {
	t.Helper()
	var out []file
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "bin") {
				return fs.SkipDir
			}
			if path != "." {
				if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
					return fs.SkipDir // a module of its own
				}
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		var imports []string
		for _, i := range f.Imports {
			p, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				return err
			}
			imports = append(imports, p)
		}
		out = append(out, file{filepath.ToSlash(path), imports})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func within(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func TestLattice(t *testing.T) {
	for _, f := range files(t) {
		dir := filepath.ToSlash(filepath.Dir(f.path))
		if dir == "." {
			continue
		}
		i := slices.IndexFunc(lattice, func(l layer) bool { return within(dir, l.dir) })
		if i < 0 {
			t.Errorf("%s: folder %s is not in the lattice; add it to arch_test.go or put the file elsewhere", f.path, dir)
			continue
		}
		if strings.HasSuffix(f.path, "_test.go") {
			continue // tests may use what they test with
		}
		l := lattice[i]
		for _, imp := range f.imports {
			own, ok := strings.CutPrefix(imp, module)
			if !ok || within(own, l.dir) || slices.Contains(l.uses, "*") {
				continue
			}
			if !slices.ContainsFunc(l.uses, func(u string) bool { return within(own, u) }) {
				t.Errorf("%s imports %s: %s may use %v only", f.path, own, l.dir, l.uses)
			}
		}
	}
}

func TestBans(t *testing.T) {
	for _, f := range files(t) {
		if strings.HasSuffix(f.path, "_test.go") {
			continue
		}
		for _, imp := range f.imports {
			for _, b := range bans {
				if imp != strings.TrimSuffix(b.path, "/") && !strings.HasPrefix(imp, strings.TrimSuffix(b.path, "/")+"/") {
					continue
				}
				if !slices.ContainsFunc(b.except, func(e string) bool { return within(f.path, e) }) {
					t.Errorf("%s imports %s: %s", f.path, imp, b.reason)
				}
			}
		}
	}
}

func TestFolders(t *testing.T) {
	nouns := []string{"util", "utils", "common", "helper", "helpers", "misc", "types"}
	for _, f := range files(t) {
		parts := strings.Split(f.path, "/")
		if len(parts) > 4 {
			t.Errorf("%s: folders go at most three deep", f.path)
		}
		for _, p := range parts[:len(parts)-1] {
			if slices.Contains(nouns, p) {
				t.Errorf("%s: %q names nothing; what has no noun has no package", f.path, p)
			}
		}
	}
}

// TestReflectMethod keeps the linker able to drop methods that nobody calls: one reachable
// look-up of methods by reflection makes it keep all, tens of megabytes of them.
func TestReflectMethod(t *testing.T) {
	if testing.Short() {
		t.Skip("links the binary")
	}
	cmd := exec.Command("go", "build", "-tags", "grpcnotrace", "-o", filepath.Join(t.TempDir(), "skiff"), "-ldflags", "-s -w -dumpdep", "./cmd/skiff")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%.2000s", err, out)
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		from, to, ok := strings.Cut(strings.TrimSpace(line), " -> ")
		if ok && strings.HasSuffix(to, "<ReflectMethod>") && !seen[to] {
			seen[to] = true
			t.Errorf("%s is reached from %s", to, from)
		}
	}
}
