package nftables

import "github.com/skiff-k8s/skiff/proxy/nodeports"

// Where says at which of the node's addresses node ports are open.
type Where = nodeports.Where
