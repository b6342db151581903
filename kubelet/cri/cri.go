// Package cri is the kubelet's view of a container runtime: a connection to a
// CRI v1 service, the labels and annotations by which a kubelet finds its own
// pods again after a restart, and snapshots of what runs.
//
// It decides nothing about pods and talks to nothing but the runtime's socket.
package cri

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxMessageSize is what upstream's kubelet allows for one CRI message.
const maxMessageSize = 16 << 20

// Config says where the runtime is.
type Config struct {
	// RuntimeEndpoint is unix:///path or a plain path; ImageEndpoint defaults to it.
	RuntimeEndpoint string
	ImageEndpoint   string
	// Owner marks what this kubelet makes, where several share a runtime: what bears another
	// mark, or none, is not seen. Empty: what bears none is this kubelet's, as upstream.
	Owner string
	// TerminationMessage reads what a finished container left behind as its message.
	// It is called once per finished container; nil leaves the runtime's own message.
	TerminationMessage func(*runtimeapi.ContainerStatus) string
}

// Client is a connection to a CRI runtime; safe for concurrent use. It connects
// lazily and again after the runtime came back.
type Client struct {
	Runtime runtimeapi.RuntimeServiceClient
	Images  runtimeapi.ImageServiceClient

	cfg   Config
	conns []*grpc.ClientConn

	mu         sync.Mutex
	sandboxes  map[string]*Sandbox   // last status of sandboxes, by id
	containers map[string]*Container // last status of containers, by id
}

// New prepares a client; the runtime need not be up yet.
func New(cfg Config) (*Client, error) {
	if cfg.RuntimeEndpoint == "" {
		return nil, fmt.Errorf("runtime endpoint is empty: name the CRI socket, for example unix:///run/containerd/containerd.sock")
	}
	if cfg.ImageEndpoint == "" {
		cfg.ImageEndpoint = cfg.RuntimeEndpoint
	}
	c := &Client{cfg: cfg, sandboxes: map[string]*Sandbox{}, containers: map[string]*Container{}}
	rc, err := dial(cfg.RuntimeEndpoint)
	if err != nil {
		return nil, fmt.Errorf("connect to CRI runtime %s: %w", cfg.RuntimeEndpoint, err)
	}
	c.conns = append(c.conns, rc)
	ic := rc
	if cfg.ImageEndpoint != cfg.RuntimeEndpoint {
		if ic, err = dial(cfg.ImageEndpoint); err != nil {
			c.Close()
			return nil, fmt.Errorf("connect to CRI image service %s: %w", cfg.ImageEndpoint, err)
		}
		c.conns = append(c.conns, ic)
	}
	c.Runtime = runtimeapi.NewRuntimeServiceClient(rc)
	c.Images = runtimeapi.NewImageServiceClient(ic)
	return c, nil
}

// Close drops the connections.
func (c *Client) Close() error {
	var first error
	for _, conn := range c.conns {
		if err := conn.Close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

func dial(endpoint string) (*grpc.ClientConn, error) {
	path := strings.TrimPrefix(endpoint, "unix://")
	if strings.Contains(path, "://") {
		return nil, fmt.Errorf("endpoint %q is not a unix socket", endpoint)
	}
	return grpc.NewClient("passthrough:///"+path,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithAuthority("localhost"),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", addr)
		}),
		grpc.WithConnectParams(reconnect),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageSize), grpc.MaxCallSendMsgSize(maxMessageSize)),
	)
}
