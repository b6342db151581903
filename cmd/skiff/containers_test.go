package main

import (
	"log/slog"
	"strings"
	"testing"
)

func TestRuntimeFlags(t *testing.T) {
	for name, tt := range map[string]struct {
		f    runtimeFlags
		want string // of the error; empty: none
	}{
		"one network":                 {runtimeFlags{root: "/r", podCIDRs: []string{"10.88.0.0/16"}}, ""},
		"both families":               {runtimeFlags{root: "/r", podCIDRs: []string{"10.88.0.0/16", "fd00:88::/64"}, listen: "unix:///run/cri.sock"}, ""},
		"no network":                  {runtimeFlags{root: "/r"}, "--pod-cidr is required"},
		"an address":                  {runtimeFlags{root: "/r", podCIDRs: []string{"10.88.0.1"}}, "--pod-cidr=10.88.0.1 is no network"},
		"two of one family":           {runtimeFlags{root: "/r", podCIDRs: []string{"10.88.0.0/16", "10.89.0.0/16"}}, "--pod-cidr=10.89.0.0/16: 10.88.0.0/16 is of the same family"},
		"no socket":                   {runtimeFlags{root: "/r", podCIDRs: []string{"10.88.0.0/16"}, listen: "tcp://127.0.0.1:1"}, "--listen=tcp://127.0.0.1:1 is no unix socket"},
		"a path that is not absolute": {runtimeFlags{root: "/r", podCIDRs: []string{"10.88.0.0/16"}, listen: "unix://cri.sock"}, "use unix:///path"},
	} {
		c, err := tt.f.config(slog.New(slog.DiscardHandler))
		switch {
		case tt.want != "":
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: %v, want %q", name, err, tt.want)
			}
		case err != nil || len(c.PodCIDRs) != len(tt.f.podCIDRs) || c.Root != "/r" || tt.f.listen != "" && c.Socket != "/run/cri.sock":
			t.Errorf("%s: %+v, %v", name, c, err)
		}
	}
}
