package main

import "github.com/spf13/pflag"

// bindPools is how a user says which addresses Services of type LoadBalancer get.
func bindPools(f *pflag.FlagSet, pools *[]string) {
	f.StringSliceVar(pools, "load-balancer-pool", nil, "addresses for Services of type LoadBalancer, CIDR or FIRST-LAST; may be given several times; none: no Service gets any")
}
