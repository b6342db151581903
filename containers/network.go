package containers

import (
	"context"
	"net/netip"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Network gives sandboxes their place in the cluster's network. Its methods may
// be called concurrently, for different sandboxes and for the same one.
type Network interface {
	// Attach connects the sandbox's network namespace, which has loopback
	// only, and returns the addresses. For a sandbox that is attached it
	// returns the same addresses again.
	Attach(ctx context.Context, s Sandbox) (Addresses, error)
	// Detach takes back what Attach gave. The namespace may be gone; a sandbox
	// that is not attached is no error.
	Detach(ctx context.Context, s Sandbox) error
	// Ready says why no sandbox can be attached now, or nil.
	Ready(ctx context.Context) error
}

// Sandbox is what a network may know of a sandbox.
type Sandbox struct {
	ID, Namespace, Name, UID string
	NetNSPath                string
	Hostname                 string
	PortMappings             []*runtimeapi.PortMapping
	Annotations              map[string]string
	DNS                      *runtimeapi.DNSConfig
}

// Collector is a Network that wants to be told, once at start, which sandboxes may be attached. It
// takes off all others: a crash may have left them.
type Collector interface {
	Collect(ctx context.Context, live []string) error
}

// Addresses are a sandbox's, the primary first.
type Addresses struct{ IPs []netip.Addr }
