package cluster

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/skiff-k8s/skiff/host/netlink"
)

func TestConfigIsKept(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	c, err := LoadOrCreate("one", dir)
	if err != nil {
		t.Fatal(err)
	}
	again, err := LoadOrCreate("one", dir)
	if err != nil || again.ID != c.ID || again.Bridge != c.Bridge {
		t.Fatalf("%+v, %v; want %+v", again, err, c)
	}
	if _, err := LoadOrCreate("two", dir); err == nil || !strings.Contains(err.Error(), `"one"`) {
		t.Errorf("another name: %v", err)
	}
}

func TestNewerFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(Paths{dir}.Config(), []byte(`{"format":99,"createdBy":"v9.0.0"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(dir); err == nil || !strings.Contains(err.Error(), "v9.0.0") {
		t.Errorf("format 99: %v", err)
	}
}

func TestAddressThatIsGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	c, err := LoadOrCreate("one", dir)
	if err != nil {
		t.Fatal(err)
	}
	kept := c.NodeIPs[0]
	if err := c.followAddress(dir); err != nil || c.NodeIPs[0] != kept {
		t.Fatalf("%s became %s, %v", kept, c.NodeIPs[0], err)
	}
	c.NodeIPs[0] = netip.MustParseAddr("203.0.113.77")
	if err := c.followAddress(dir); err != nil {
		t.Fatal(err)
	}
	want, err := netlink.DefaultAddress()
	if err != nil || c.NodeIPs[0] != want {
		t.Fatalf("took %s, want %s (%v)", c.NodeIPs[0], want, err)
	}
	if again, err := Load(dir); err != nil || again.NodeIPs[0] != want {
		t.Errorf("saved %v, %v", again, err)
	}
}

func TestValidate(t *testing.T) {
	for _, c := range []struct{ name, dir, want string }{
		{"ok", "/var/lib/skiff/ok", ""},
		{"Upper", "/d", "--name"},
		{"ok", "relative", "absolute"},
		{"ok", "/" + strings.Repeat("x", 120), "shorter"},
	} {
		err := Validate(c.name, c.dir)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %s: %v, want %q", c.name, c.dir, err, c.want)
		}
	}
}
