package main

import (
	"debug/elf"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
)

// modules are those that a cluster needs and Debian's kernel does not have built in.
var modules = []string{
	"virtio_pci", "virtio_blk", "overlay", "bridge", "veth", "dummy", "br_netfilter",
	"nf_tables", "nft_chain_nat", "nft_nat", "nft_ct", "nft_masq", "nft_redir", "nft_numgen", "nft_hash", "nft_limit",
	"nft_fib_ipv4", "nft_fib_ipv6", "nft_fib_inet", "nft_reject_inet", "nft_reject_ipv4", "nft_reject_ipv6", "nf_conntrack", "nf_conntrack_netlink",
	// Of the proxy's modes iptables and ipvs.
	"nft_compat", "xt_comment", "xt_conntrack", "xt_mark", "xt_nat", "xt_MASQUERADE", "xt_addrtype", "xt_tcpudp", "xt_set", "xt_recent", "xt_statistic",
	"ipt_REJECT", "ip6t_REJECT", "ip_vs", "ip_vs_rr", "ip_set_hash_ip", "ip_set_hash_ipport", "ip_set_hash_ipportip", "ip_set_hash_ipportnet", "ip_set_bitmap_port",
}

// inOrder are the files of modules and of what they depend on, in the order to load them. Debian's
// package has no modules.dep, but each module says itself what it depends on.
func inOrder(dir string, names []string) ([]string, error) {
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(p), ".ko"); ok {
			files[strings.ReplaceAll(name, "-", "_")] = p
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var out []string
	done := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		name = strings.ReplaceAll(name, "-", "_")
		if done[name] {
			return nil
		}
		done[name] = true
		file, ok := files[name]
		if !ok {
			return nil // built in, or named otherwise: the guest fails at what needs it
		}
		depends, err := dependsOn(file)
		if err != nil {
			return fmt.Errorf("module %s: %w", name, err)
		}
		for _, d := range depends {
			if err := add(d); err != nil {
				return err
			}
		}
		out = append(out, file)
		return nil
	}
	for _, n := range names {
		if err := add(n); err != nil {
			return nil, err
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no modules in %s", dir)
	}
	return out, nil
}

func dependsOn(file string) ([]string, error) {
	f, err := elf.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	s := f.Section(".modinfo")
	if s == nil {
		return nil, fmt.Errorf("%s has no .modinfo", file)
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for _, line := range strings.Split(string(info), "\x00") {
		if list, ok := strings.CutPrefix(line, "depends="); ok && list != "" {
			return strings.Split(list, ","), nil
		}
	}
	return nil, nil
}
