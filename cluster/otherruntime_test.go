package cluster

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/skiff-k8s/skiff/network/bridge"
)

// A runtime is given a CNI configuration, but not where it has one of its own.
func TestRuntimeCNI(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	br, err := bridge.New(bridge.Config{Name: "skt1", StateDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	r := &runtimeCNI{dir: dir, name: "10-skiff-skt1.conflist", state: "/s", mapsPorts: true, bridge: br, log: slog.New(slog.DiscardHandler)}
	both := []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24"), netip.MustParsePrefix("fd00::/64")}
	if err := r.write(both); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, r.name))
	if err != nil {
		t.Fatal(err)
	}
	var list struct {
		Plugins []struct {
			Type string
			IPAM struct {
				DataDir string
				Ranges  [][]struct{ Subnet string }
				Routes  []struct{ Dst string }
			}
		}
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		t.Fatal(err)
	}
	if len(list.Plugins) != 2 || list.Plugins[0].Type != "ptp" || list.Plugins[1].Type != "portmap" {
		t.Fatalf("%s", raw)
	}
	ipam := list.Plugins[0].IPAM
	if ipam.DataDir != "/s" || !reflect.DeepEqual(ipam.Ranges, [][]struct{ Subnet string }{{{"10.1.0.0/24"}}, {{"fd00::/64"}}}) || ipam.Routes[0].Dst != "0.0.0.0/0" || ipam.Routes[1].Dst != "::/0" {
		t.Errorf("%s", raw)
	}
	if err := r.remove(); err != nil {
		t.Error(err)
	}
	other := filepath.Join(dir, "05-other.conf")
	if err := os.WriteFile(other, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.write(both); err != nil {
		t.Fatal(err)
	}
	if err := r.remove(); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != "05-other.conf" {
		t.Errorf("%v %v", left, err)
	}
}

func TestUseRuntime(t *testing.T) {
	c := &Config{RuntimeEndpoint: "unix:///old"}
	for _, bad := range []string{"/run/c.sock", "tcp://x", "unix://c.sock", "x"} {
		if err := c.useRuntime(bad); err == nil || !strings.Contains(err.Error(), "--container-runtime-endpoint="+bad) {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if err := c.useRuntime("unix:///run/c.sock"); err != nil || c.RuntimeEndpoint != "unix:///run/c.sock" {
		t.Errorf("%v %q", err, c.RuntimeEndpoint)
	}
	if n := (&NodeConfig{ClusterID: "0123456789", NodeName: "n", RuntimeEndpoint: c.RuntimeEndpoint}); n.owner() != "01234567.n" {
		t.Errorf("owner %q", n.owner())
	}
	if err := c.useRuntime("built-in"); err != nil || c.RuntimeEndpoint != "" {
		t.Errorf("%v %q", err, c.RuntimeEndpoint)
	}
	if n := (&NodeConfig{ClusterID: "0123456789", NodeName: "n"}); n.owner() != "" {
		t.Errorf("owner %q", n.owner())
	}
}

// What a node was told of registries in two ways counts.
func TestNodeRegistries(t *testing.T) {
	n := &NodeConfig{PlainHTTPRegistries: []string{"b:1"}, Registries: &Registries{PlainHTTP: []string{"a:1"}, CAFile: "/ca"}}
	if r := n.registries(); !reflect.DeepEqual(r.PlainHTTP, []string{"a:1", "b:1"}) || r.CAFile != "/ca" || len(n.Registries.PlainHTTP) != 1 {
		t.Errorf("%+v", r)
	}
}
