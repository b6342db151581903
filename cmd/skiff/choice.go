package main

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/pflag"

	"github.com/skiff-k8s/skiff/cluster"
)

// clusterChoice is what a user may choose for a new cluster, which is free of conflicts with others otherwise.
type clusterChoice struct {
	apiPort, kubeletPort uint16
	podCIDR, serviceCIDR string
}

func (c *clusterChoice) bind(f *pflag.FlagSet) {
	f.Uint16Var(&c.apiPort, "api-port", 0, "port of a new cluster's API server; none: 6443, or another that is free")
	f.Uint16Var(&c.kubeletPort, "kubelet-port", 0, "port of a new cluster's kubelets; none: 10250, or another that is free")
	f.StringVar(&c.podCIDR, "pod-cidr", "", "range of a new cluster's pods, or one of each family; none: 10.244.0.0/16, or another that is free")
	f.StringVar(&c.serviceCIDR, "service-cidr", "", "range of a new cluster's Services, or one of each family; none: 10.96.0.0/16, or another that is free")
}

func (c *clusterChoice) wanted() (cluster.Wanted, error) {
	w := cluster.Wanted{APIPort: c.apiPort, KubeletPort: c.kubeletPort}
	for _, x := range []struct {
		flag, text string
		out        *[]netip.Prefix
	}{{"pod-cidr", c.podCIDR, &w.PodCIDRs}, {"service-cidr", c.serviceCIDR, &w.ServiceCIDRs}} {
		for _, s := range strings.FieldsFunc(x.text, func(r rune) bool { return r == ',' }) {
			p, err := netip.ParsePrefix(s)
			if err != nil {
				return w, fmt.Errorf("--%s=%s is no range of addresses such as 10.244.0.0/16", x.flag, x.text)
			}
			*x.out = append(*x.out, p)
		}
	}
	return w, nil
}
