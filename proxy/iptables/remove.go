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
