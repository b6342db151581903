package iptables

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// host answers for programs.
type host map[string]string

func (h host) run(_ []byte, argv ...string) ([]byte, error) {
	out, ok := h[strings.Join(argv, " ")]
	if !ok {
		out, ok = h[argv[0]]
	}
	if !ok {
		return nil, fmt.Errorf("%s: %w", argv[0], exec.ErrNotFound)
	}
	return []byte(out), nil
}

func TestDetect(t *testing.T) {
	both := []string{"iptables-nft-save", "iptables-nft-restore", "iptables-legacy-save", "iptables-legacy-restore", "iptables-restore"}
	two, one := "*nat\n:A - [0:0]\n-A A -j B\n-A A -j C\nCOMMIT\n", "*nat\n-A A -j B\nCOMMIT\n"
	for _, c := range []struct {
		name string
		have []string
		host host
		want Variant
		err  bool
	}{
		{name: "none", err: true},
		{name: "one without variants", have: []string{"iptables-restore", "iptables-save"}, want: Plain},
		{name: "legacy alone", have: both[2:], want: Legacy},
		{name: "no rules", have: both, host: host{}, want: NFT},
		{name: "more of legacy", have: both, host: host{"iptables-nft-save": one, "iptables-legacy-save": two}, want: Legacy},
		{name: "more of legacy's IPv6", have: both, host: host{"iptables-nft-save": one, "iptables-legacy-save": one, "ip6tables-legacy-save": one}, want: Legacy},
		{name: "as many", have: both, host: host{"iptables-nft-save": two, "iptables-legacy-save": two}, want: NFT},
		{name: "a kubelet's hint", have: both, want: Legacy, host: host{"iptables-nft-save": two, "iptables-nft-save -t mangle": "",
			"iptables-legacy-save": "", "iptables-legacy-save -t mangle": "*mangle\n:KUBE-IPTABLES-HINT - [0:0]\nCOMMIT\n"}},
		{name: "an older kubelet's", have: both, want: NFT, host: host{"iptables-legacy-save": two,
			"iptables-nft-save": "", "iptables-nft-save -t mangle": "*mangle\n:KUBE-KUBELET-CANARY - [0:0]\nCOMMIT\n"}},
	} {
		got, err := detect(c.host.run, func(name string) bool { return slices.Contains(c.have, name) })
		if got != c.want || (err != nil) != c.err {
			t.Errorf("%s: %q, %v; want %q", c.name, got, err, c.want)
		}
	}
}

func TestLoadNamesTheLine(t *testing.T) {
	for _, said := range []string{"iptables-restore: line 2 failed", "Error occurred at line: 2"} {
		tool := newTool(NFT, false, func([]byte, ...string) ([]byte, error) { return nil, errors.New(said) })
		err := tool.Load([]byte("*nat\n-A NOWHERE -j ACCEPT\nCOMMIT\n"))
		if err == nil || !strings.Contains(err.Error(), "-A NOWHERE -j ACCEPT") {
			t.Errorf("%v, want the line", err)
		}
	}
}

func TestSave(t *testing.T) {
	tool := newTool(Legacy, true, host{"ip6tables-legacy-save -t nat": "# Generated\n*nat\n:INPUT ACCEPT [3:4]\n:KUBE-X - [0:0]\n-A INPUT -j KUBE-X\nCOMMIT\n"}.run)
	chains, rules, err := tool.Save("nat")
	if err != nil || len(chains) != 2 || !chains["KUBE-X"] || !slices.Equal(rules, []string{"-A INPUT -j KUBE-X"}) {
		t.Errorf("%v %q %v", chains, rules, err)
	}
}
