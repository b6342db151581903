package iptables

import (
	"errors"
	"fmt"

	"github.com/skiff-k8s/skiff/host/iptables"
)

// Remove takes the rules away that a proxy in this mode left, ours or upstream's, in both variants
// and families. Hosts that lack the programs have none.
func Remove() error {
	var errs []error
	for _, v := range iptables.Installed() {
		for _, v6 := range []bool{false, true} {
			if err := remove(iptables.New(v, v6)); err != nil {
				errs = append(errs, fmt.Errorf("iptables, variant %s, IPv6 %t: %w", v, v6, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Usable tells what this host lacks.
func Usable() error {
	if len(iptables.Installed()) == 0 {
		return errors.New("no iptables-restore on this host; install the package iptables, or use the mode nftables, which needs none")
	}
	return nil
}
