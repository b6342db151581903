package cluster

import (
	"encoding/json"
	"net/netip"
)

// configFile is a Config as it is written: beside the lists of both families there are the
// fields of one family that skiff knew first, so that an older one reads the file too.
type configFile struct {
	*configFields
	NodeIP      netip.Addr   `json:"nodeIP,omitzero"`
	PodCIDR     netip.Prefix `json:"podCIDR,omitzero"`
	ServiceCIDR netip.Prefix `json:"serviceCIDR,omitzero"`
}

// configFields is a Config without its methods.
type configFields Config

// MarshalJSON writes the primary family twice.
func (c *Config) MarshalJSON() ([]byte, error) {
	return json.Marshal(configFile{configFields: (*configFields)(c), NodeIP: first(c.NodeIPs), PodCIDR: first(c.PodCIDRs), ServiceCIDR: first(c.ServiceCIDRs)})
}

// UnmarshalJSON reads files of before there were lists.
func (c *Config) UnmarshalJSON(text []byte) error {
	f := configFile{configFields: (*configFields)(c)}
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	if len(c.NodeIPs) == 0 && f.NodeIP.IsValid() {
		c.NodeIPs = []netip.Addr{f.NodeIP}
	}
	if len(c.PodCIDRs) == 0 && f.PodCIDR.IsValid() {
		c.PodCIDRs = []netip.Prefix{f.PodCIDR}
	}
	if len(c.ServiceCIDRs) == 0 && f.ServiceCIDR.IsValid() {
		c.ServiceCIDRs = []netip.Prefix{f.ServiceCIDR}
	}
	return nil
}

func first[T any](list []T) T {
	var zero T
	if len(list) == 0 {
		return zero
	}
	return list[0]
}
