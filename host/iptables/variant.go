package iptables

import (
	"bytes"
	"errors"
	"os/exec"
)

// hints are chains that a kubelet makes with the host's own programs, so that others know which
// variant these are (KEP-3178).
var hints = [][]byte{[]byte(":KUBE-IPTABLES-HINT "), []byte(":KUBE-KUBELET-CANARY ")}

// Detect chooses the variant that the host uses, as the iptables-wrappers of Kubernetes do: the
// one in which a kubelet left its hint, else the one with more rules, else nft.
func Detect() (Variant, error) {
	return detect(run, installedProgram)
}

// Installed are the variants that the host has the programs of.
func Installed() []Variant { return installed(installedProgram) }

func installedProgram(name string) bool { _, err := find(name); return err == nil }

func installed(have func(string) bool) (out []Variant) {
	for _, v := range []Variant{NFT, Legacy, Plain} {
		t := newTool(v, false, nil)
		if have(t.load) && have(t.save) && (v != Plain || len(out) == 0) {
			out = append(out, v)
		}
	}
	return out
}

func detect(run runner, have func(string) bool) (Variant, error) {
	found := installed(have)
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return Plain, errors.New("no iptables-restore on this host; install the package iptables, or use the mode nftables, which needs none")
	}
	rules := map[Variant]int{}
	for _, v := range found {
		for _, v6 := range []bool{false, true} {
			t := newTool(v, v6, run)
			out, err := run(nil, t.save, "-t", "mangle")
			if missing(err) {
				continue // of a host without IPv6
			}
			for _, h := range hints {
				if bytes.Contains(out, h) {
					return v, nil
				}
			}
			// An error is that of a kernel without this variant, which has no rules then.
			if out, err = run(nil, t.save); err == nil {
				rules[v] += bytes.Count(out, []byte("\n-"))
			}
		}
	}
	if rules[Legacy] > rules[NFT] {
		return Legacy, nil
	}
	return NFT, nil
}

func missing(err error) bool { return errors.Is(err, exec.ErrNotFound) }

// String is how logs have it.
func (v Variant) String() string {
	if v == Plain {
		return "the only one"
	}
	return string(v)
}
