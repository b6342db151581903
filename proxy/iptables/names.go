package iptables

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"

	"github.com/skiff-k8s/skiff/proxy"
)

// Tables and chains have upstream's names: users look for them, and network plugins insert
// their rules before or after them.
const (
	filter = "filter"
	nat    = "nat"
	mangle = "mangle"

	services   = "KUBE-SERVICES"          // cluster IPs; in nat all fronts
	external   = "KUBE-EXTERNAL-SERVICES" // fronts that are reached from outside and have nobody behind them
	nodePorts  = "KUBE-NODEPORTS"
	firewall   = "KUBE-PROXY-FIREWALL" // drops what a balancer's source ranges did not let through
	forward    = "KUBE-FORWARD"
	postroute  = "KUBE-POSTROUTING"
	masquerade = "KUBE-MARK-MASQ"
	martians   = "KUBE-FIREWALL" // the kubelet's too
	canary     = "KUBE-PROXY-CANARY"
)

// Prefixes of the chains of one port.
const (
	clusterPrefix  = "KUBE-SVC-" // endpoints of a Cluster policy
	localPrefix    = "KUBE-SVL-" // of a Local one
	outsidePrefix  = "KUBE-EXT-"
	sourcesPrefix  = "KUBE-FW-"
	endpointPrefix = "KUBE-SEP-"
)

var portPrefixes = []string{clusterPrefix, localPrefix, outsidePrefix, sourcesPrefix, endpointPrefix}

func ofPort(chain string) bool {
	for _, p := range portPrefixes {
		if strings.HasPrefix(chain, p) {
			return true
		}
	}
	return false
}

// hash shortens a name, for those of chains have 28 bytes at most.
func hash(parts ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(parts, "")))
	return base32.StdEncoding.EncodeToString(sum[:])[:16]
}

// nameOf is namespace/service:port, without the colon where the port has no name.
func nameOf(p *proxy.Port) string { return strings.TrimSuffix(p.Name, ":") }

func protocolOf(p *proxy.Port) string {
	switch p.Protocol {
	case 17:
		return "udp"
	case 132:
		return "sctp"
	}
	return "tcp"
}
