package cluster

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/skiff-k8s/skiff/cluster/addons"
)

// TestDNSNotice: the Node says where DNS is served, when it is, and no more than that.
func TestDNSNotice(t *testing.T) {
	a, b := netip.MustParseAddr("10.244.1.1"), netip.MustParseAddr("fd00:1::1")
	var published []string
	fails := errors.New("no API server")
	var err error
	d := dnsNotice{publish: func(_ context.Context, text string) error {
		if err == nil {
			published = append(published, text)
		}
		return err
	}}
	step := func(what string, at []netip.Addr, want ...string) {
		t.Helper()
		published = nil
		if got := d.tell(t.Context(), at); !errors.Is(got, err) {
			t.Fatalf("%s: %v, want %v", what, got, err)
		}
		if len(published) != len(want) || len(want) == 1 && published[0] != want[0] {
			t.Errorf("%s: published %q, want %q", what, published, want)
		}
	}
	step("the Node is not there", []netip.Addr{a})
	d.known("")
	step("nothing listens yet", nil)
	step("it listens", []netip.Addr{a, b}, "10.244.1.1,fd00:1::1")
	step("the same again", []netip.Addr{a, b})
	d.known("")
	step("the Node was made anew", []netip.Addr{a}, "10.244.1.1")
	d.known("10.244.9.1")
	err = fails
	step("it can't be written", []netip.Addr{a})
	err = nil
	step("then it can", []netip.Addr{a}, "10.244.1.1")
	step("it listens no more", nil, "")
}

func TestPodNetworkKeepsTheNotice(t *testing.T) {
	n := &corev1.Node{}
	n.Annotations = map[string]string{addons.DNSAnnotation: "10.244.1.1", "other": "x"}
	kept, err := podNetworkNode(n)
	if err != nil {
		t.Fatal(err)
	}
	if got := kept.(*corev1.Node).Annotations; len(got) != 1 || got[addons.DNSAnnotation] != "10.244.1.1" {
		t.Errorf("kept %v", got)
	}
	if kept, err := podNetworkNode("gone"); err != nil || kept != "gone" {
		t.Errorf("what is no Node: %v, %v", kept, err)
	}
}
