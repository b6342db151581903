package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Two kinds of traces: those in our network namespace, where any change between before and after
// counts, and those that carry the cluster's name or directory. Clusters in other
// namespaces of this host may come and go meanwhile.

// namespaceTraces are links and nftables tables of our network namespace.
func namespaceTraces(t testing.TB) []string {
	t.Helper()
	links, err := run("ip", "-br", "link")
	if err != nil {
		t.Fatal(err)
	}
	tables, err := run("nft", "-t", "list", "tables")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for line := range strings.Lines(links) {
		if f := strings.Fields(line); len(f) > 0 {
			name, _, _ := strings.Cut(f[0], "@") // the peer's number may change
			all = append(all, "link "+name)
		}
	}
	for line := range strings.Lines(tables) {
		// Those of iptables are everybody's, and stay where one program of it has run: chains in them count.
		if f := strings.Fields(line); len(f) == 3 && slices.Contains([]string{"filter", "nat", "mangle"}, f[2]) {
			chains, err := run("nft", "-t", "list", "table", f[1], f[2])
			if err != nil {
				t.Fatal(err)
			}
			for chain := range strings.Lines(chains) {
				if strings.Contains(chain, "chain KUBE-") {
					all = append(all, f[2]+" "+strings.TrimSpace(chain))
				}
			}
			continue
		}
		all = append(all, "nft "+strings.TrimSpace(line))
	}
	return all
}

// identity of a cluster, from its directory.
func identity(dir string) (id, bridge string, err error) {
	var c struct{ ID, Bridge string }
	text, err := os.ReadFile(filepath.Join(dir, "cluster.json"))
	if err == nil {
		err = json.Unmarshal(text, &c)
	}
	if err == nil && len(c.ID) < 8 {
		err = fmt.Errorf("its id is %q", c.ID)
	}
	return c.ID, c.Bridge, err
}

// ownTraces returns what lists, also when the directory is gone, all that carries the name of the cluster in it.
func ownTraces(t testing.TB, dir string) func() []string {
	t.Helper()
	id, _, err := identity(dir)
	if err != nil {
		t.Errorf("who the cluster in %s is: %v", dir, err)
		return func() []string { return nil }
	}
	return func() []string {
		t.Helper()
		all := traces(t, dir, "skiff-"+id[:8])
		notes, err := filepath.Glob("/var/lib/skiff/.elsewhere/" + id + "*")
		if err != nil {
			t.Fatal(err)
		}
		return append(all, notes...)
	}
}

// traces are what carries the name of a directory or of a control group: files, mounts (those of network
// namespaces included), groups, processes.
func traces(t testing.TB, dir, group string) []string {
	t.Helper()
	var all []string
	if _, err := os.Stat(dir); err == nil {
		all = append(all, dir)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir) {
			all = append(all, "mount "+strings.TrimSpace(line))
		}
	}
	for _, pattern := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} { // v2, v1
		groups, err := filepath.Glob(pattern + group)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, groups...)
	}
	procs, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		args, _ := os.ReadFile(p) // it may have ended
		groups, _ := os.ReadFile(filepath.Join(filepath.Dir(p), "cgroup"))
		if len(args) == 0 { // a zombie, which its parent has yet to reap
			continue
		}
		if strings.Contains(string(args), dir) || strings.Contains(string(groups), "/"+group) {
			all = append(all, p+" "+strings.ReplaceAll(string(args), "\x00", " "))
		}
	}
	return all
}

// difference is what after has more of than before.
func difference(after, before []string) []string {
	seen := map[string]int{}
	for _, s := range before {
		seen[s]++
	}
	var out []string
	for _, s := range after {
		if seen[s]--; seen[s] < 0 {
			out = append(out, s)
		}
	}
	return out
}
