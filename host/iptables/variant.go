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
	have := func(name string) bool { _, err := find(name); return err == nil }
	return detect(run, have)
}

func detect(run runner, have func(string) bool) (Variant, error) {
	var found []Variant
	for _, v := range []Variant{NFT, Legacy} {
		if t := newTool(v, false, run); have(t.load) && have(t.save) {
			found = append(found, v)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0 && have(newTool(Plain, false, run).load):
		return Plain, nil
	case len(found) == 0:
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
