package cluster

import (
	"os"
	"slices"
	"testing"
)

// TestFormerProxyModes are known until their rules are gone, and then no more.
func TestFormerProxyModes(t *testing.T) {
	p := Paths{t.TempDir()}
	if err := os.MkdirAll(p.Run(), 0o755); err != nil {
		t.Fatal(err)
	}
	change := func(m ProxyMode, want ...ProxyMode) func() error {
		t.Helper()
		former, forget, err := p.changeProxyMode(m)
		if err != nil || !slices.Equal(former, want) {
			t.Errorf("%s after %v (%v), want %v", m, former, err, want)
		}
		return forget
	}
	change(ProxyNFTables)
	change(ProxyIPTables, ProxyNFTables)
	forget := change(ProxyIPTables, ProxyNFTables) // it ended before it could take them away
	if err := forget(); err != nil {
		t.Fatal(err)
	}
	change(ProxyIPTables)
	change(ProxyNFTables, ProxyIPTables)
	if err := os.WriteFile(p.proxyModesFile(), []byte("userspace\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.changeProxyMode(ProxyNFTables); err == nil {
		t.Error("an unknown mode is taken")
	}
}
